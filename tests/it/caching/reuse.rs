//! Tests of which rows are reused from the memo, as one table; the server counts the calls.

use std::time::Duration;

use serde_json::json;

use crate::harness::endpoint::{Bench, document, patient};

/// Questions of the first run.
const FIRST: [&str; 4] = ["q0", "q1", "q2", "q3"];

/// A change between two runs, and the number of calls the second run pays for.
struct Case {
    name: &'static str,
    change: fn(&mut Bench),
    args: &'static [&'static str],
    paid: usize,
}

const fn case(name: &'static str, paid: usize, change: fn(&mut Bench)) -> Case {
    Case { name, change, args: &[], paid }
}

fn param(bench: &Bench, text: &str) {
    bench.replace("samples: 1", &format!("samples: 1\n      {text}"));
}

fn policy(bench: &Bench, text: &str) {
    bench.replace("timeout_seconds: 2", &format!("timeout_seconds: 2, {text}"));
}

/// Adds a column that no rollout reads, through a query between questions and rollouts.
fn with_column(bench: &Bench, column: &str) {
    let query = format!("SELECT q.*{column} FROM q ORDER BY id");
    let node = format!(
        "  wider:     {{op: sql, from: {{q: questions}}, with: {{as: question, query: \"{query}\"}}}}\n  answers:"
    );
    bench.replace("  answers:", &node);
    bench.replace("from: {questions: questions, search: bm25}", "from: {questions: wider, search: bm25}");
}

fn moved(bench: &mut Bench) {
    bench.serve(&patient(6, Duration::ZERO));
}

const COMES_BACK: &[Case] = &[
    case("nothing", 0, |_| {}),
    case("a new row", 1, |bench| bench.ask(&["q0", "q4", "q1", "q2", "q3"])),
    case("a removed row", 0, |bench| bench.ask(&["q0", "q1", "q3"])),
    case("another order", 0, |bench| bench.ask(&["q3", "q1", "q0", "q2"])),
    case("more rows in flight", 0, |bench| bench.replace("concurrency: 8", "concurrency: 2")),
    case("one thread", 0, |bench| bench.replace("concurrency: 8", "concurrency: 8, threads: 1")),
    case("another pipeline and node", 0, |bench| {
        bench.replace("name: endpoint", "name: other");
        bench.replace("answers:", "rolls:");
        bench.replace("trajectories: answers", "trajectories: rolls");
        bench.ask(&["q3", "q1", "q0", "q2"]);
    }),
    case("a rotated API key", 0, |bench| bench.api_key = "second"),
    case("another secret", 0, |bench| bench.replace("${secret:API_KEY}", "${secret:ENDPOINT}")),
    case("a moved server", 0, moved),
    case("more patience", 0, |bench| bench.replace("timeout_seconds: 2", "timeout_seconds: 9")),
    case("another retry policy", 0, |bench| bench.replace("max_attempts: 2", "max_attempts: 5")),
    case("another way with failures", 0, |bench| bench.replace("    retry:", "    on_error: fail\n    retry:")),
    case("prices and limits", 0, |bench| policy(bench, "prices: {prompt: 1}, limits: {concurrency: 4}")),
    case("an unrelated column", 0, |bench| with_column(bench, ", length(question) AS letters")),
    case("a spelled-out default", 0, |bench| param(bench, "max_turns: 10")),
    case("corrected answers", 0, |bench| bench.relabel(&json!({"golden_answers": ["Roma"]}))),
    case("other ids", 0, |bench| bench.relabel(&json!({"id": "other"}))),
    case("question types", 0, |bench| bench.relabel(&json!({"question_type": "city"}))),
    case("evidence", 0, |bench| bench.relabel(&json!({"evidence": [{"title": "Italy"}]}))),
    case("a new field of the source", 0, |bench| bench.relabel(&json!({"level": "easy"}))),
    case("streamed answers", 0, |bench| policy(bench, "stream: true")),
    case("resent reasoning", 0, |bench| policy(bench, "resend_reasoning: true")),
    case("most turns", 0, |bench| param(bench, "max_turns: 3")),
    case("no last word", 0, |bench| param(bench, "ask_for_answer: false")),
    case("passages a search", 0, |bench| param(bench, "search: {top_k: 1}")),
    case("how the index is cut", 0, |bench| bench.replace("size: 40", "size: 3")),
    case("the index's content", 0, |bench| {
        bench.mill.write("documents.jsonl", &document("Rome is the capital of Italy, on the Tiber."));
    }),
    case("a comment", 0, |bench| bench.replace("nodes:\n", "# more\nnodes:\n")),
    Case { name: "one job", change: |bench| bench.ask(&["q3", "q0", "q1", "q2"]), args: &["-j", "1"], paid: 0 },
];

const DOES_NOT: &[Case] = &[
    case("another prompt", 4, |bench| param(bench, "system_prompt: Be brief.")),
    case("another model", 4, |bench| bench.replace("model: m,", "model: n,")),
    case("another revision", 4, |bench| policy(bench, "revision: r2")),
    case("the server's URL in the key", 4, |bench| policy(bench, "identify_by_url: true")),
    case("temperature", 4, |bench| policy(bench, "temperature: 0.2")),
    case("top_p", 4, |bench| policy(bench, "top_p: 0.9")),
    case("max_tokens", 4, |bench| policy(bench, "max_tokens: 99")),
    case("the sampling seed", 4, |bench| policy(bench, "seed: 7")),
    case("further fields", 4, |bench| policy(bench, "extra: {top_k: 20}")),
    case("the node's seed", 4, |bench| bench.replace("    retry:", "    seed: 3\n    retry:")),
    case("the tool's name", 4, |bench| param(bench, "tool_name: look")),
    case("most searches", 4, |bench| param(bench, "max_searches: 3")),
    case("no index", 4, |bench| bench.replace("questions: questions, search: bm25", "questions: questions")),
    Case { name: "--force", change: |_| {}, args: &["--force=answers"], paid: 4 },
    Case { name: "--no-cache", change: |_| {}, args: &["--no-cache"], paid: 4 },
];

fn paid_after(case: &Case) -> usize {
    let mut bench = Bench::new(&patient(6, Duration::ZERO));
    bench.ask(&FIRST);
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), FIRST.len(), "{}", case.name);
    let server = bench.server.base_url();
    (case.change)(&mut bench);
    let before = if bench.server.base_url() == server { FIRST.len() } else { 0 };
    bench.run(case.args).exit(0);
    bench.server.count() - before
}

fn check(cases: &[Case]) {
    let found: Vec<(&str, usize)> = cases.iter().map(|case| (case.name, paid_after(case))).collect();
    let wanted: Vec<(&str, usize)> = cases.iter().map(|case| (case.name, case.paid)).collect();
    assert_eq!(found, wanted);
}

#[test]
fn rows_come_back_whatever_changes_no_byte_of_them() {
    check(COMES_BACK);
}

#[test]
fn rows_do_not_come_back_when_anything_changed_that_made_them() {
    check(DOES_NOT);
}

#[test]
fn eight_samples_more_are_paid_for_and_are_rows_of_their_own() {
    let bench = Bench::new(&patient(2, Duration::ZERO));
    bench.replace("samples: 1", "samples: 8");
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 16);
    bench.replace("samples: 8", "samples: 16");
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 32);
    let rows = bench.mill.call(&["show", "answers", "--json", "-n", "0"]).exit(0).events();
    let ids: std::collections::BTreeSet<_> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
    assert_eq!((rows.len(), ids.len()), (32, 32));
}

#[test]
fn after_a_crash_only_what_was_in_flight_is_paid_again() {
    let bench = Bench::new(&patient(6, Duration::from_millis(150)));
    bench.replace("concurrency: 8", "concurrency: 1");
    let mut child = bench.command(&[]).spawn().expect("a child");
    while bench.server.count() < 4 {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("a running child");
    child.wait_with_output().expect("a child");
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 7, "six calls, and the one in flight again");
}

#[test]
fn labels_are_those_of_today_and_what_was_said_is_what_was_paid() {
    let bench = Bench::new(&patient(3, Duration::ZERO));
    bench.run(&[]).exit(0);
    let before = shown(&bench, "answers");
    bench.relabel(&json!({"id": "row", "golden_answers": ["Roma"], "question_type": "city", "level": 2}));
    let told = bench.run(&[]).exit(0);
    assert_eq!((bench.server.count(), told.summary()["calls"].as_u64()), (3, Some(0)));
    let after = shown(&bench, "answers");
    let ids: Vec<_> = after.iter().map(|row| (row["id"].clone(), row["question_id"].clone())).collect();
    assert_eq!(ids[2], ("row2@0".into(), "row2".into()));
    for (old, new) in before.iter().zip(&after) {
        assert_eq!((&new["golden_answers"], &new["question_type"]), (&json!(["Roma"]), &json!("city")));
        assert!(new["metadata"].to_string().contains("level"), "{new}");
        assert_eq!((&old["messages"], &old["question"]), (&new["messages"], &new["question"]));
    }
    let fresh = bench.elsewhere();
    fresh.run(&[]).exit(0);
    assert_eq!(bench.mill.artifacts(), fresh.mill.artifacts(), "equal to the bytes from an empty store");
}

#[test]
fn equal_questions_are_asked_one_by_one_and_come_back_in_any_order() {
    let bench = Bench::new(&patient(2, Duration::ZERO));
    let row = |id: &str, question: &str| format!("{}\n", json!({"id": id, "question": question, "golden_answers": []}));
    let all = [row("a", "q0"), row("b", "q0"), row("c", "q1")];
    bench.mill.write("questions.jsonl", &all.concat());
    bench.run(&[]).exit(0);
    assert_eq!((bench.paid(&["q0"]), bench.paid(&["q1"])), (2, 1));
    bench.mill.write("questions.jsonl", &[&*all[2], &*all[1], &*all[0]].concat());
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 3);
}

#[test]
fn two_nodes_that_send_the_same_pay_once_even_side_by_side() {
    let bench = Bench::new(&patient(6, Duration::from_millis(60)));
    bench.twice();
    bench.replace("tool_name: look", "max_turns: 4");
    bench.run(&["-j", "2"]).exit(0);
    assert_eq!(bench.server.count(), 6);
    assert_eq!(bench.run(&[]).exit(0).ran(), "");
}

#[test]
fn the_plan_counts_what_is_really_unpaid() {
    let bench = Bench::new(&patient(4, Duration::ZERO));
    bench.ask(&["q0", "q1", "q2"]);
    bench.run(&[]).exit(0);
    bench.ask(&["q0", "q1", "q2", "q3"]);
    bench.replace("samples: 1", "samples: 1\n      max_turns: 7");
    bench.run(&["questions"]).exit(0);
    let planned = bench.call(&["plan", "pipeline.yaml", "--json"]).exit(0).events();
    let rows = &planned.iter().find(|line| line["node"] == "answers").expect("the node")["rows"];
    assert_eq!((&rows["known"], &rows["to_compute"]), (&3.into(), &1.into()));
    assert_eq!(bench.server.count(), 3, "planning asks nobody");
}

fn shown(bench: &Bench, node: &str) -> Vec<serde_json::Value> {
    bench.mill.call(&["show", node, "--json", "-n", "0"]).exit(0).events()
}
