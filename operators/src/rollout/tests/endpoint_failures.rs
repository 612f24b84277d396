//! Failures between the client and a server: which are retried, which are rejected, and with which kind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use searchmill_engine::operator::{AsyncMapKernel, Context, ContextParts, FailureKind, Kernel, RetryPolicy};
use searchmill_fixtures::openai_server::{answer, message, search, status, status_retry_after};

use super::*;

/// Questions that succeed in the end.
fn answerable() -> Vec<(&'static str, Vec<Step>)> {
    vec![
        ("fine", vec![search(&["Italy"]), answer("Rome")]),
        ("busy once", vec![status(429), answer("Rome")]),
        ("busy with a wish", vec![status_retry_after(429, "0.05"), search(&["Italy"]), answer("Rome")]),
        ("ill once", vec![status(500), search(&["Italy"]), status(503), answer("Rome")]),
        ("slow once", vec![slow(), answer("Rome")]),
        ("cut off once", vec![broken(), answer("Rome")]),
    ]
}

/// Questions that fail, with the kind of reject and the number of attempts.
fn hopeless() -> Vec<(&'static str, Step, (&'static str, i32))> {
    let body = |text: &str| Step::Body(text.to_owned());
    vec![
        ("always busy", status(429), ("rate_limited", 3)),
        ("always busy until 1994", status_retry_after(429, "Sun, 06 Nov 1994 08:50:00 GMT"), ("rate_limited", 3)),
        ("always ill", status(500), ("server_error", 3)),
        ("always slow", slow(), ("timeout", 3)),
        ("gateway timeout", status(408), ("timeout", 3)),
        ("broken JSON", body("{\"choices\": [{\"mess"), ("bad_response", 3)),
        ("no choices", body("{\"choices\": []}"), ("bad_response", 3)),
        ("error as success", body("{\"error\": {\"message\": \"no GPU\"}}"), ("bad_response", 3)),
        ("cut off", broken(), ("connection", 3)),
        ("too long", status(400), ("refused", 1)),
        ("no such key", status(401), ("refused", 1)),
    ]
}

fn slow() -> Step {
    Step::After(Duration::from_secs(20), Box::new(answer("late")))
}

fn broken() -> Step {
    Step::BreakOff(message("<answer>Rome</answer> and some more words"))
}

#[test]
fn failures_that_pass_are_tried_again_and_the_others_are_rejects_of_the_right_kind() {
    let mut script = answerable();
    script.extend(hopeless().into_iter().map(|(question, step, _)| (question, vec![step])));
    let mut bench = Bench::new(&script).endpoint("timeout_seconds", json!(2));
    bench.harness.concurrency = script.len();
    // Failing and succeeding questions are interleaved in a fixed order.
    let questions: Vec<_> = script.iter().rev().map(|(question, _)| *question).collect();
    let outcome = bench.run(&questions);
    let rows = outcome.read::<Trajectory>("trajectories");
    let answered: Vec<_> = rows.iter().map(|row| row.question.as_str()).collect();
    assert_eq!(answered, answerable().iter().rev().map(|(question, _)| *question).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row.prediction == "Rome"));
    let rejects = rejects(&outcome);
    let kinds = rejects.iter().map(|(id, (kind, tries, _))| (id.as_str(), (kind.as_str(), *tries)));
    let wanted = hopeless().into_iter().map(|(question, _, kind)| (question, kind));
    assert_eq!(kinds.collect::<BTreeMap<_, _>>(), wanted.collect::<BTreeMap<_, _>>());
    let detail = |id: &str| rejects[id].2.clone().unwrap_or_default();
    assert!(detail("too long").contains("scripted 400") && detail("no choices").contains("choices"));
    assert_eq!((bench.server.requests("always ill").len(), bench.server.requests("too long").len()), (3, 1));
}

#[test]
fn broken_streams_are_failures_not_short_answers() {
    let text = || message("<answer>Rome</answer> and some more words to be cut off in the middle");
    let bench = Bench::new(&[
        ("cut off", vec![Step::BreakOff(text())]),
        ("ended early", vec![Step::EndEarly(text())]),
        ("ended early once", vec![Step::EndEarly(text()), Step::Say(text())]),
        ("no events", vec![Step::Body("{}".to_owned())]),
    ])
    .endpoint("stream", json!(true));
    let outcome = bench.run(&["cut off", "ended early", "ended early once", "no events"]);
    let rows = outcome.read::<Trajectory>("trajectories");
    assert_eq!(rows.iter().map(|row| row.question.as_str()).collect::<Vec<_>>(), ["ended early once"]);
    let rejects = rejects(&outcome);
    let kinds: Vec<_> = rejects.iter().map(|(id, (kind, tries, _))| (id.as_str(), kind.as_str(), *tries)).collect();
    let wanted = [("cut off", "connection", 3), ("ended early", "bad_response", 3), ("no events", "bad_response", 3)];
    assert_eq!(kinds, wanted);
}

#[test]
fn nobody_listening_is_a_connection_failure() {
    let bench = Bench::new(&[]).endpoint("base_url", json!("http://127.0.0.1:1/v1"));
    let rejects = rejects(&bench.run(&["Q"]));
    assert_eq!((rejects["Q"].0.as_str(), rejects["Q"].1), ("connection", 3));
}

#[test]
fn what_was_paid_before_a_failure_is_kept() {
    let bench = Bench::new(&[("Q", vec![search(&["Italy"]), search(&["France"]), status(400)])]);
    let context = bench.harness.context();
    let failure = context.block_on(open(&bench).run(&row("Q"), 0, &context)).expect_err("a failure");
    assert_eq!((failure.kind, failure.attempts), (FailureKind::Refused, 1));
    let usage = failure.usage;
    assert_eq!((usage.calls, usage.prompt_tokens, usage.completion_tokens), (3, 200, 20));
}

#[test]
fn a_server_that_asks_for_patience_gets_it() {
    let mut bench = Bench::new(&[("Q", vec![status_retry_after(429, "0.4"), answer("Rome")])]);
    bench.harness.retry = RetryPolicy { backoff: Duration::from_millis(1), ..RetryPolicy::default() };
    let started = Instant::now();
    assert_eq!(bench.one("Q").prediction, "Rome");
    assert!(started.elapsed() >= Duration::from_millis(400));
}

#[test]
fn the_run_can_be_stopped_between_turns_and_while_waiting() {
    let bench = Bench::new(&[("Q", vec![status_retry_after(503, "50"), answer("Rome")])]);
    let kernel = open(&bench);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cancelled = Arc::new(AtomicBool::new(false));
    let context = context(&runtime, Arc::clone(&cancelled));
    let question = row("Q");
    let started = Instant::now();
    let stopped = runtime.block_on(async {
        let stop = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            cancelled.store(true, Ordering::Relaxed);
        };
        futures::join!(kernel.run(&question, 0, &context), stop).0.expect_err("a failure")
    });
    assert_eq!((stopped.kind, stopped.usage.calls), (FailureKind::Cancelled, 1));
    assert!(started.elapsed() < Duration::from_secs(20), "it did not wait the 50 s out");
    let again = runtime.block_on(kernel.run(&question, 0, &context)).expect_err("a failure");
    assert_eq!((again.kind, again.usage.calls), (FailureKind::Cancelled, 0));
}

#[test]
fn rows_that_are_no_questions_are_rejects() {
    let rejects = rejects(&Bench::new(&[]).run(&[" "]));
    assert_eq!(rejects.values().map(|(kind, ..)| kind.as_str()).collect::<Vec<_>>(), ["data"]);
}

fn row(text: &str) -> arrow::array::RecordBatch {
    searchmill_schemas::to_batch(&[question(text, text)]).expect("a row")
}

fn open(bench: &Bench) -> Arc<dyn AsyncMapKernel> {
    let bound = (entry::<Rollout>().bind)(json!({"policy": {"endpoint": bench.endpoint}})).expect("params");
    let mut given = inputs([("questions", rows_input::<Question>(&[]))]);
    given.bind("search", bm25(&bench.harness, &small_corpus()));
    match bound.open(&given, &bench.harness.context()).expect("a kernel") {
        Kernel::AsyncMap(kernel) => kernel,
        _ => panic!("a row kernel"),
    }
}

/// A context with a cancel flag.
fn context(runtime: &tokio::runtime::Runtime, cancelled: Arc<AtomicBool>) -> Context {
    let http = reqwest::Client::new();
    Context::new(ContextParts {
        cancelled,
        threads: 2,
        concurrency: 4,
        ..ContextParts::bare(&std::env::temp_dir(), runtime.handle(), http)
    })
}
