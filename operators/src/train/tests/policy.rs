//! Tests of learning from advantages: rollouts are the bench's conversations with the log-probabilities of its model.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Float64Type};
use searchmill_engine::operator::testing::{Outcome, batch_input, tree_input};
use searchmill_engine::operator::{InputArtifact, Inputs, OperatorError, TreeKind, entry};
use searchmill_fixtures::trajectories::sampled_from_all;
use searchmill_models::device::Compute;
use searchmill_models::training::example::{Example, Sampled};
use searchmill_models::training::objective::Sft;
use searchmill_models::training::rollouts::TOKEN_ADVANTAGES;
use searchmill_models::training::step;
use searchmill_models::training::student::{Student, Tuning};
use searchmill_schemas::{RecordKind, RecordedTokens, SampledWith, TokenSpan, to_batch};
use serde_json::{Value, json};

use super::{Bench, bench, column};
use crate::shared::columns::{with_all, with_columns};
use crate::shared::relation::testing::trajectories;
use crate::train::params::TrainParams;
use crate::train::{Train, check};

const ROLLOUTS: usize = 6;

/// Returns the log-probabilities of the learnt tokens of each example.
fn log_probabilities(model: &Path, examples: &[Example]) -> Vec<Vec<f32>> {
    let student = Student::load(model, &Tuning::Full, 0, &Compute::cpu()).expect("a model");
    let all: Vec<usize> = (0..examples.len()).collect();
    let found = step::evaluate(&student, &all, examples, &Sft::default(), 4096).expect("log-probabilities");
    found.log_probabilities.into_values().collect()
}

/// Records an example as the tokens of a rollout.
pub(super) fn recorded(example: &Example, found: &[f32]) -> RecordedTokens {
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
    rollouts_at(bench, 1.0)
}

/// Returns rollouts as if they were sampled at a temperature.
fn rollouts_at(bench: &Bench, temperature: f32) -> (Vec<Example>, RecordBatch) {
    let mut examples = bench.examples();
    examples.truncate(ROLLOUTS);
    for example in &mut examples {
        let unknown = vec![0.0; example.tokens.len()];
        let (advantages, of_rollout) = (unknown.clone(), example.targets());
        let (reference, rollout) = (None, 0);
        let sampled = Sampled { temperature, log_probabilities: unknown, reference, advantages, rollout, of_rollout };
        example.sampled = Some(sampled);
    }
    let found = log_probabilities(&bench.model, &examples);
    let sampling = SampledWith { temperature: f64::from(temperature), ..sampled_from_all() };
    let recorded = |(example, found): (&Example, &Vec<f32>)| RecordedTokens {
        sampling: sampling.clone(),
        ..recorded(example, found)
    };
    let recorded: Vec<_> = examples.iter().zip(&found).map(recorded).collect();
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

/// The log-probabilities of the record are those at the temperature of sampling, and so are those of the training.
#[test]
fn what_was_sampled_at_another_temperature_is_learnt_at_that_temperature() {
    let bench = bench(json!({}));
    let plain = rollouts(&bench).1;
    for temperature in [0.5, 1.5] {
        let batch = rollouts_at(&bench, temperature).1;
        let reference = || ("reference", tree_input(TreeKind::Model, &bench.model));
        let trained = train(&bench, &batch, json!({}), vec![reference()]).expect("trains");
        for (name, wanted) in [("ratio", 1.0), ("kl", 0.0), ("logprob_gap", 0.0), ("reference_kl", 0.0)] {
            let first = column(&trained, name)[0];
            assert!((first - wanted).abs() < 1e-4, "{name} at {temperature}: {first}");
        }
        let at_one = train(&bench, &plain, json!({}), Vec::new()).expect("trains");
        let entropy = |outcome: &Outcome| column(outcome, "entropy")[0];
        assert_eq!(
            entropy(&trained) > entropy(&at_one),
            temperature > 1.0,
            "of the distribution that was sampled from"
        );
        assert!((0.1..(400.0_f64).ln()).contains(&entropy(&at_one)), "{}", entropy(&at_one));
    }
    let mut raw = RecordedTokens::from_batch(&rollouts_at(&bench, 0.5).1).expect("columns").expect("recorded");
    for recorded in &mut raw {
        "raw".clone_into(&mut recorded.sampling.logprobs);
    }
    let raw = with_all(&plain, &RecordedTokens::to_batch(&raw).expect("tokens")).expect("columns");
    let error = train(&bench, &raw, json!({}), Vec::new()).unwrap_err().message;
    assert!(error.contains("at temperature 0.5, but their log-probabilities are `raw`"), "{error}");
}

#[test]
fn advantages_of_tokens_are_preferred_to_those_of_rollouts() {
    let bench = bench(json!({}));
    let (examples, batch) = rollouts(&bench);
    let lists = |of: &dyn Fn(usize, usize) -> f64| {
        let rows = examples
            .iter()
            .enumerate()
            .map(|(row, example)| Some((0..example.targets()).map(|at| Some(of(row, at))).collect::<Vec<_>>()));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(rows));
        let field = Field::new(TOKEN_ADVANTAGES, lists.data_type().clone(), true);
        with_columns(&batch, vec![(field, lists)]).expect("a column")
    };
    let bytes = |outcome: &Outcome| std::fs::read(outcome.trees["model"].join("model.safetensors")).expect("weights");
    let run = |batch: &RecordBatch, params: Value| train(&bench, batch, params, Vec::new());
    let same = lists(&|row, _| if row % 2 == 0 { 1.0 } else { -1.0 });
    let wanted = bytes(&run(&batch, json!({})).expect("trains"));
    assert_eq!(bytes(&run(&same, json!({})).expect("trains")), wanted);
    let other = lists(&|_, at| at as f64);
    assert_ne!(bytes(&run(&other, json!({})).expect("trains")), wanted);
    assert_eq!(bytes(&run(&other, json!({"advantage_column": "advantage"})).expect("trains")), wanted, "the named one");
    assert_ne!(bytes(&run(&other, json!({"advantage_column": "token_advantages"})).expect("trains")), wanted);
}

#[test]
fn figures_say_what_the_rollouts_are_like() {
    let bench = bench(json!({}));
    let batch = rollouts(&bench).1;
    let rewards: ArrayRef = Arc::new(Float64Array::from_iter_values((0..ROLLOUTS).map(|row| row as f64 / 10.0)));
    let batch = with_columns(&batch, vec![(Field::new("reward", DataType::Float64, true), rewards)]).expect("a column");
    let ends: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..ROLLOUTS).map(|row| if row == 0 { "length" } else { "answered" })));
    let batch =
        with_columns(&batch, vec![(Field::new("finish_reason", DataType::Utf8, false), ends)]).expect("a column");
    let trained = train(&bench, &batch, json!({"batch_size": 3}), Vec::new()).expect("trains");
    let figure = |name: &str| trained.figures[name];
    assert!((figure("reward_mean") - 0.25).abs() < 1e-9 && (figure("reward_deviation") - 0.187_082_869).abs() < 1e-6);
    assert!((figure("unanswered") - 1.0 / 6.0).abs() < 1e-9 && figure("searches") > 0.9);
    let of_steps = column(&trained, "reward");
    assert!(of_steps.len() == 2 && (of_steps.iter().sum::<f64>() / 2.0 - 0.25).abs() < 1e-9, "{of_steps:?}");
    assert!(column(&trained, "rollout_tokens").iter().all(|count| *count > 5.0));
    assert!(trained.summary.contains("rollouts: reward 0.250 (deviation 0.187)"), "{}", trained.summary);
    assert!(trained.summary.contains("length 16.7 %"), "{}", trained.summary);
    let page = std::fs::read_to_string(trained.trees["report"].join("report.html")).expect("a page");
    for title in ["Mean reward", "Entropy over the vocabulary", "Searches in a rollout", "without an answer"] {
        assert!(page.contains(title), "{title}");
    }
}

#[test]
fn a_reference_of_another_kind_is_named() {
    let small = bench(json!({}));
    let batch = rollouts(&small).1;
    let told = |model: &Path| {
        let reference = ("reference", tree_input(TreeKind::Model, model));
        train(&small, &batch, json!({}), vec![reference]).unwrap_err().message
    };
    let wide = bench(json!({"hidden": 16, "layers": 1}));
    let reference = ("reference", tree_input(TreeKind::Model, &wide.model));
    train(&small, &batch, json!({}), vec![reference]).expect("another shape is no matter, with the same tokenizer");
    let other = bench(json!({}));
    let path = other.model.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
    for (_, id) in tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary") {
        *id = match id.as_u64().expect("an id") {
            id @ 50..300 => json!(349 - id),
            id => json!(id),
        };
    }
    std::fs::write(&path, tokenizer.to_string()).expect("writes");
    let message = told(&other.model);
    assert!(message.contains("to the model, and `") && message.contains("to `reference`"), "{message}");
    let path = wide.model.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
    config["max_position_embeddings"] = json!(8);
    std::fs::write(&path, config.to_string()).expect("writes");
    assert!(told(&wide.model).contains("but the model of `reference` reads at most 8"), "{}", told(&wide.model));
    config["vocab_size"] = json!(20);
    config["max_position_embeddings"] = json!(4096);
    std::fs::write(&path, config.to_string()).expect("writes");
    assert!(told(&wide.model).contains("vocabulary of `reference` ends at 20"), "{}", told(&wide.model));
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

/// Ten steps, or five and five more from the model and the state that these leave, of all weights and of an adapter.
#[test]
fn five_steps_and_five_more_are_ten() {
    let bench = bench(json!({}));
    let (_, batch) = rollouts(&bench);
    let base = || ("model", tree_input(TreeKind::Model, &bench.model));
    let lora = json!({"lora": {"rank": 4, "alpha": 8, "dropout": 0.2}});
    for (tuning, file) in [(json!("full"), "model.safetensors"), (lora, "adapter_model.safetensors")] {
        let is_adapter = tuning != json!("full");
        let steps = |epochs: u32, more: Vec<(&str, InputArtifact)>| {
            train(&bench, &batch, json!({"epochs": epochs, "tuning": tuning}), more).expect("trains")
        };
        let (whole, first) = (steps(10, Vec::new()), steps(5, Vec::new()));
        let model = || ("model", tree_input(TreeKind::Model, &first.trees["model"]));
        let both = || if is_adapter { vec![base(), model()] } else { vec![model()] };
        let state = || ("state", tree_input(TreeKind::Files, &first.trees["state"]));
        let second = steps(5, both().into_iter().chain([state()]).collect());
        let numbers = |path: &Path| -> Vec<f32> {
            let all = candle_core::safetensors::load(path, &candle_core::Device::Cpu).expect("tensors");
            let all: std::collections::BTreeMap<_, _> = all.into_iter().collect();
            all.values().flat_map(|one| one.flatten_all().and_then(|one| one.to_vec1()).expect("numbers")).collect()
        };
        let apart = |one: &Outcome, port: &str, file: &str| {
            let (one, other) = (numbers(&one.trees[port].join(file)), numbers(&whole.trees[port].join(file)));
            assert_eq!(one.len(), other.len());
            one.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0_f32, f32::max)
        };
        assert!(apart(&second, "model", file) < 1e-6 && apart(&second, "state", "optimizer.safetensors") < 1e-6);
        let losses = [column(&first, "loss"), column(&second, "loss")].concat();
        for (found, wanted) in losses.iter().zip(column(&whole, "loss")) {
            assert!((found - wanted).abs() < 1e-6, "{losses:?}");
        }
        let anew = steps(5, both());
        assert!(apart(&anew, "model", file) > 1e-4, "the optimiser's moments matter");
    }
}

#[test]
fn an_adapter_is_trained_further_with_its_base_and_its_options() {
    let bench = bench(json!({}));
    let (_, batch) = rollouts(&bench);
    let tree = |port: &'static str, path: &Path| (port, tree_input(TreeKind::Model, path));
    let lora = |more: Value| {
        let mut options = json!({"rank": 2, "alpha": 4, "dropout": 0, "target_modules": ["q_proj", "down_proj"]});
        options.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        json!({"tuning": {"lora": options}, "policy_loss": {"kl": {"coefficient": 0.01}}})
    };
    let base = || tree("model", &bench.model);
    let reference = || tree("reference", &bench.model);
    let first = train(&bench, &batch, lora(json!({})), vec![base(), reference()]).expect("trains");
    let adapter = || tree("model", &first.trees["model"]);
    let state = || ("state", tree_input(TreeKind::Files, &first.trees["state"]));
    let further = |more: Value| train(&bench, &batch, lora(more), vec![base(), adapter(), state(), reference()]);
    let second = further(json!({"dropout": 0.1})).expect("another dropout is no matter");
    assert!(column(&first, "reference_kl")[0] < 1e-6, "an adapter begins as its base");
    assert!(column(&second, "reference_kl")[0] > 1e-5, "the reference is the base without the adapter");
    // Merged, it is the same policy.
    let merged = train(&bench, &batch, lora(json!({"merge": true})), vec![base(), reference()]).expect("trains");
    let alone = train(&bench, &batch, json!({}), vec![tree("model", &merged.trees["model"])]).expect("trains");
    for name in ["loss", "kl", "entropy", "logprob_gap"] {
        let apart = (column(&alone, name)[0] - column(&further(json!({})).expect("trains"), name)[0]).abs();
        assert!(apart < 1e-3, "{name}: {apart}");
    }
    let fails = |params: Value, more: Vec<(&str, InputArtifact)>| {
        train(&bench, &batch, params, more).expect_err("a mistake").message
    };
    let all = || vec![base(), adapter(), state(), reference()];
    let with_reference = |mut more: Vec<(&'static str, InputArtifact)>| {
        more.push(reference());
        more
    };
    for (params, more, words) in [
        (lora(json!({})), vec![adapter(), reference()], "an adapter is given without the model"),
        (lora(json!({"rank": 3})), all(), "has rank 2, and `tuning.lora.rank` is 3"),
        (lora(json!({"alpha": 8})), all(), "has alpha 4, and `tuning.lora.alpha` is 8"),
        (lora(json!({"target_modules": ["q_proj"]})), all(), "`tuning.lora.target_modules` names others"),
        (json!({"tuning": "full"}), vec![base(), adapter()], "`tuning: full` trains no adapter"),
        (lora(json!({})), vec![base(), state(), reference()], "`state` is the optimiser of an adapter"),
        (lora(json!({})), with_reference(vec![base(), tree("model", &merged.trees["model"])]), "two different models"),
    ] {
        let message = fails(params, more);
        assert!(message.contains(words), "{message}");
    }
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
    let missing = check::input_issues(&params, &["trajectories", "model"]);
    assert!(missing[0].message.contains("no model to measure the divergence from"), "{missing:?}");
    assert!(check::input_issues(&params, &["trajectories", "model", "reference"]).is_empty());
}

#[test]
fn an_entropy_bonus_keeps_the_policy_open() {
    let bench = bench(json!({}));
    let (_, batch) = rollouts(&bench);
    let last = |loss: Value| {
        let trained = train(&bench, &batch, json!({"epochs": 6, "policy_loss": loss}), Vec::new()).expect("trains");
        (
            column(&trained, "entropy")[5],
            std::fs::read(trained.trees["model"].join("model.safetensors")).expect("weights"),
        )
    };
    let (plain, zero, open) = (last(json!({})), last(json!({"entropy": 0})), last(json!({"entropy": 0.5})));
    assert_eq!(plain.1, zero.1, "0 changes nothing");
    assert!(open.0 > plain.0 + 0.01, "{} {}", open.0, plain.0);
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
        (json!({"policy_loss": {"entropy": -0.1}}), "policy_loss.entropy: "),
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
