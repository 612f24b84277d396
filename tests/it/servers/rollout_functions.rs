//! Tests of functions that a rollout calls: the reranker and the tool `python`.

use std::time::Duration;

use searchmill_fixtures::openai_server::{OpenAiServer, Step, answer, call, search};
use serde_json::Value;

use crate::harness::project::{Mill, killed_when};

/// Reverses what was found, and counts its calls.
const RERANK: &str = r#"import os
from weights import sign

def rerank(query, documents):
    with open(os.path.join(os.path.dirname(__file__), "calls.txt"), "a") as calls:
        calls.write(query + "\n")
    if "fail" in query:
        raise ValueError("no model for " + query)
    if "none" in query:
        return []
    return {"scores": [sign * document["score"] for document in documents]}
"#;

const PIPELINE: &str = r#"name: reranked
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 50, count: words}}
  bm25: {op: index, from: chunks, with: {kind: bm25}}
  questions: {op: read, with: {path: questions.jsonl, as: question}}
  rollouts:
    op: rollout
    from: {questions: questions, search: bm25}
    with:
      policy: {endpoint: {base_url: "URL", model: m}}
      search: {top_k: 3}
      rerank: {python: "rerank.py:rerank", keep: 2}
    resources: {concurrency: 4}
"#;

fn mill(server: &OpenAiServer, questions: usize) -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &PIPELINE.replace("URL", &server.base_url()));
    let text = |number: usize| "tower ".repeat(number) + "of the old town by the river";
    let document = |number| format!("{{\"id\": \"d{number}\", \"text\": \"{}\"}}\n", text(number));
    mill.write("documents.jsonl", &(1..=4).map(document).collect::<String>());
    let question = |number| {
        format!("{{\"id\": \"q{number}\", \"question\": \"what is {number}\", \"golden_answers\": [\"Rome\"]}}\n")
    };
    mill.write("questions.jsonl", &(0..questions).map(question).collect::<String>());
    mill.write("rerank.py", RERANK);
    mill.write("weights.py", "sign = -1\n");
    mill
}

fn server(questions: usize, steps: impl Fn(usize) -> Vec<Step>) -> OpenAiServer {
    OpenAiServer::start_by_turn((0..questions).map(|number| (format!("what is {number}"), steps(number))).collect())
}

fn rollouts(mill: &Mill) -> Vec<Value> {
    let rows = mill.call(&["show", "rollouts", "-n", "0", "--format", "jsonl"]).exit(0).stdout;
    rows.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

/// Documents and texts of the tool messages of a rollout.
fn shown(rollout: &Value) -> Vec<(Vec<String>, String)> {
    let messages = rollout["messages"].as_array().expect("messages").iter();
    let tools = messages.filter(|message| message["role"] == "tool");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let seen = |message: &Value| {
        let seen = message["observations"].as_array().cloned().unwrap_or_default();
        (seen.iter().map(|seen| text(&seen["document_id"])).collect(), text(&message["content"]))
    };
    tools.map(seen).collect()
}

fn calls(mill: &Mill) -> usize {
    std::fs::read_to_string(mill.path("calls.txt")).map_or(0, |calls| calls.lines().count())
}

#[test]
fn the_model_sees_the_new_order_and_an_audit_derives_it_from_the_record() {
    let server = server(2, |_| vec![search(&["tower"]), answer("Rome")]);
    let mill = mill(&server, 2);
    mill.run(&[]).exit(0);
    for rollout in rollouts(&mill) {
        assert_eq!(shown(&rollout)[0].0, ["d2", "d3"], "the best of three is last: the function turns them round");
    }
    assert_eq!(calls(&mill), 1, "two rollouts searched for the same");
    let told = mill.call(&["audit", "latest", "--rollouts"]).exit(6).stdout;
    assert!(told.contains("it runs a program"), "{told}");
    let told = mill.call(&["audit", "latest", "--rollouts", "--allow-programs"]).exit(0).stdout;
    assert!(told.contains("2 rows match the cached answers"), "{told}");
    assert_eq!(calls(&mill), 1, "an audit calls no function");
    // Nothing runs again; a changed module does, and pays for no first turn.
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    let paid = server.count();
    mill.write("weights.py", "sign = 1\n");
    assert_eq!(mill.run(&[]).exit(0).ran(), "rollouts");
    assert_eq!((calls(&mill), server.count()), (2, paid + 2));
    assert_eq!(shown(&rollouts(&mill)[0])[0].0, ["d4", "d3"]);
    mill.write("pipeline.yaml", &mill.read("pipeline.yaml").replace("keep: 2", "keep: 3"));
    mill.run(&[]).exit(0);
    assert_eq!(calls(&mill), 2, "the same call, of which more is shown");
}

#[test]
fn a_reranker_that_fails_is_an_error_and_never_an_empty_result() {
    let queries = ["tower fail", "tower none"];
    let server = server(1, |_| vec![search(&queries), answer("Rome")]);
    let mill = mill(&server, 1);
    let told = mill.run(&[]).exit(0);
    let warning = "warning: 2 of 2 calls of `search` failed: 1 × the reranker failed: ValueError: no model";
    assert!(told.stdout.contains(warning), "{}", told.stdout);
    assert!(told.stdout.contains("1 × the reranker failed: it returned no document"), "{}", told.stdout);
    let rollout = &rollouts(&mill)[0];
    assert_eq!(rollout["tool_errors"], 2);
    let shown = shown(rollout);
    assert!(shown[0].0.is_empty() && shown[0].1.contains("the reranker failed: ValueError: no model for tower fail"));
    assert!(shown[1].1.contains("the reranker failed: it returned no document"), "{}", shown[1].1);
    assert_eq!(calls(&mill), 2, "an exception is repeated only if `retry` says so");
    let told = mill.call(&["audit", "latest", "--rollouts", "--allow-programs"]).exit(0).stdout;
    assert!(told.contains("1 rows match the cached answers"), "{told}");
    // A file that is no Python fails the node before anything is paid for.
    mill.write("rerank.py", "def rerank(:\n");
    let paid = server.count();
    let told = mill.run(&[]).exit(2);
    assert!(told.stdout.contains("rerank.py:1: "), "{told:?}");
    assert_eq!(server.count(), paid);
}

#[test]
fn kill_9_in_a_rollout_with_a_reranker_calls_nothing_twice() {
    const KILLS: usize = 2;
    const QUESTIONS: usize = 16;
    let slow = |step: Step| Step::After(Duration::from_millis(60), Box::new(step));
    let steps = |number: usize| vec![slow(search(&[&format!("tower {number}")])), slow(answer("Rome"))];
    let calm = server(QUESTIONS, steps);
    let undisturbed = mill(&calm, QUESTIONS);
    undisturbed.run(&[]).exit(0);
    assert_eq!(calls(&undisturbed), QUESTIONS);
    let again = calm.again();
    let mill = mill(&again, QUESTIONS);
    for _ in 0..KILLS {
        let asked = again.count();
        killed_when(&mut mill.command(&["run", "pipeline.yaml", "--json"]), || again.count() >= asked + 12);
    }
    mill.run(&[]).exit(0);
    assert_eq!(mill.artifacts(), undisturbed.artifacts());
    assert!(calls(&mill) <= QUESTIONS + 4 * KILLS, "{} calls of the function", calls(&mill));
    assert!(again.count() <= calm.count() + 4 * KILLS, "{} calls of the model", again.count());
}

#[test]
fn a_function_whose_file_changes_is_not_called_again_for_nothing() {
    let server = server(1, |_| vec![search(&["tower"]), answer("Rome")]);
    let mill = mill(&server, 1);
    let changing = r##"
    if not os.path.exists(os.path.join(os.path.dirname(__file__), "changed.txt")):
        open(os.path.join(os.path.dirname(__file__), "changed.txt"), "w").close()
        with open(__file__, "a") as code:
            code.write("# changed\n")
    if "fail" in query:"##;
    mill.write("rerank.py", &RERANK.replace("\n    if \"fail\" in query:", changing));
    mill.write(
        "pipeline.yaml",
        &mill.read("pipeline.yaml").replace("resources:", "retry: {max_attempts: 5}\n    resources:"),
    );
    mill.run(&[]).exit(0);
    assert_eq!(calls(&mill), 2, "the call during which the file changed, and the one of the next attempt of the node");
    assert_eq!(shown(&rollouts(&mill)[0])[0].0, ["d2", "d3"]);
}

#[test]
fn mistakes_are_told_at_their_place() {
    let server = server(1, |_| vec![answer("Rome")]);
    let mill = mill(&server, 1);
    let whole = mill.read("pipeline.yaml");
    for (from, to, message) in [
        ("rerank.py:rerank", "rerank.py", "names no function"),
        ("keep: 2", "keep: 0", "must be at least 1"),
        (", search: bm25}", "}", "there is no search whose passages it could order"),
        ("keep: 2}", "keep: 2}\n      max_observation_tokens: 50\n      count: words", "has no place beside `rerank`"),
    ] {
        assert!(whole.contains(from), "{from}");
        mill.write("pipeline.yaml", &whole.replace(from, to));
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        assert!(told.contains(message), "{told}");
    }
}

#[test]
fn a_function_is_a_tool_and_each_different_call_is_made_once() {
    let convert = call("convert", r#"{"value": 3, "unit": "feet"}"#);
    let wrong = call("convert", r#"{"value": 3, "unit": "ells"}"#);
    let server = server(2, move |_| vec![convert.clone(), wrong.clone(), answer("0.914 m")]);
    let mill = mill(&server, 2);
    mill.write(
        "units.py",
        r#"import os

def convert(value, unit, note=None, *, digits):
    with open(os.path.join(os.path.dirname(__file__), "calls.txt"), "a") as calls:
        calls.write(unit + "\n")
    assert note is None
    return {"text": "%s m" % round(value * {"feet": 0.3048}[unit], digits)}
"#,
    );
    let tool = "tools:
        - python:
            name: convert
            description: Converts lengths to metres.
            function: units.py:convert
            arguments: {digits: 3}
            parameters: {type: object, required: [value, unit], properties: {value: {type: number}, unit: {type: string}, note: {type: string}}}";
    let pipeline = mill.read("pipeline.yaml").replace("rerank: {python: \"rerank.py:rerank\", keep: 2}", tool);
    mill.write("pipeline.yaml", &pipeline);
    let told = mill.run(&[]).exit(0);
    assert!(told.stdout.contains("warning: 2 of 4 calls of `convert` failed: KeyError: 'ells'"), "{}", told.stdout);
    for rollout in rollouts(&mill) {
        let shown = shown(&rollout);
        assert_eq!(shown[0].1, "0.914 m");
        assert!(shown[1].1.contains("`convert` failed: KeyError: 'ells'"), "{}", shown[1].1);
        assert_eq!(rollout["tool_errors"], 1);
    }
    assert_eq!(calls(&mill), 3, "an answer is remembered for all rollouts, a failure for its own");
    let told = mill.call(&["audit", "latest", "--rollouts", "--allow-programs"]).exit(0).stdout;
    assert!(told.contains("2 rows match the cached answers") && told.contains("observations of tools"), "{told}");
}

#[test]
fn a_function_that_the_file_does_not_have_is_told_before_anything_is_paid() {
    let server = server(1, |_| vec![answer("Rome")]);
    let mill = mill(&server, 1);
    let fine = mill.read("pipeline.yaml");
    let written = "rerank: {python: \"rerank.py:rerank\", keep: 2}";
    mill.write("pipeline.yaml", &fine.replace(written, "rerank: {python: \"rerank.py:rerankk\"}"));
    let told = mill.call(&["run", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("pipeline.yaml:13:35") && told.contains("did you mean `rerank`?"), "{told}");
    let tool = "tools: [{python: {name: look, description: Looks., parameters: {type: object}, function: \"rerank.py:look\"}}]";
    mill.write("pipeline.yaml", &fine.replace(written, tool));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("pipeline.yaml:13:") && told.contains("has no function `look`"), "{told}");
    assert!(told.contains("functions in it: `rerank`"), "{told}");
    assert_eq!(server.count(), 0);
}
