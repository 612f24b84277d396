//! Tests that every rollout converter must pass.

use searchmill_engine::operator::OperatorEntry;
use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
use searchmill_schemas::{Example, Message, Role, Trajectory};
use serde_json::{Value, json};

use crate::shared::relation::testing::trajectories;

fn run(operator: &OperatorEntry, batch_rows: usize, rows: &[Trajectory], params: Value) -> Outcome {
    let mut harness = Harness::new();
    harness.batch_rows = batch_rows;
    harness.run(operator, params, &inputs([("trajectories", rows_input(rows))])).expect("runs")
}

/// Returns the training rows of three rollouts.
pub(crate) fn rows(operator: &OperatorEntry, params: Value) -> Vec<String> {
    let examples: Vec<Example> = run(operator, 8192, &trajectories(3), params).read("examples");
    examples.into_iter().map(|example| example.row).collect()
}

/// A rollout that is one text.
pub(crate) fn one_text() -> Trajectory {
    let mut row = trajectories(1).remove(0);
    "[]".clone_into(&mut row.tools);
    "research".clone_into(&mut row.protocol);
    row.messages.drain(2..);
    let texts =
        ["<think> a </think> <search> b </search>", " <result>\nR <|im_end|>\n</result>", " <answer>c</answer>"];
    let roles = [Role::Assistant, Role::Tool, Role::Assistant];
    row.messages.extend(roles.into_iter().zip(texts).map(|(role, text)| Message::text(role, text)));
    row
}

/// Asserts that the batch size of the input does not change the rows, and that each row is JSON.
pub(crate) fn batches_change_nothing(operator: &OperatorEntry) {
    let rollouts = trajectories(30);
    let whole = run(operator, 8192, &rollouts, json!({})).batch("examples");
    assert_eq!(whole.num_rows(), 30);
    for batch_rows in [1, 7, 8192] {
        assert_eq!(run(operator, batch_rows, &rollouts, json!({})).batch("examples"), whole);
    }
    let refused = run(operator, 8192, &[one_text()], json!({})).rejects();
    assert!(refused[0].message.contains("one text"), "{refused:?}");
    for row in rows(operator, json!({"thinking": true})) {
        serde_json::from_str::<Value>(&row).expect("JSON");
    }
    assert!(run(operator, 7, &[], json!({})).rows.is_empty(), "empty in, empty out");
}

/// Asserts that a call whose arguments are not a JSON object is rejected, or one of which a parser would drop a part.
pub(crate) fn rejects_broken_arguments(operator: &OperatorEntry) {
    for broken in ["{'query': 1}", "{\"query\": \"a\"", "[{\"query\": \"a\"}]", "{\"query\": \"a\", \"query\": \"b\"}"]
    {
        let mut rollouts = trajectories(2);
        rollouts[1].messages[2].tool_calls[0].arguments = broken.to_owned();
        let outcome = run(operator, 8192, &rollouts, json!({}));
        assert_eq!(outcome.read::<Example>("examples").len(), 1, "{broken}");
        assert_eq!(outcome.rejects()[0].id, "q1@0");
    }
}

/// Asserts that rollouts that were cut or never answered are rejected, unless the params ask for them.
pub(crate) fn rejects_the_unfinished(operator: &OperatorEntry) {
    let mut rollouts = trajectories(4);
    // The server closed the arguments of a call that the model did not finish.
    rollouts[1].messages[2].finish_reason = Some("length".to_owned());
    rollouts[2].finish_reason = "max_turns".to_owned();
    rollouts[3].finish_reason = "no_answer".to_owned();
    let outcome = run(operator, 8192, &rollouts, json!({}));
    assert_eq!(outcome.read::<Example>("examples").len(), 1);
    let told: Vec<_> = outcome.rejects().into_iter().map(|reject| (reject.id, reject.message)).collect();
    let none = |reason: &str| format!("the rollout has no answer (finish reason `{reason}`)");
    let cut = "the limit of tokens (`max_tokens`) cut a message of the model".to_owned();
    let wanted = [("q1@0", cut), ("q2@0", none("max_turns")), ("q3@0", none("no_answer"))];
    assert_eq!(told, wanted.map(|(id, message)| (id.to_owned(), message)));
    let all = run(operator, 8192, &rollouts, json!({"unfinished": true}));
    assert_eq!(all.read::<Example>("examples").len(), 4);
}
