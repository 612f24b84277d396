//! Tests of several processes in one store, and of several nodes at the same time.

use std::process::Child;
use std::time::Duration;

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, Told};

#[test]
fn two_processes_pay_once() {
    let questions = 24;
    let bench = Bench::new(&patient(questions, Duration::from_millis(40)));
    let children: Vec<_> = (0..2).map(|_| bench.command(&[]).spawn().expect("a child")).collect();
    let told: Vec<_> =
        children.into_iter().map(|child| Told::new(child.wait_with_output().expect("a child")).exit(0)).collect();
    let names: Vec<String> = (0..questions).map(|number| format!("q{number}")).collect();
    assert_eq!(bench.paid(&names.iter().map(String::as_str).collect::<Vec<_>>()), questions);
    let runs: usize = told.iter().filter(|told| told.nodes("node_finished").contains("answers")).count();
    assert_eq!(runs, 1, "one process computes the rollout, the other waits and uses it");
    let store = bench.mill.store();
    let outputs = |run: &String| {
        let nodes = store.run_nodes(run).into_iter();
        nodes.map(|node| (node.node, node.outputs)).collect::<std::collections::BTreeMap<_, _>>()
    };
    let runs = store.run_ids();
    assert_eq!((runs.len(), outputs(&runs[0])), (2, outputs(&runs[1])));
}

/// Starts two overlapping processes whose rollouts differ only in params that are not sent.
fn overlapping(bench: &Bench) -> [Child; 2] {
    let first = bench.command(&[]).spawn().expect("a child");
    while bench.server.count() < 5 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = bench.command(&["--set", "most=7"]).spawn().expect("a child");
    [first, second]
}

fn with_most(questions: usize, wait: Duration) -> (Bench, Vec<String>) {
    let bench = Bench::new(&patient(questions, wait));
    bench.replace("samples: 1", "samples: 1\n      max_turns: \"${params.most}\"");
    bench.replace("name: endpoint\n", "name: endpoint\nparams: {most: 5}\n");
    (bench, (0..questions).map(|number| format!("q{number}")).collect())
}

#[test]
fn nodes_of_two_processes_that_send_the_same_pay_once() {
    let (bench, names) = with_most(40, Duration::from_millis(30));
    for child in overlapping(&bench) {
        Told::new(child.wait_with_output().expect("a child")).exit(0);
    }
    assert_eq!(bench.paid(&names.iter().map(String::as_str).collect::<Vec<_>>()), names.len());
    bench.run(&["--set", "most=8"]).exit(0);
    assert_eq!(bench.server.count(), names.len(), "all answers were stored");
}

#[test]
fn what_a_killed_process_asked_is_asked_by_the_one_that_waits() {
    let (bench, names) = with_most(40, Duration::from_millis(60));
    let [mut first, second] = overlapping(&bench);
    std::thread::sleep(Duration::from_millis(150));
    first.kill().expect("a living child");
    first.wait().expect("a dead child");
    Told::new(second.wait_with_output().expect("a child")).exit(0);
    // Only calls in flight at the kill are paid again.
    let paid = bench.paid(&names.iter().map(String::as_str).collect::<Vec<_>>());
    assert!((names.len()..=names.len() + 8).contains(&paid), "{paid}");
}

#[test]
fn different_pipelines_share_a_store_at_once() {
    let mill = Mill::new();
    let line = |n| format!("{}\n", serde_json::json!({"id": format!("d{n}"), "text": format!("text number {n}")}));
    mill.write("documents.jsonl", &(0..200).map(line).collect::<String>());
    for number in 0..4 {
        let nodes = format!(
            "nodes:\n  corpus: {{op: read, with: {{path: documents.jsonl, as: document}}}}\n  \
             own: {{op: filter, from: corpus, with: {{where: \"length(id) > {}\"}}}}\n",
            number % 2
        );
        mill.write(&format!("{number}.yaml"), &format!("name: p{number}\n{nodes}"));
    }
    let start = |number| mill.command(&["run", &format!("{number}.yaml"), "--json"]).spawn().expect("a child");
    let children: Vec<_> = (0..4).map(start).collect();
    let told: Vec<_> = children.into_iter().map(|child| Told::new(child.wait_with_output().unwrap()).exit(0)).collect();
    let computed: Vec<String> = told.iter().flat_map(|told| told.nodes("node_finished")).collect();
    let count = |node: &str| computed.iter().filter(|name| *name == node).count();
    assert_eq!((count("corpus"), count("own")), (1, 2), "{computed:?}");
}

const WIDE: &str = "\
name: wide
nodes:
  world:  {op: generate-world, with: {documents: 150, questions: 40}, seed: 5}
  chunks: {op: chunk, from: world, with: {size: 40, count: words}}
  bm25:   {op: index, from: chunks, with: {kind: bm25}}
  dense:  {op: index, from: chunks, with: {kind: {dense: {encoder: hashing, factory: Flat}}}}
  hits:   {op: retrieve, from: {questions: world.questions, search: [bm25, dense]}, with: {top_k: 5}}
  rolls:  {op: rollout, from: {questions: world.questions, search: [bm25, dense]}, with: {policy: evidence}}
  report: {op: evaluate, from: {questions: world.questions, hits: hits}}
  few:    {op: sample, from: chunks, with: {n: 50}, seed: 2}
  swift:  {op: convert-to-swift, from: rolls}
";

#[test]
fn jobs_and_threads_change_no_byte() {
    let run = |jobs: &str, threads: usize| {
        let mill = Mill::new();
        let resources = format!(", resources: {{threads: {threads}}}}}\n");
        let wide = WIDE.replace("}}\n", &format!("}}{resources}"));
        let (rows, more) = ("policy: evidence}, resources: {", format!("concurrency: {}, ", threads * 7));
        assert!(wide.contains(rows));
        mill.write("pipeline.yaml", &wide.replace(rows, &format!("{rows}{more}")));
        mill.run(&["-j", jobs]).exit(0);
        mill.artifacts()
    };
    let one = run("1", 1);
    assert!(one.len() > 12, "{one:?}");
    assert_eq!(run("4", 3), one);
}

#[test]
fn the_parts_of_a_union_come_one_after_the_other() {
    let mill = Mill::new();
    let union = "SELECT id FROM a UNION ALL SELECT id FROM b UNION ALL SELECT id FROM a";
    mill.write(
        "pipeline.yaml",
        &format!(
            "name: union\nnodes:\n  world: {{op: generate-world, with: {{documents: 150, questions: 40}}, seed: 5}}\n  all: {{op: \
             sql, from: {{a: world.questions, b: world}}, with: {{query: \"{union}\"}}}}\n  ends: {{op: sql, from: {{a: \
             world.questions, b: world}}, with: {{query: \"SELECT first_value(id) AS first, last_value(id) AS last FROM \
             ({union})\"}}}}\n  some: {{op: sql, from: {{a: world.questions, b: world}}, with: {{query: \"{union} LIMIT 42\"}}}}\n"
        ),
    );
    mill.run(&[]).exit(0);
    let ids = |node: &str| -> Vec<String> {
        let rows = mill.call(&["show", node, "--json", "-n", "0"]).exit(0).events();
        rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()).collect()
    };
    let (questions, documents) = (ids("world.questions"), ids("world.documents"));
    let whole = [&questions[..], &documents, &questions].concat();
    assert_eq!((ids("all"), ids("some")), (whole.clone(), whole[..42].to_vec()));
    let ends = mill.call(&["show", "ends", "--json"]).exit(0).events();
    assert_eq!((ends[0]["first"].as_str(), ends[0]["last"].as_str()), (Some(&*whole[0]), Some(&*questions[39])));
    let before = mill.artifacts();
    for _ in 0..10 {
        mill.run(&["--no-cache"]).exit(0);
        assert_eq!(mill.artifacts(), before);
    }
}

#[test]
fn nodes_that_claim_more_memory_than_there_is_run_one_after_the_other() {
    let together = |memory: &str| {
        let mill = Mill::new();
        mill.write("documents.jsonl", "{\"id\": \"d\", \"text\": \"t\"}\n");
        let node = |name: &str| {
            let script = format!("date +%s%N > {name}.began; sleep 1; date +%s%N > {name}.ended; cat");
            let with = format!("{{command: [sh, -c, {script:?}], as: document}}");
            format!("  {name}: {{op: exec, from: corpus, with: {with}, resources: {{memory: {memory}}}}}\n")
        };
        let corpus = "  corpus: {op: read, with: {path: documents.jsonl, as: document}}\n";
        mill.write("pipeline.yaml", &format!("name: claims\nnodes:\n{corpus}{}{}", node("one"), node("two")));
        mill.run(&["-j", "2"]).exit(0);
        let time = |file: &str| mill.read(file).trim().parse::<u128>().expect("a time");
        time("one.began").max(time("two.began")) < time("one.ended").min(time("two.ended"))
    };
    assert!(together("1MiB"));
    assert!(!together("1000000GiB"), "each claims more than any machine has");
}

#[test]
fn a_query_that_needs_more_memory_says_where_to_give_it() {
    let mill = Mill::new();
    let query = "select a.id, b.text, count(*) over (partition by a.text) n from docs a join docs b on a.text = b.text";
    let world = "  world: {op: generate-world, with: {documents: 20000, questions: 8}}\n";
    let node =
        format!("  all: {{op: sql, from: {{docs: world}}, with: {{query: {query:?}}}, resources: {{memory: 1MiB}}}}\n");
    mill.write("pipeline.yaml", &format!("name: large\nnodes:\n{world}{node}"));
    let told = mill.call(&["run", "pipeline.yaml"]).exit(5).stderr;
    assert!(told.contains("needs more memory") && told.contains("`resources: {memory: …}`"), "{told}");
}
