//! Tests of `pair`.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use searchmill_engine::operator::testing::{Harness, Outcome, inputs};
use searchmill_engine::operator::{InputArtifact, RowsInput, entry};
use searchmill_schemas::{Pair as Row, to_batch};
use serde_json::{Value, json};

use super::*;
use crate::shared::relation::testing::trajectories;

/// Samples of the questions `q0`, `q1`, … with rewards; in parts of `cut` rows.
fn rollouts(rewards: &[&[Option<f64>]], cut: usize) -> InputArtifact {
    let mut rows = Vec::new();
    for (question, rewards) in rewards.iter().enumerate() {
        for sample in 0..rewards.len() {
            let mut row = trajectories(question + 1).pop().expect("a rollout");
            row.id = format!("q{question}@{sample}");
            row.sample_index = sample as i32;
            row.turns = 9 - sample as i32;
            rows.push(row);
        }
    }
    let batch = to_batch(&rows).expect("rows");
    let reward: ArrayRef =
        Arc::new(rewards.iter().flat_map(|rewards| rewards.iter().copied()).collect::<Float64Array>());
    let model: ArrayRef =
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| ["a", "b"][row.sample_index as usize % 2])));
    let named = batch.schema().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    let columns = named.into_iter().zip(batch.columns().iter().cloned());
    let columns = columns.filter(|(name, _)| name != "model");
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.chain([("reward".to_owned(), reward), ("model".to_owned(), model)]).map(|(name, column)| {
            let nullable = ["reward", "model", "question_type", "metadata"].contains(&name.as_str());
            (name, column, nullable)
        }),
    );
    let batch = batch.expect("a batch");
    let parts = (0..batch.num_rows()).step_by(cut).map(|start| batch.slice(start, cut.min(batch.num_rows() - start)));
    InputArtifact::Rows(RowsInput::from_batches(RecordKind::Trajectory, batch.schema(), parts.collect()))
}

fn run_cut(rewards: &[&[Option<f64>]], cut: usize, params: Value) -> Result<Outcome, OperatorError> {
    Harness::new().run(&entry::<Pair>(), params, &inputs([(TRAJECTORIES, rollouts(rewards, cut))]))
}

fn run(rewards: &[&[Option<f64>]], params: Value) -> Outcome {
    run_cut(rewards, 8192, params).expect("runs")
}

fn pairs(outcome: &Outcome) -> Vec<String> {
    let line = |pair: Row| {
        let margin = pair.margin.map_or("-".to_owned(), |margin| format!("{margin:.2}"));
        assert_eq!(
            (&pair.id, &pair.chosen_id, &pair.rejected_id),
            (&pair.chosen.id, &pair.chosen.id, &pair.rejected.id)
        );
        format!("{} {}>{} {margin}", pair.question_id, pair.chosen_id, pair.rejected_id)
    };
    outcome.read::<Row>(PAIRS).into_iter().map(line).collect()
}

const REWARDS: [&[Option<f64>]; 5] = [
    &[Some(0.2), Some(1.0), Some(0.0), Some(0.6)],
    &[Some(0.5), Some(0.5)],
    &[Some(1.0)],
    &[Some(0.4), Some(0.5), Some(0.45)],
    &[Some(0.0), None, Some(f64::NAN), Some(-1.0)],
];

#[test]
fn the_best_and_the_worst_are_paired() {
    let outcome = run(&REWARDS, json!({"order_by": ["reward desc"]}));
    assert_eq!(pairs(&outcome), ["q0 q0@1>q0@2 1.00", "q3 q3@1>q3@0 0.10", "q4 q4@0>q4@3 1.00"]);
    let rejects: Vec<_> = outcome.rejects().into_iter().map(|reject| reject.id).collect();
    assert_eq!(rejects, ["q4@1", "q4@2"]);
    assert_eq!(
        (outcome.figures["questions"], outcome.figures["questions_paired"], outcome.figures["pairs"]),
        (5.0, 3.0, 3.0)
    );
    assert_eq!(
        outcome.summary,
        "3 pairs of 5 questions.\n1 questions have fewer than two ranked rollouts.\n1 questions have rollouts of equal \
         rank only.\n"
    );
    let lower = run(&REWARDS, json!({"order_by": ["reward ASC"]}));
    assert_eq!(pairs(&lower)[0], "q0 q0@2>q0@1 1.00");
    let first: Row = outcome.read(PAIRS).remove(0);
    assert_eq!((first.chosen_score, first.rejected_score), (Some(1.0), Some(0.0)));
    assert_eq!(first.chosen.messages, trajectories(1)[0].messages);
}

#[test]
fn margin_and_number_of_pairs() {
    let two = run(&REWARDS, json!({"order_by": ["reward desc"], "pairs_per_question": 9}));
    assert_eq!(pairs(&two)[..2], ["q0 q0@1>q0@2 1.00", "q0 q0@3>q0@0 0.40"]);
    let far = run(&REWARDS, json!({"order_by": ["reward desc"], "pairs_per_question": 2, "margin": 0.5}));
    assert_eq!(pairs(&far), ["q0 q0@1>q0@2 1.00", "q4 q4@0>q4@3 1.00"]);
    assert!(far.summary.ends_with("1 questions have rollouts closer than `margin` only.\n"), "{}", far.summary);
}

#[test]
fn ties_are_broken_by_the_next_column() {
    let both = run(&REWARDS, json!({"order_by": ["reward desc", "turns asc"]}));
    assert!(pairs(&both).contains(&"q1 q1@1>q1@0 0.00".to_owned()), "the shorter rollout is chosen");
    let text = run(&REWARDS[..1], json!({"order_by": ["id asc"]}));
    assert_eq!(pairs(&text), ["q0 q0@0>q0@3 -"], "a text has no margin");
    let error = run_cut(&REWARDS, 8, json!({"order_by": ["id asc"], "margin": 1})).expect_err("text");
    assert_eq!(error.message, "`margin`: `id asc` is not a number");
    let expression = run(&REWARDS[..1], json!({"order_by": ["reward - 0.1 * turns desc"]}));
    assert_eq!(pairs(&expression), ["q0 q0@1>q0@2 0.90"]);
}

#[test]
fn groups_batches_and_empty_inputs() {
    let grouped = run(&REWARDS[..1], json!({"order_by": ["reward desc"], "by": ["question_id", "model"]}));
    assert_eq!(pairs(&grouped), ["q0/a q0@0>q0@2 0.20", "q0/b q0@1>q0@3 0.40"]);
    let whole = run(&REWARDS, json!({"order_by": ["reward desc"]}));
    for cut in [1, 3] {
        let other = run_cut(&REWARDS, cut, json!({"order_by": ["reward desc"]})).expect("runs");
        assert_eq!(other.batch(PAIRS), whole.batch(PAIRS));
    }
    assert!(run(&[&[]], json!({"order_by": ["reward desc"]})).rows.is_empty());
}

#[test]
fn wrong_params_are_named() {
    let fails = |params: Value| run_cut(&REWARDS, 8, params).expect_err("a mistake").message;
    for (params, start) in [
        (json!({"order_by": []}), "order_by: name"),
        (json!({"order_by": ["reward"]}), "order_by.0: `reward` has no direction"),
        (json!({"order_by": ["reward descending"]}), "order_by.0: "),
        (json!({"order_by": ["abs( desc"]}), "order_by.0: "),
        (json!({"order_by": ["reward desc"], "by": []}), "by: name"),
        (json!({"order_by": ["reward desc"], "margin": -1}), "margin: "),
        (json!({"order_by": ["reward desc"], "pairs_per_question": 0}), "pairs_per_question: "),
        (json!({"order_by": ["rewards desc"]}), "`order_by`: there is no column `rewards`"),
    ] {
        let message = fails(params);
        assert!(message.starts_with(start), "{message}");
    }
}
