//! Tests of learning from pairs: rollouts that answer, and the same with another answer.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::Field;
use searchmill_engine::operator::testing::{Outcome, batch_input, inputs, rows_input, tree_input};
use searchmill_engine::operator::{InputArtifact, Inputs, OperatorError, RowsInput, TreeKind, entry};
use searchmill_schemas::{Pair, RecordKind, RecordedTokens, to_batch};
use serde_json::{Value, json};

use super::policy::recorded;
use super::{Bench, bench, column};
use crate::convert_to_swift::ConvertToSwift;
use crate::shared::columns::{with_all, with_columns};
use crate::shared::relation::testing::trajectories;
use crate::train::Train;

const PAIRS: usize = 8;

fn pairs() -> Vec<Pair> {
    let pair = |chosen: searchmill_schemas::Trajectory| {
        let mut rejected = chosen.clone();
        rejected.id = format!("{}x", chosen.id);
        "<answer>I do not know</answer>".clone_into(&mut rejected.messages.last_mut().expect("a message").content);
        Pair {
            id: chosen.id.clone(),
            question_id: chosen.question_id.clone(),
            chosen_id: chosen.id.clone(),
            rejected_id: rejected.id.clone(),
            chosen_score: Some(1.0),
            rejected_score: Some(0.0),
            margin: Some(1.0),
            chosen,
            rejected,
        }
    };
    trajectories(PAIRS).into_iter().map(pair).collect()
}

fn converted(bench: &Bench) -> RecordBatch {
    let rows = inputs([("trajectories", rows_input(&pairs()))]);
    bench.harness.run(&entry::<ConvertToSwift>(), json!({}), &rows).expect("converts").batch("examples")
}

fn examples(batch: &RecordBatch) -> InputArtifact {
    InputArtifact::Rows(RowsInput::from_batches(RecordKind::Example, batch.schema(), vec![batch.clone()]))
}

fn train(
    bench: &Bench,
    pairs: InputArtifact,
    params: Value,
    more: Vec<(&str, InputArtifact)>,
) -> Result<Outcome, OperatorError> {
    let mut whole = json!({"method": "dpo", "epochs": 1, "batch_size": 8, "learning_rate": 1e-2, "schedule": "constant",
        "warmup_ratio": 0});
    whole.as_object_mut().expect("a map").extend(params.as_object().expect("a map").clone());
    let mut bound = Inputs::new();
    bound.bind("pairs", pairs);
    if more.iter().all(|(port, _)| *port != "model") {
        bound.bind("model", tree_input(TreeKind::Model, &bench.model));
    }
    for (port, artifact) in more {
        bound.bind(port, artifact);
    }
    bench.harness.run(&entry::<Train>(), whole, &bound)
}

#[test]
fn what_is_preferred_becomes_likelier() {
    let bench = bench(json!({}));
    let batch = converted(&bench);
    let trained = train(&bench, examples(&batch), json!({"epochs": 6}), Vec::new()).expect("trains");
    let losses = column(&trained, "loss");
    assert!((losses[0] - 2.0_f64.ln()).abs() < 1e-4, "the policy begins at the reference: {losses:?}");
    assert!(losses[5] < 0.6 * losses[0], "{losses:?}");
    assert!((column(&trained, "chosen_reward")[0]).abs() < 1e-3);
    assert!(column(&trained, "reward_margin")[5] > 0.5, "{:?}", column(&trained, "reward_margin"));
    assert_eq!(column(&trained, "reward_accuracy")[5], 1.0);
    assert!(trained.summary.contains("on 8 pairs"), "{}", trained.summary);
    let page = std::fs::read_to_string(trained.trees["report"].join("report.html")).expect("a page");
    assert!(page.contains("Share of pairs in the right order") && page.contains("Reward by the policy"));
    let reference = ("reference", tree_input(TreeKind::Model, &trained.trees["model"]));
    let far = train(&bench, examples(&batch), json!({}), vec![reference]).expect("trains");
    let margin = column(&far, "reward_margin")[0];
    assert!(margin < -0.3 && column(&far, "loss")[0] > losses[0], "measured from the connected model: {margin}");
}

#[test]
fn recorded_tokens_are_learnt_as_they_were_sampled() {
    let bench = bench(json!({}));
    let rendered = converted(&bench);
    // The tokens of the rendered texts, as a record of what was sampled: greedy, without log-probabilities.
    let side = |prefix: &str| -> RecordBatch {
        let (texts, spans) = (format!("{prefix}text"), format!("{prefix}loss_spans"));
        let content = format!("{prefix}content_spans");
        let named = [("text", &texts), ("loss_spans", &spans), ("content_spans", &content)].map(|(name, of)| {
            (Field::new(name, rendered[of.as_str()].data_type().clone(), true), Arc::clone(&rendered[of.as_str()]))
        });
        let rows = bench.examples_of(&with_columns(&rendered, named.into()).expect("columns"));
        let records: Vec<RecordedTokens> = rows
            .iter()
            .map(|example| {
                let mut recorded = recorded(example, &vec![-0.5; example.tokens.len()]);
                recorded.sampling.temperature = 0.0;
                recorded
            })
            .collect();
        RecordedTokens::to_batch(&records).expect("tokens")
    };
    let (chosen, rejected) = (side(""), side("rejected_"));
    let plain = to_batch(&pairs()).expect("pairs");
    let renamed: Vec<(Field, ArrayRef)> = rejected
        .schema()
        .fields()
        .iter()
        .zip(rejected.columns())
        .map(|(field, column)| {
            (field.as_ref().clone().with_name(format!("rejected_{}", field.name())), Arc::clone(column))
        })
        .collect();
    let batch = with_columns(&with_all(&plain, &chosen).expect("columns"), renamed).expect("columns");
    let bytes = |outcome: &Outcome| std::fs::read(outcome.trees["model"].join("model.safetensors")).expect("weights");
    let of_tokens = train(&bench, batch_input(RecordKind::Pair, batch), json!({}), Vec::new()).expect("trains");
    let of_text = train(&bench, examples(&rendered), json!({}), Vec::new()).expect("trains");
    assert_eq!(bytes(&of_tokens), bytes(&of_text));
    let error = train(&bench, batch_input(RecordKind::Pair, plain), json!({}), Vec::new()).unwrap_err();
    assert!(error.message.contains("the pairs have no recorded tokens"), "{}", error.message);
}

#[test]
fn held_out_pairs_and_a_state_are_used() {
    let bench = bench(json!({}));
    let batch = converted(&bench);
    let params = json!({"eval_share": 0.25, "epochs": 4, "keep": "best", "batch_size": 3, "eval_steps": 1});
    let trained = train(&bench, examples(&batch), params.clone(), Vec::new()).expect("trains");
    let losses = column(&trained, "eval_loss");
    assert!((0.1..0.75).contains(&losses[0]) && losses.last() < losses.first(), "{losses:?}");
    assert_eq!(column(&train(&bench, examples(&batch), params, Vec::new()).expect("trains"), "eval_loss"), losses);
    let whole = train(&bench, examples(&batch), json!({"epochs": 2}), Vec::new()).expect("trains");
    let first = train(&bench, examples(&batch), json!({}), Vec::new()).expect("trains");
    let more = vec![
        ("model", tree_input(TreeKind::Model, &first.trees["model"])),
        ("state", tree_input(TreeKind::Files, &first.trees["state"])),
        ("reference", tree_input(TreeKind::Model, &bench.model)),
    ];
    let second = train(&bench, examples(&batch), json!({}), more).expect("goes on");
    let bytes = |outcome: &Outcome| std::fs::read(outcome.trees["model"].join("model.safetensors")).expect("weights");
    assert_eq!(bytes(&second), bytes(&whole), "the same bits");
}

#[test]
fn passes_and_adapters_change_only_what_they_should() {
    let bench = bench(json!({}));
    let batch = converted(&bench);
    let norms =
        |params: Value| column(&train(&bench, examples(&batch), params, Vec::new()).expect("trains"), "grad_norm");
    let (whole, parts) = (norms(json!({})), norms(json!({"pass_tokens": 300, "checkpointing": true})));
    assert!((whole[0] - parts[0]).abs() < 1e-4 * whole[0], "{whole:?} {parts:?}");
    let ipo = norms(json!({"preference_loss": {"kind": "ipo"}}));
    assert!((whole[0] - ipo[0]).abs() > 1e-3 * whole[0]);
    let params = json!({"epochs": 3, "tuning": {"lora": {"rank": 2, "dropout": 0.1}}});
    let lora = train(&bench, examples(&batch), params, Vec::new()).expect("trains");
    assert!(column(&lora, "loss")[2] < column(&lora, "loss")[0], "with dropout, both readings have the same masks");
    let params = json!({"tuning": {"lora": {"rank": 2, "dropout": 0}}});
    let first = train(&bench, examples(&batch), params.clone(), Vec::new()).expect("trains");
    let both = [&bench.model, &first.trees["model"]].map(|path| ("model", tree_input(TreeKind::Model, path)));
    let second = train(&bench, examples(&batch), params, both.into()).expect("goes on");
    let loss = column(&second, "loss")[0];
    assert!((loss - 2.0_f64.ln()).abs() < 1e-4, "the reference is what it starts from, adapter included: {loss}");
    let sft = column(
        &train(&bench, examples(&batch), json!({"preference_loss": {"sft_weight": 1.0}}), Vec::new()).expect("trains"),
        "loss",
    );
    assert!(sft[0] > 2.0_f64.ln() + 1.0, "the surprise of the better rollouts is added: {sft:?}");
}

#[test]
fn mistakes_say_what_to_do() {
    let bench = bench(json!({}));
    let batch = converted(&bench);
    let fails = |params: Value, batch: &RecordBatch| {
        let error = train(&bench, examples(batch), params, Vec::new()).expect_err("a mistake");
        format!("{} {}", error.message, error.help.unwrap_or_default())
    };
    let places: Vec<usize> =
        (0..batch.num_columns()).filter(|at| !batch.schema().field(*at).name().starts_with("rejected_")).collect();
    let single = batch.project(&places).expect("columns");
    assert!(fails(json!({}), &single).contains("no `rejected_text`"));
    let message = fails(json!({"max_length": 9}), &batch);
    assert!(message.contains("no example to train on") && message.contains("the chosen rollout:"), "{message}");
    for (params, path) in [
        (json!({"preference_loss": {"beta": 0}}), "preference_loss.beta: "),
        (json!({"preference_loss": {"label_smoothing": 0.5}}), "preference_loss.label_smoothing: "),
        (json!({"preference_loss": {"kind": "ipo", "label_smoothing": 0.1}}), "preference_loss.label_smoothing: "),
        (json!({"preference_loss": {"sft_weight": -1}}), "preference_loss.sft_weight: "),
        (json!({"policy_loss": {}}), "policy_loss: "),
        (json!({"weight_column": "w"}), "weight_column: "),
        (json!({"context_weight": 0.1}), "context_weight: "),
        (json!({"method": "grpo", "preference_loss": {}}), "preference_loss: "),
    ] {
        assert!(fails(params.clone(), &batch).starts_with(path), "{params}: {}", fails(params.clone(), &batch));
    }
}
