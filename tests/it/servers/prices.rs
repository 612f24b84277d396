//! Tests of budgets, prices and estimates: a run's cost is estimated before, counted during, and limited on request. A
//! call of the scripted server uses 100 prompt and 10 completion tokens.

use std::time::Duration;

use serde_json::Value;

use crate::harness::endpoint::{Bench, patient};

/// 0.002 per call.
const PRICES: &str = "timeout_seconds: 2, prices: {prompt: 10, completion: 100, currency: EUR}";

fn bench(questions: usize) -> Bench {
    let bench = Bench::new(&patient(questions, Duration::from_millis(5)));
    bench.replace("timeout_seconds: 2", PRICES);
    bench
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("q{number}")).collect()
}

fn ask(bench: &Bench, count: usize) {
    bench.ask(&names(count).iter().map(String::as_str).collect::<Vec<_>>());
}

/// Returns the line of `plan --json` about a node.
fn planned(bench: &Bench, node: &str) -> Value {
    let told = bench.call(&["plan", "pipeline.yaml", "--json"]).exit(0);
    told.events().into_iter().find(|line| line["node"] == node).expect("the node")
}

#[test]
fn a_budget_of_calls_is_never_exceeded_and_the_next_run_goes_on() {
    let bench = bench(12);
    let told = bench.run(&["--budget", "calls=5"]).exit(4);
    assert_eq!(bench.server.count(), 5);
    let events = told.events();
    assert!(events.iter().any(|event| event["event"] == "budget_used_up" && event["limit"] == "5 of 5 calls"));
    assert_eq!((&told.summary()["calls"], &told.summary()["budget"]), (&5.into(), &"5 of 5 calls".into()));
    assert_eq!((told.summary()["failed"].as_u64(), told.summary()["interrupted"].as_bool()), (Some(0), Some(false)));
    bench.run(&["--budget", "calls=5"]).exit(4);
    assert_eq!(bench.server.count(), 10);
    let told = bench.run(&["--budget", "calls=2"]).exit(0);
    assert_eq!((bench.server.count(), &told.summary()["calls"]), (12, &2.into()), "a budget that suffices exactly");
    assert_eq!(bench.run(&["--budget", "calls=0"]).exit(0).ran(), "", "cached rows cost nothing");
    assert_eq!(bench.mill.artifacts(), { undisturbed(12) });
}

fn undisturbed(questions: usize) -> std::collections::BTreeMap<String, String> {
    let bench = bench(questions);
    bench.run(&[]).exit(0);
    bench.mill.artifacts()
}

#[test]
fn budgets_of_tokens_and_cost_stop_with_what_was_in_flight() {
    for (budget, enough) in [("tokens=1.1k", 10), ("cost=0.02", 10)] {
        let bench = bench(40);
        let told = bench.run(&["--budget", budget]).exit(4);
        let paid = bench.server.count();
        assert!((enough..enough + 8).contains(&paid), "{budget}: {paid} calls");
        let cost = told.summary()["cost"].as_f64().unwrap_or_default();
        assert!((cost - 0.002 * paid as f64).abs() < 1e-12, "{cost} for {paid} calls");
        assert_eq!(told.summary()["currency"], "EUR");
        bench.run(&[]).exit(0);
        assert_eq!(bench.server.count(), 40, "nothing is paid twice");
    }
}

#[test]
fn the_budget_is_the_runs_and_not_each_nodes() {
    let bench = bench(6);
    bench.twice();
    bench.replace("name: endpoint\n", "name: endpoint\nbudget: {calls: 4}\n");
    bench.run(&["-j", "2"]).exit(4);
    assert_eq!(bench.server.count(), 4);
    bench.run(&["--budget", "calls=100"]).exit(0);
    assert_eq!(bench.server.count(), 12, "the command line overrides the file");
}

#[test]
fn wrong_budgets_are_refused_before_anything_runs() {
    let bench = bench(1);
    for wrong in ["calls=many", "euros=3", "calls", "cost=-1"] {
        let told = bench.run(&["--budget", wrong]).exit(2);
        assert!(told.stderr.contains(wrong), "{}", told.stderr);
    }
    bench.replace(", prices: {prompt: 10, completion: 100, currency: EUR}", "");
    let told = bench.run(&["--budget", "cost=1"]).exit(2);
    assert!(told.stderr.contains("prices"), "{}", told.stderr);
    bench.replace("name: endpoint\n", "name: endpoint\nbudget: {cals: 4, tokens: some}\n");
    let told = bench.run(&[]).exit(2);
    assert!(told.stdout.contains("cals") && told.stdout.contains("some"), "{}", told.stdout);
    assert_eq!(bench.server.count(), 0);
}

#[test]
fn the_plan_says_what_is_known_and_what_the_rest_will_cost() {
    let bench = bench(10);
    ask(&bench, 4);
    let before = planned(&bench, "answers");
    assert_eq!(
        (&before["status"], &before["rows"], &before["estimate"]),
        (&"decided later".into(), &Value::Null, &Value::Null)
    );
    bench.run(&["bm25", "questions"]).exit(0);
    let before = planned(&bench, "answers");
    assert_eq!((&before["rows"]["to_compute"], &before["estimate"]), (&4.into(), &Value::Null));
    let text = bench.call(&["plan", "pipeline.yaml"]).exit(0).stdout;
    assert!(text.contains("to compute") && text.contains("nothing yet"), "{text}");
    bench.run(&[]).exit(0);
    ask(&bench, 10);
    bench.run(&["questions"]).exit(0);
    let plan = planned(&bench, "answers");
    assert_eq!((&plan["rows"]["known"], &plan["rows"]["to_compute"]), (&4.into(), &6.into()));
    let estimate = &plan["estimate"];
    assert_eq!(
        (&estimate["calls"], &estimate["prompt_tokens"], &estimate["completion_tokens"]),
        (&6.into(), &600.into(), &60.into())
    );
    assert!((estimate["cost"].as_f64().unwrap_or_default() - 0.012).abs() < 1e-9, "{estimate}");
    assert_eq!((&estimate["currency"], &estimate["basis"]), (&"EUR".into(), &"its own rows".into()));
    bench.replace("samples: 1", "samples: 1\n      system_prompt: Be brief.");
    let other = planned(&bench, "answers");
    assert_eq!((&other["rows"]["known"], &other["rows"]["to_compute"]), (&0.into(), &10.into()));
    assert_eq!(
        (&other["estimate"]["calls"], &other["estimate"]["basis"]),
        (&10.into(), &"rows of the same model".into())
    );
    let text = bench.call(&["plan", "pipeline.yaml"]).exit(0).stdout;
    assert!(text.contains("~1,100") && text.contains("~0.0200 EUR"), "{text}");
    bench.replace("model: m,", "model: n,");
    assert_eq!(planned(&bench, "answers")["estimate"], Value::Null, "no rows of the other model are known");
    assert_eq!(bench.server.count(), 4, "planning asks nobody");
}

#[test]
fn prices_and_limits_are_no_part_of_any_key() {
    let bench = bench(2);
    bench.run(&[]).exit(0);
    bench.replace("prompt: 10", "prompt: 20");
    bench.replace("timeout_seconds: 2", "timeout_seconds: 2, stall_seconds: 5, limits: {concurrency: 1}");
    assert_eq!(bench.run(&[]).exit(0).ran(), "");
    bench.replace("prompt: 20", "prompt: -1");
    assert!(bench.run(&[]).exit(2).stdout.contains("must not be negative"));
}

#[test]
fn two_currencies_in_one_pipeline_are_refused() {
    let bench = bench(1);
    let text = bench.mill.read("pipeline.yaml");
    let start = text.find("  answers:").expect("the node");
    let end = text.find("  scores:").expect("the node");
    let second = text[start..end].replace("answers:", "others:").replace("EUR", "USD");
    bench.mill.write("pipeline.yaml", &format!("{}{second}{}", &text[..end], &text[end..]));
    assert!(bench.run(&[]).exit(2).stdout.contains("a run counts in one currency"));
}

#[test]
fn a_limit_of_cost_without_prices_is_told_before_a_run() {
    let mill = crate::harness::project::Mill::new();
    mill.write("rows.jsonl", "{\"id\": \"a\", \"text\": \"x\"}\n");
    let nodes = "nodes:\n  rows: {op: read, with: {path: rows.jsonl, as: document}}\n";
    for budget in ["{cost: 5}", "{per_day: {cost: 10}}"] {
        mill.write("pipeline.yaml", &format!("name: n\nbudget: {budget}\n{nodes}"));
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        assert!(
            told.contains("a budget of cost needs prices") && told.contains("give the endpoint `prices:"),
            "{told}"
        );
    }
    mill.write("pipeline.yaml", &format!("name: n\nbudget: {{calls: 5}}\n{nodes}"));
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
}
