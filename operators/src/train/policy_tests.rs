//! Tests of learning from advantages: rollouts are the bench's conversations with the log-probabilities of its model.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch};
use arrow::datatypes::{DataType, Field};
use searchmill_engine::operator::testing::{Outcome, batch_input, tree_input};
use searchmill_engine::operator::{InputArtifact, Inputs, OperatorError, TreeKind, entry};
use searchmill_fixtures::trajectories::sampled_from_all;
use searchmill_models::device::Compute;
use searchmill_models::training::example::Example;
use searchmill_models::training::objective::Sft;
use searchmill_models::training::step;
use searchmill_models::training::student::{Student, Tuning};
use searchmill_schemas::{RecordKind, RecordedTokens, TokenSpan, to_batch};
use serde_json::{Value, json};

use super::params::TrainParams;
use super::tests::{Bench, bench, column};
use super::{Train, check};
use crate::columns::{with_all, with_columns};
use crate::relation::testing::trajectories;

const ROLLOUTS: usize = 6;

/// Returns the log-probabilities of the learnt tokens of each example.
fn log_probabilities(model: &Path, examples: &[Example]) -> Vec<Vec<f32>> {
    let student = Student::load(model, &Tuning::Full, 0, &Compute::cpu()).expect("a model");
    let all: Vec<usize> = (0..examples.len()).collect();
    let found = step::evaluate(&student, &all, examples, &Sft::default(), 4096).expect("log-probabilities");
    found.log_probabilities.into_values().collect()
}

/// Records an example as the tokens of a rollout.
fn recorded(example: &Example, found: &[f32]) -> RecordedTokens {
    let (mut spans, mut found): (Vec<TokenSpan>, _) = (Vec::new(), found.iter());
    for (token, learnt) in example.tokens.iter().zip(&example.learnt) {
        if spans.last().is_none_or(|span| span.sampled != *learnt) {
            let logprobs = learnt.then(Vec::new);
            spans.push(TokenSpan { message: 0, branch: 0, sampled: *learnt, ids: Vec::new(), logprobs });
        }
        let span = spans.last_mut().expect("a span");
        span.ids.push(*token as i32);
        span.logprobs.iter_mut().for_each(|all| all.extend(found.next().copied()));
    }
    RecordedTokens { tokens: spans, sampling: sampled_from_all() }
}

fn rollouts(bench: &Bench) -> (Vec<Example>, RecordBatch) {
    let mut examples = bench.examples();
    examples.truncate(ROLLOUTS);
    let found = log_probabilities(&bench.model, &examples);
    let recorded: Vec<_> = examples.iter().zip(&found).map(|(example, found)| recorded(example, found)).collect();
    let batch = to_batch(&trajectories(ROLLOUTS)).expect("rollouts");
    let batch = with_all(&batch, &RecordedTokens::to_batch(&recorded).expect("tokens")).expect("columns");
    (examples, with_advantages(&batch, (0..ROLLOUTS).map(|row| if row % 2 == 0 { 1.0 } else { -1.0 }).collect()))
}

fn with_advantages(batch: &RecordBatch, advantages: Vec<f64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(Float64Array::from(advantages));
    with_columns(batch, vec![(Field::new("advantage", DataType::Float64, false), column)]).expect("a column")
}

fn train(
    bench: &Bench,
    batch: &RecordBatch,
    params: Value,
    more: Vec<(&str, InputArtifact)>,
) -> Result<Outcome, OperatorError> {
    let mut whole = json!({"method": "grpo", "epochs": 1, "batch_size": 6, "learning_rate": 1e-2, "schedule": "constant",
        "warmup_ratio": 0});
    whole.as_object_mut().expect("a map").extend(params.as_object().expect("a map").clone());
    let mut bound = Inputs::new();
    bound.bind("trajectories", batch_input(RecordKind::Trajectory, batch.clone()));
    if more.iter().all(|(port, _)| *port != "model") {
        bound.bind("model", tree_input(TreeKind::Model, &bench.model));
    }
    for (port, artifact) in more {
        bound.bind(port, artifact);
    }
    bench.harness.run(&entry::<Train>(), whole, &bound)
}

#[test]
fn what_earned_more_becomes_likelier() {
    let bench = bench(json!({}));
    let (examples, batch) = rollouts(&bench);
    let trained = train(&bench, &batch, json!({"epochs": 4}), Vec::new()).expect("trains");
    for (name, wanted) in [("ratio", 1.0), ("kl", 0.0), ("clip_share", 0.0), ("logprob_gap", 0.0)] {
        let first = column(&trained, name)[0];
        assert!((first - wanted).abs() < 1e-4, "{name} of the first step: {first}");
    }
    assert!(column(&trained, "kl")[3] > 1e-4, "the policy moved");
    assert!(column(&trained, "clip_share")[3] > 0.0, "and was held back");
    let after = log_probabilities(&trained.trees["model"], &examples);
    let before = log_probabilities(&bench.model, &examples);
    for (row, (before, after)) in before.iter().zip(&after).enumerate() {
        let change = after.iter().sum::<f32>() - before.iter().sum::<f32>();
        assert!(if row % 2 == 0 { change > 0.0 } else { change < 0.0 }, "rollout {row}: {change}");
    }
    let equal = with_advantages(&batch, vec![0.0; ROLLOUTS]);
    let none = train(&bench, &equal, json!({"optimizer": {"weight_decay": 0}}), Vec::new()).expect("trains");
    assert_eq!(column(&none, "grad_norm")[0], 0.0, "nothing to learn");
    assert_eq!(log_probabilities(&none.trees["model"], &examples), before);
}

#[test]
fn a_training_that_goes_on_from_a_state_is_the_longer_one() {
    let bench = bench(json!({}));
    let (_, batch) = rollouts(&bench);
    let bytes = |outcome: &Outcome| std::fs::read(outcome.trees["model"].join("model.safetensors")).expect("weights");
    let whole = train(&bench, &batch, json!({"epochs": 2}), Vec::new()).expect("trains");
    let first = train(&bench, &batch, json!({}), Vec::new()).expect("trains");
    let model = |outcome: &Outcome| ("model", tree_input(TreeKind::Model, &outcome.trees["model"]));
    let state = ("state", tree_input(TreeKind::Files, &first.trees["state"]));
    let second = train(&bench, &batch, json!({}), vec![model(&first), state]).expect("goes on");
    assert_eq!(bytes(&second), bytes(&whole), "the same bits");
    let anew = train(&bench, &batch, json!({}), vec![model(&first)]).expect("trains");
    assert_ne!(bytes(&anew), bytes(&whole), "the optimiser's state matters");
    assert!(anew.summary.contains("the rollouts are of another model"), "{}", anew.summary);
}

#[test]
fn a_reference_holds_the_policy_back() {
    let bench = bench(json!({}));
    let (_, batch) = rollouts(&bench);
    let reference = || ("reference", tree_input(TreeKind::Model, &bench.model));
    let far = |coefficient: f64| {
        let params = json!({"epochs": 6, "policy_loss": {"kl": {"coefficient": coefficient}}});
        let trained = train(&bench, &batch, params, vec![reference()]).expect("trains");
        assert!(column(&trained, "reference_kl")[0] < 1e-6);
        column(&trained, "reference_kl")[5]
    };
    let (free, held) = (far(0.0), far(10.0));
    assert!(held < free * 0.8, "{held} {free}");
    let params: TrainParams =
        serde_json::from_value(json!({"method": "grpo", "policy_loss": {"kl": {"coefficient": 0.1}}})).expect("params");
    let missing = check::reference_issues(&params, &["trajectories", "model"]);
    assert!(missing[0].message.contains("no model to measure the divergence from"), "{missing:?}");
    assert!(check::reference_issues(&params, &["trajectories", "model", "reference"]).is_empty());
}

#[test]
fn aggregations_give_other_steps() {
    let bench = bench(json!({}));
    let (_, batch) = rollouts(&bench);
    let norm = |aggregation: Value| {
        let trained = train(&bench, &batch, json!({"policy_loss": {"aggregation": aggregation}}), Vec::new());
        column(&trained.expect("trains"), "grad_norm")[0]
    };
    let (tokens, sequences) = (norm(json!("token_mean")), norm(json!("sequence_mean")));
    assert!((tokens - sequences).abs() > 1e-9, "{tokens} {sequences}");
    let (hundred, thousand) = (norm(json!({"constant": 100})), norm(json!({"constant": 1000})));
    assert!((hundred / thousand - 10.0).abs() < 1e-3, "{hundred} {thousand}");
}

#[test]
fn mistakes_say_what_to_do() {
    let bench = bench(json!({}));
    let (_, batch) = rollouts(&bench);
    let fails = |params: Value, batch: &RecordBatch| {
        let error = train(&bench, batch, params, Vec::new()).expect_err("a mistake");
        format!("{} {}", error.message, error.help.unwrap_or_default())
    };
    let plain = to_batch(&trajectories(2)).expect("rollouts");
    assert!(fails(json!({}), &plain).contains("in a column `advantage`"));
    assert!(fails(json!({}), &with_advantages(&plain, vec![1.0, 0.0])).contains("`record: tokens`"));
    assert!(fails(json!({}), &with_advantages(&batch, vec![f64::NAN; ROLLOUTS])).contains("null or no finite number"));
    for (params, path) in [
        (json!({"policy_loss": {"clip_low": 0}}), "policy_loss.clip_low: "),
        (json!({"policy_loss": {"clip_high": -1}}), "policy_loss.clip_high: "),
        (json!({"policy_loss": {"dual_clip": 1}}), "policy_loss.dual_clip: "),
        (json!({"policy_loss": {"aggregation": {"constant": 0}}}), "policy_loss.aggregation.constant: "),
        (json!({"eval_share": 0.1}), "eval_share: "),
        (json!({"keep": "best"}), "keep: "),
        (json!({"weight_column": "w"}), "weight_column: "),
    ] {
        assert!(fails(params.clone(), &batch).starts_with(path), "{params}: {}", fails(params.clone(), &batch));
    }
    let state = ("state", tree_input(TreeKind::Files, &bench.model));
    let error = train(&bench, &batch, json!({}), vec![state]).unwrap_err();
    assert!(error.message.contains("no readable `optimizer.safetensors`"), "{}", error.message);
}
