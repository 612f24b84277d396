//! Tests of long chains and wide fan-outs: no stack overflow, no noticeable quadratic cost.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::harness::project::Mill;

const HEAD: &str = "name: scale\nnodes:\n  n0: {op: read, with: {path: documents.jsonl, as: document}}\n";

fn project(nodes: &str) -> Mill {
    let mill = Mill::new();
    mill.write("documents.jsonl", "{\"id\": \"d\", \"text\": \"one\"}\n{\"id\": \"e\", \"text\": \"two\"}\n");
    mill.write("pipeline.yaml", &format!("{HEAD}{nodes}"));
    mill
}

/// Returns a chain of filters that drop nothing, so that all artifacts are equal.
fn chain(length: usize) -> String {
    let mut nodes = String::new();
    for number in 1..length {
        writeln!(nodes, "  n{number}: {{op: filter, from: n{}, with: {{where: \"true\"}}}}", number - 1).expect("text");
    }
    nodes
}

/// Returns [`chain`] in reverse order: every node is written before its input.
fn reversed_chain(length: usize) -> String {
    chain(length).lines().rev().fold(String::new(), |nodes, line| nodes + line + "\n")
}

/// Fails if work takes much longer than `seconds`, which it takes on a slow machine that does nothing else. Beside other
/// tests it takes a multiple of them; with a cost that is quadratic in the nodes, a thousandfold.
fn within<T>(seconds: u64, what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    assert!(start.elapsed() < 5 * Duration::from_secs(seconds), "{what} took {:?}", start.elapsed());
    done
}

#[test]
fn a_chain_of_ten_thousand_nodes_is_planned() {
    let mill = project(&reversed_chain(10_000));
    within(60, "validate", || mill.call(&["validate", "pipeline.yaml"]).exit(0));
    let told = within(60, "plan", || mill.call(&["plan", "pipeline.yaml"]).exit(0));
    assert!(told.stdout.contains("10000 nodes: 0 cached, 10000 to run or to decide"));
    within(60, "graph", || mill.call(&["graph", "pipeline.yaml", "--format", "dot"]).exit(0));
}

#[test]
fn a_chain_of_ten_thousand_nodes_runs_by_one_key_and_stops_there() {
    // All nodes of the chain have the same key: the first one runs, 9,998 find its result.
    let mill = project(&chain(10_000));
    let told = within(100, "the first run", || mill.run(&[]).exit(0));
    assert_eq!((told.summary()["finished"].as_u64(), told.summary()["cached"].as_u64()), (Some(2), Some(9_998)));
    let again = within(60, "the second run", || mill.run(&[]).exit(0));
    assert_eq!((again.summary()["finished"].as_u64(), again.summary()["cached"].as_u64()), (Some(0), Some(10_000)));
    let told = within(60, "status", || mill.call(&["status", "pipeline.yaml", "--json"]).exit(0));
    assert_eq!(told.events().len(), 10_000);
}

#[test]
fn a_chain_of_a_thousand_different_nodes_executes() {
    let mut nodes = String::new();
    for number in 1..1_000 {
        let from = number - 1;
        writeln!(nodes, "  n{number}: {{op: filter, from: n{from}, with: {{where: \"length(id) < {}\"}}}}", number + 5)
            .expect("text");
    }
    let mill = project(&nodes);
    let told = within(120, "the first run", || mill.run(&[]).exit(0));
    assert_eq!(told.summary()["finished"], 1_000);
    let again = within(30, "the second run", || mill.run(&[]).exit(0));
    assert_eq!(again.summary()["cached"], 1_000);
}

#[test]
fn a_thousand_nodes_hang_on_one_and_meet_in_one() {
    let mut nodes = String::new();
    for number in 1..=1_000 {
        let predicate = format!("length(id) < {}", number + 5);
        writeln!(nodes, "  n{number}: {{op: filter, from: n0, with: {{where: \"{predicate}\"}}}}").expect("text");
    }
    let names: Vec<String> = (1..=1_000).map(|number| format!("n{number}: n{number}")).collect();
    let query = "select count(*) as n from n1 union all select count(*) from n1000";
    writeln!(nodes, "  all: {{op: sql, from: {{{}}}, with: {{query: \"{query}\"}}}}", names.join(", ")).expect("text");
    let mill = project(&nodes);
    let told = within(120, "the first run", || mill.run(&["-j", "8"]).exit(0));
    assert_eq!((told.summary()["finished"].as_u64(), told.summary()["failed"].as_u64()), (Some(1_002), Some(0)));
    let again = within(30, "the second run", || mill.run(&[]).exit(0));
    assert_eq!(again.summary()["cached"], 1_002);
}
