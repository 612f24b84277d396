//! Tests of paid rows: failed rows become rejects, known rows are never asked again.

use std::collections::BTreeMap;
use std::time::Duration;

use searchmill_fixtures::openai_server::{Step, answer, message, search, status, status_retry_after};
use serde_json::Value;

use crate::harness::endpoint::{Bench, document, patient};

fn script(steps: &[(&str, Vec<Step>)]) -> Vec<(String, Vec<Step>)> {
    steps.iter().map(|(question, steps)| ((*question).to_owned(), steps.clone())).collect()
}

/// Returns the rejects of the last run from `show --rejects`: id to kind.
fn rejects(bench: &Bench) -> BTreeMap<String, String> {
    let told = bench.mill.call(&["show", "answers", "--rejects", "--json", "-n", "0"]).exit(0);
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    told.events().iter().map(|row| (text(row, "id"), text(row, "kind"))).collect()
}

fn answered(bench: &Bench) -> Vec<String> {
    let told = bench.mill.call(&["show", "answers", "--json", "-n", "0"]).exit(0);
    told.events().iter().map(|row| row["question"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn right_rows_succeed_and_the_rest_are_rejects() {
    let late = || Step::After(Duration::from_secs(20), Box::new(answer("late")));
    let bench = Bench::new(&script(&[
        ("fine", vec![answer("Rome")]),
        ("searches", vec![search(&["capital of Italy"]), answer("Rome")]),
        ("searches twice at once", vec![search(&["Italy", "Rome"]), answer("Rome")]),
        ("busy once", vec![status_retry_after(429, "0.05"), answer("Rome")]),
        ("ill once", vec![status(500), answer("Rome")]),
        ("always busy", vec![status(429)]),
        ("always ill", vec![status(500)]),
        ("always slow", vec![late()]),
        ("broken JSON", vec![Step::Body("{\"choices\": [{\"mess".to_owned())]),
        ("cut off", vec![Step::BreakOff(message("<answer>Rome</answer> and more"))]),
        ("refused", vec![status(400)]),
    ]));
    let told = bench.run(&[]).exit(3);
    assert_eq!(answered(&bench), ["fine", "searches", "searches twice at once", "busy once", "ill once"]);
    let expected = [
        ("always busy", "rate_limited"),
        ("always ill", "server_error"),
        ("always slow", "timeout"),
        ("broken JSON", "bad_response"),
        ("cut off", "connection"),
        ("refused", "refused"),
    ];
    assert_eq!(rejects(&bench), expected.map(|(id, kind)| (id.to_owned(), kind.to_owned())).into());
    assert_eq!(told.summary()["dead_letters"], 6);
    assert!(told.ran().contains("scores"), "later nodes use the right rows");
}

#[test]
fn truncated_streams_are_rejects() {
    let text = || message("<answer>Rome</answer> and some more words to be cut off");
    let bench = Bench::new(&script(&[
        ("whole", vec![Step::Say(text())]),
        ("ended early", vec![Step::EndEarly(text())]),
        ("cut off once", vec![Step::BreakOff(text()), Step::Say(text())]),
    ]));
    bench.replace("timeout_seconds: 2", "timeout_seconds: 2, stream: true");
    bench.run(&[]).exit(3);
    assert_eq!(answered(&bench), ["whole", "cut off once"]);
    assert_eq!(rejects(&bench).into_keys().collect::<Vec<_>>(), ["ended early"]);
}

#[test]
fn a_rerun_pays_for_failed_rows_only() {
    let script = script(&[
        ("good", vec![answer("Rome")]),
        ("better", vec![answer("Rome")]),
        // Two attempts in the first run, one in the second.
        ("bad at first", vec![status(500), status(500), answer("Rome")]),
    ]);
    let bench = Bench::new(&script);
    bench.run(&[]).exit(3);
    assert_eq!(bench.paid(&["good", "better", "bad at first"]), 4);
    let again = bench.run(&[]).exit(0);
    assert_eq!(again.reasons("answers"), ["rejects_retried"]);
    assert_eq!((bench.paid(&["good", "better"]), bench.paid(&["bad at first"])), (2, 3));
    assert_eq!(answered(&bench), ["good", "better", "bad at first"]);
    assert_eq!(bench.run(&[]).exit(0).ran(), "");
}

#[test]
fn rejects_do_not_keep_later_nodes_from_being_run_alone() {
    let bench = Bench::new(&script(&[("good", vec![answer("Rome")]), ("bad", vec![status(400)])]));
    bench.run(&["answers"]).exit(3);
    assert_eq!(bench.run(&["--only", "scores"]).exit(0).ran(), "scores");
    assert_eq!(bench.paid(&["good", "bad"]), 2);
}

#[test]
fn on_error_fail_ends_the_node_and_keeps_what_was_paid() {
    let mut steps = patient(6, Duration::ZERO);
    steps.push(("bad".to_owned(), vec![status(400)]));
    let mut bench = Bench::new(&steps);
    bench.replace("    retry:", "    on_error: fail\n    retry:");
    let told = bench.run(&[]).exit(1);
    assert!(told.stdout.contains("row `bad` failed (refused, attempts: 1)"), "{}", told.stdout);
    assert_eq!(told.nodes("node_skipped").into_iter().collect::<Vec<_>>(), ["scores"]);
    let names: Vec<String> = (0..6).map(|number| format!("q{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(bench.paid(&names), 6);
    steps.pop();
    steps.push(("bad".to_owned(), vec![answer("Rome")]));
    bench.serve(&steps);
    bench.run(&[]).exit(0);
    assert_eq!((bench.paid(&names), bench.paid(&["bad"])), (0, 1));
}

#[test]
fn on_error_drop_passes_over_and_is_not_taken_for_whole() {
    let bench = Bench::new(&script(&[("good", vec![answer("Rome")]), ("bad", vec![status(400)])]));
    bench.replace("    retry:", "    on_error: drop\n    retry:");
    bench.run(&[]).exit(0);
    assert_eq!(answered(&bench), ["good"]);
    assert!(rejects(&bench).is_empty());
    assert_eq!(bench.run(&[]).exit(0).ran(), "");
    bench.replace("on_error: drop", "on_error: fail");
    bench.run(&[]).exit(1);
    bench.replace("on_error: fail", "on_error: dead_letter");
    bench.run(&[]).exit(3);
    assert_eq!((bench.paid(&["good"]), bench.paid(&["bad"])), (1, 3));
}

#[test]
fn only_what_is_new_is_paid_for() {
    let mut bench = Bench::new(&patient(5, Duration::ZERO));
    let paid = |bench: &Bench| bench.paid(&["q0", "q1", "q2", "q3", "q4"]);
    bench.ask(&["q0", "q1", "q2"]);
    bench.run(&[]).exit(0);
    assert_eq!(paid(&bench), 3);
    bench.ask(&["q0", "q3", "q1", "q2"]);
    bench.run(&[]).exit(0);
    assert_eq!((paid(&bench), bench.paid(&["q3"])), (4, 1), "one question added in between");
    assert_eq!(answered(&bench), ["q0", "q3", "q1", "q2"]);
    bench.ask(&["q2", "q1", "q3"]);
    bench.run(&[]).exit(0);
    assert_eq!(paid(&bench), 4, "one removed, the rest reordered");
    assert_eq!(answered(&bench), ["q2", "q1", "q3"]);
    bench.api_key = "second";
    bench.replace("answers:", "rollouts:");
    bench.replace("trajectories: answers", "trajectories: rollouts");
    bench.replace("concurrency: 8", "concurrency: 2");
    bench.replace("timeout_seconds: 2", "timeout_seconds: 3");
    assert_eq!(bench.run(&[]).exit(0).ran(), "", "rotated key, renamed node, other resources");
    bench.ask(&["q2", "q1", "q3", "q4"]);
    bench.run(&[]).exit(0);
    let last = bench.server.requests("q4");
    assert_eq!(last[0].authorization.as_deref(), Some("Bearer second"));
    assert_eq!(paid(&bench), 5);
}

#[test]
fn more_samples_pay_for_the_new_ones_only() {
    let bench = Bench::new(&patient(3, Duration::ZERO));
    let paid = || bench.paid(&["q0", "q1", "q2"]);
    bench.replace("samples: 1", "samples: 2");
    bench.run(&[]).exit(0);
    assert_eq!(paid(), 6);
    bench.replace("samples: 2", "samples: 4");
    assert_eq!(bench.run(&[]).exit(0).reasons("answers"), ["param_changed"]);
    assert_eq!((paid(), answered(&bench).len()), (12, 12));
    bench.replace("samples: 4", "samples: 3");
    bench.run(&[]).exit(0);
    assert_eq!((paid(), answered(&bench).len()), (12, 9));
}

#[test]
fn another_prompt_or_model_is_paid_for_again_and_an_index_from_where_it_is_seen() {
    let searching = || vec![search(&["capital of Italy"]), answer("Rome")];
    let bench = Bench::by_turn(&script(&[("q0", searching()), ("q1", searching())]));
    let paid = || bench.paid(&["q0", "q1"]);
    bench.run(&[]).exit(0);
    assert_eq!(paid(), 4);
    bench.replace("samples: 1", "samples: 1\n      system_prompt: Be brief.");
    bench.run(&[]).exit(0);
    assert_eq!(paid(), 8, "another prompt");
    bench.replace("model: m,", "model: n,");
    bench.run(&[]).exit(0);
    assert_eq!(paid(), 12, "another model");
    bench.mill.write("documents.jsonl", &document("Rome is the capital of Italy, on the Tiber."));
    let told = bench.run(&[]).exit(0);
    assert_eq!((paid(), told.summary()["calls"].as_u64()), (14, Some(2)), "another index: the first turns are cached");
    bench.mill.write("documents.jsonl", &document("Rome is the capital of Italy."));
    bench.run(&[]).exit(0);
    assert_eq!(paid(), 14, "the first index again");
}

/// The five kinds of failing calls in the test below, with the kind of reject of each.
fn ways() -> Vec<(&'static str, Step)> {
    let text = || message("<answer>Rome</answer> and some more words to be cut off in the middle");
    vec![
        ("server_error", status(500)),
        ("timeout", Step::After(Duration::from_secs(20), Box::new(answer("late")))),
        ("connection", Step::BreakOff(text())),
        ("bad_response", Step::Body("{\"choices\": [{\"mess".to_owned())),
        ("bad_response", Step::EndEarly(text())),
    ]
}

#[test]
fn thirty_percent_of_calls_failing_in_five_ways_loses_nothing() {
    let ways = ways();
    let failing = |number: usize| (number % 10 < 3).then(|| &ways[(number / 10 + number) % ways.len()]);
    let steps = |number: usize| match failing(number) {
        // Both attempts of the first run fail; later attempts succeed.
        Some((_, step)) => vec![step.clone(), step.clone(), answer("Rome")],
        None => vec![answer("Rome")],
    };
    let script: Vec<_> = (0..50).map(|number| (format!("q{number}"), steps(number))).collect();
    let bench = Bench::new(&script);
    bench.replace("timeout_seconds: 2", "timeout_seconds: 1, stream: true");
    bench.replace("concurrency: 8", "concurrency: 16");
    let told = bench.run(&[]).exit(3);
    let wanted = (0..50).filter_map(|number| Some((format!("q{number}"), failing(number)?.0.to_owned())));
    assert_eq!(rejects(&bench), wanted.collect());
    assert_eq!((told.summary()["dead_letters"].as_u64(), answered(&bench).len()), (Some(15), 35));
    assert_eq!(bench.server.count(), 35 + 2 * 15);
    let told = bench.call(&["run", "pipeline.yaml", "--only", "scores"]).exit(0);
    assert!(told.stderr.contains("cached"), "later nodes used the right rows: {}", told.stderr);
    let again = bench.run(&[]).exit(0);
    assert_eq!(again.reasons("answers"), ["rejects_retried"]);
    assert_eq!((bench.server.count(), again.summary()["calls"].as_u64()), (35 + 3 * 15, Some(15)));
    assert_eq!(answered(&bench), script.iter().map(|(question, _)| question.clone()).collect::<Vec<_>>());
}

#[test]
fn the_text_of_a_run_says_how_many_rows_failed_and_where_they_are() {
    let bench = Bench::new(&script(&[("good", vec![answer("Rome")]), ("bad", vec![status(400)])]));
    let told = bench.call(&["run", "pipeline.yaml"]).exit(3);
    let words = format!("{}{}", told.stdout, told.stderr);
    assert!(words.contains("1 row failed") && words.contains("show NODE --rejects"), "{words}");
    let shown = bench.mill.call(&["show", "answers", "--rejects"]).exit(0).stdout;
    assert!(shown.contains("refused") && shown.contains("400"), "{shown}");
}

#[test]
fn retry_rejects_runs_failed_rows_and_what_depends_on_them_and_nothing_else() {
    let mut bench = Bench::new(&script(&[("good", vec![answer("Rome")]), ("bad", vec![status(400)])]));
    bench.replace("    retry:", "    on_error: drop\n    retry:");
    let nothing = bench.run(&["--retry-rejects"]).exit(2);
    assert!(nothing.stderr.contains("no node of the pipeline has rows that failed"), "{}", nothing.stderr);
    bench.run(&[]).exit(0);
    assert_eq!(bench.run(&[]).exit(0).ran(), "", "dropped rows are not retried");
    bench.serve(&script(&[("good", vec![answer("Rome")]), ("bad", vec![answer("Rome")])]));
    let told = bench.run(&["--retry-rejects"]).exit(0);
    assert_eq!((told.ran(), bench.server.count()), ("answers scores".to_owned(), 1));
    assert_eq!(answered(&bench), ["good", "bad"]);
    bench.run(&["--retry-rejects"]).exit(2);
}
