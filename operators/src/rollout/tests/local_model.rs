//! Tests of the policy `model`: a decoder in this process searches and answers.

use searchmill_fixtures::models::{model_folder, searching_model};

use super::*;

const SEARCH: &str =
    "I search.\n<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"capital of Italy\"}}\n</tool_call>";
const ANSWER: &str = "<answer>Rome</answer>";

fn roll(model: &tempfile::TempDir, concurrency: usize, params: Value) -> Outcome {
    roll_by(0, model, concurrency, params)
}

fn roll_by(seed: u64, model: &tempfile::TempDir, concurrency: usize, params: Value) -> Outcome {
    let mut harness = Harness::new();
    harness.concurrency = concurrency;
    harness.seed = seed;
    let questions: Vec<_> =
        (0..6).map(|number| question(&format!("q{number}"), "What is the capital of Italy?")).collect();
    let bound = inputs([
        ("questions", rows_input(&questions)),
        ("search", bm25(&harness, &small_corpus())),
        ("model", tree_input(TreeKind::Model, model.path())),
    ]);
    harness.run(&entry::<Rollout>(), params, &bound).expect("the node runs")
}

#[test]
fn a_model_searches_and_answers_the_same_however_many_rows_are_in_flight() {
    let model = searching_model(SEARCH, ANSWER);
    let params = json!({"policy": {"model": {"temperature": 1.0, "max_tokens": 8, "seed": 5}}, "samples": 2, "max_turns": 4, "system_prompt": "Search."});
    let outcome = roll(&model, 8, params.clone());
    assert!(outcome.rejects().is_empty(), "{:?}", outcome.rejects());
    let rows = outcome.read::<Trajectory>("trajectories");
    assert_eq!(rows.len(), 12);
    for concurrency in [1, 32] {
        assert_eq!(roll(&model, concurrency, params.clone()).read::<Trajectory>("trajectories"), rows, "{concurrency}");
    }
    let answered = rows.iter().filter(|row| row.finish_reason == "answered").count();
    let searched = rows.iter().filter(|row| row.tool_calls > 0).count();
    assert!(answered >= 6 && (2..=10).contains(&searched), "{answered} answered, {searched} searched");
    let row = rows.iter().find(|row| row.tool_calls > 0 && row.finish_reason == "answered").expect("one search");
    let authors: Vec<_> = row.messages.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(authors[..4], ["system", "user", "assistant", "tool"]);
    assert_eq!(authors.last(), Some(&"assistant"));
    let asked = &row.messages[2];
    assert_eq!((asked.content.as_str(), asked.finish_reason.as_deref()), ("I search.", Some("tool_calls")));
    assert_eq!(asked.tool_calls[0].arguments, "{\"query\": \"capital of Italy\"}");
    assert_eq!(row.messages[3].observations[0].document_id, "it");
    assert_eq!((row.prediction.as_str(), row.policy.as_str()), ("Rome", "model"));
    assert_eq!(asked.completion_tokens, Some(2), "the search and the end of the turn");
    assert!(outcome.usage.completion_tokens >= 24 && outcome.usage.prompt_tokens > 12 * 500);
}

/// A loop writes `seed: "${repeat.round}"`.
#[test]
fn the_seed_of_the_node_decides_what_a_model_draws() {
    let model = searching_model(SEARCH, ANSWER);
    let drawn = |node, policy| {
        let params = json!({"policy": {"model": {"temperature": 1.0, "max_tokens": 8, "seed": policy}}, "samples": 4,
            "max_turns": 4, "system_prompt": "Search."});
        let rows = roll_by(node, &model, 8, params).read::<Trajectory>("trajectories");
        rows.into_iter().map(|row| row.messages).collect::<Vec<_>>()
    };
    let plain = drawn(0, 5);
    assert_eq!(drawn(3, 5), drawn(3, 5));
    assert_ne!(drawn(3, 5), plain);
    assert_ne!(drawn(3, 5), drawn(4, 5));
    assert_ne!(drawn(3, 6), drawn(3, 5));
}

#[test]
fn greedy_rollouts_of_one_question_are_alike() {
    let model = searching_model(SEARCH, ANSWER);
    let rows = roll(
        &model,
        4,
        json!({"policy": {"model": {"temperature": 0}}, "samples": 2, "max_turns": 3, "system_prompt": "Search."}),
    );
    let rows = rows.read::<Trajectory>("trajectories");
    assert!(rows.iter().all(|row| row.messages == rows[0].messages));
}

#[test]
fn a_conversation_that_does_not_fit_is_rejected_with_the_numbers() {
    let outcome = roll(&model_folder(128), 4, json!({"policy": "model"}));
    assert_eq!(outcome.rejects().len(), 6);
    let reject = &outcome.rejects()[0];
    assert_eq!(reject.kind, "bad_response");
    assert!(reject.message.ends_with("tokens, the model's context 128"), "{}", reject.message);
}

#[test]
fn a_model_must_be_given_and_the_last_one_counts() {
    let harness = Harness::new();
    let bound = |trees: &[&tempfile::TempDir]| {
        let mut bound = inputs([("questions", rows_input(&[question("q", "Where?")]))]);
        for tree in trees {
            bound.bind("model", tree_input(TreeKind::Model, tree.path()));
        }
        bound
    };
    let told = |trees: &[&tempfile::TempDir], policy: Value| {
        harness.run(&entry::<Rollout>(), json!({"policy": policy}), &bound(trees)).expect_err("an error").message
    };
    let model = model_folder(128);
    assert_eq!(told(&[], json!("model")), "no model is given");
    let nowhere = tempfile::tempdir().expect("a folder");
    let broken = told(&[&model, &nowhere], json!("model"));
    assert!(broken.contains(&nowhere.path().display().to_string()), "the last one is opened: {broken}");
    assert!(told(&[], json!({"model": {"model": "./nowhere"}})).contains("nowhere"));
    let ports = (entry::<Rollout>().bind)(json!({"policy": "model"})).expect("binds").declaration.ports;
    assert!(ports.inputs.iter().any(|port| port.name == "model"));
    let ports = (entry::<Rollout>().bind)(json!({"policy": "evidence"})).expect("binds").declaration.ports;
    assert!(ports.inputs.iter().all(|port| port.name != "model"));
}
