//! `searchmill test`: given rows, a scripted model, expected rows.

use searchmill_fixtures::openai_server::{OpenAiServer, Script};
use serde_json::Value;

use crate::mill::{Mill, Told};

/// The file does not exist, and the endpoint must never be called.
const PIPELINE: &str = r#"name: judged
params: {threshold: 0.5}
nodes:
  questions: {op: read, with: {path: nosuch.jsonl, as: question}}
  answers:
    op: map
    from: questions
    with:
      prompt: "Answer: {{ question }}"
      output: {text: text, score: float}
      repairs: 1
      policy: {endpoint: {base_url: "ENDPOINT", model: m, api_key: "${secret:NOT_SET_ANYWHERE}"}}
    checks: [{rows: {min: 100}}]
  good: {op: filter, from: answers, with: {where: "score >= ${params.threshold}"}}
  file: {op: write, from: good, with: {path: out/good.jsonl}}
tests:
TESTS"#;

fn project(server: &OpenAiServer, tests: &str) -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &PIPELINE.replace("ENDPOINT", &server.base_url()).replace("TESTS", tests));
    mill
}

fn outcome(told: &Told, test: &str) -> Value {
    told.events().into_iter().find(|event| event["test"] == test).unwrap_or_else(|| panic!("{test}: {}", told.stdout))
}

const GIVEN: &str = "    given:
      questions:
      - {id: a, question: \"capital of France?\"}
      - {question: \"capital of Italy?\"}
    model:
    - {when: France, answer: {text: Paris, score: 0.9}}
    - {when: Italy, answers: ['no JSON', '{\"text\": \"Rome\", \"score\": 0.1}']}
";

#[test]
fn a_test_gives_rows_plays_the_model_and_compares_rows() {
    let server = OpenAiServer::start(Script::new());
    let tests = format!(
        "  - name: threshold\n{GIVEN}    expect:\n      answers: [{{id: a, text: Paris, score: 0.9}}, {{id: row-2, text: \
         Rome}}]\n      good: [{{question: \"capital of France?\", score: 0.90000001}}]\n  - name: all\n    params: \
         {{threshold: 0}}\n{GIVEN}    expect:\n      good: {{unordered: true, rows: [{{text: Rome}}, {{text: \
         Paris}}]}}\n      answers.rejects: []\n"
    );
    let mill = project(&server, &tests);
    let told = mill.call(&["test", "pipeline.yaml"]).exit(0);
    assert!(told.stdout.contains("passed threshold") && told.stdout.contains("2 of 2 tests passed"), "{}", told.stdout);
    assert_eq!(mill.call(&["test", "pipeline.yaml", "all", "--json"]).exit(0).events().len(), 1);
    assert_eq!(server.count(), 0, "the real endpoint is never called");
    assert!(!mill.store_path().exists() && !mill.path("out").exists(), "a test leaves nothing behind");
    let told = mill.call(&["test", "pipeline.yaml", "--set", "threshold=0.95", "--json"]).exit(1);
    assert_eq!(outcome(&told, "threshold")["passed"], false, "{}", told.stdout);
    assert_eq!(outcome(&told, "all")["passed"], true, "the params of a test come last");
}

#[test]
fn a_misspelt_column_of_a_given_row_is_an_error() {
    let server = OpenAiServer::start(Script::new());
    let tests =
        format!("  a:\n{}    expect:\n      good: []\n", GIVEN.replacen("{id: a, question:", "{id: a, quesion:", 1));
    let told = project(&server, &tests).call(&["test", "pipeline.yaml"]);
    let all = format!("{}{}", told.stdout, told.stderr);
    assert!(told.code != 0 && all.contains("`quesion`") && all.contains("did you mean `question`?"), "{all}");
}

#[test]
fn what_differs_is_named_by_row_and_column() {
    let server = OpenAiServer::start(Script::new());
    let tests = format!(
        "  wrong:\n{GIVEN}    expect:\n      answers: [{{id: b, text: Paris}}, {{text: Rome}}, {{text: London}}]\n      \
         good: {{unordered: true, rows: [{{text: London}}]}}\n  column:\n{GIVEN}    expect: {{good: [{{txt: x}}]}}\n"
    );
    let mill = project(&server, &tests);
    let told = mill.call(&["test", "pipeline.yaml"]).exit(1).stdout;
    for line in [
        "failed wrong",
        "  answers: expected 3 rows, found 2",
        "  answers row 1, id: expected \"b\", found \"a\"",
        "  answers: expected row 3 is missing: {\"text\":\"London\"}",
        "  good: expected row 1 is missing: {\"text\":\"London\"}",
        "  good row 1 is not expected: {\"text\":\"Paris\"}",
        "  good: there is no column `txt` (did you mean `text`?",
        "0 of 2 tests passed, 2 failed",
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
    let json = mill.call(&["test", "pipeline.yaml", "wrong", "--json"]).exit(1);
    let mismatches = outcome(&json, "wrong")["mismatches"].clone();
    assert_eq!(mismatches[1]["mismatch"], "value", "{mismatches}");
    assert_eq!((&mismatches[1]["row"], &mismatches[1]["found"]), (&1.into(), &"a".into()));
}

#[test]
fn a_call_that_is_not_scripted_fails_the_test_and_is_shown() {
    let server = OpenAiServer::start(Script::new());
    let tests = "  - name: unscripted\n    given: {questions: [{question: \"capital of Peru?\"}]}\n    model: [{when: \
                 France, answer: x}]\n    expect: {good: []}\n";
    let mill = project(&server, tests);
    let told = mill.call(&["test", "pipeline.yaml"]).exit(1).stdout;
    assert!(told.contains("the script has no answer") && told.contains("Answer: capital of Peru?"), "{told}");
    assert_eq!(server.count(), 0);
}

#[test]
fn answers_without_a_prompt_are_given_in_order() {
    let server = OpenAiServer::start(Script::new());
    let tests = "  - name: order\n    given: {questions: [{question: a}, {question: b}]}\n    model: [{answer: {text: \
                 one, score: 1}}, {answer: {text: two, score: 1}}]\n    expect: {good: [{text: one}, {text: two}]}\n";
    let mill = project(&server, tests);
    mill.call(&["test", "pipeline.yaml"]).exit(0);
}

#[test]
fn wrong_tests_are_refused_with_their_place() {
    let server = OpenAiServer::start(Script::new());
    let broken = [
        ("  - name: a\n    given: {nosuch: []}\n    expect: {good: []}\n", "there is no node `nosuch`"),
        ("  - name: a\n    expect: {good.nosuch: []}\n", "`good` has no output `nosuch`"),
        ("  - name: a\n    expect: {good: 3}\n", "must be a list of rows"),
        ("  - name: a\n    given: {questions: [{question: q}]}\n", "expects nothing"),
        ("  - name: a\n    expectt: {good: []}\n", "has no key `expectt`"),
        ("  - name: a\n    model: [{when: x}]\n    expect: {good: []}\n", "has no text"),
        ("  - name: a\n    expect: {good: []}\n  - name: a\n    expect: {good: []}\n", "two tests are called `a`"),
    ];
    for (tests, message) in broken {
        let mill = project(&server, tests);
        let told = mill.call(&["test", "pipeline.yaml"]).exit(2).stderr;
        assert!(told.contains(message) && told.contains("pipeline.yaml:"), "{message}\n{told}");
    }
    let mill = project(&server, "  - name: a\n    expect: {good: []}\n");
    let told = mill.call(&["test", "pipeline.yaml", "b"]).exit(2).stderr;
    assert!(told.contains("has no test `b`"), "{told}");
    let told = mill.call(&["test", "pipeline.yaml"]).exit(1).stdout;
    assert!(told.contains("nosuch.jsonl"), "a file that no test gives is needed: {told}");
}

#[test]
fn the_tests_of_the_shipped_pipelines_pass() {
    let mill = Mill::new();
    for name in ["quickstart", "hotpotqa"] {
        let file = format!("{}/pipelines/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let told = mill.call(&["test", &file, "--json"]).exit(0);
        assert!(told.events().iter().any(|event| event["passed"] == true), "{name}: {}", told.stdout);
    }
}
