//! Tests of `advantage`.

use std::path::Path;

use arrow::datatypes::Float64Type;
use searchmill_engine::operator::entry;
use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, tree_input};
use searchmill_fixtures::trajectories::{sampled_from_all, trajectory};
use searchmill_schemas::{TokenSpan, to_batch};
use serde_json::{Value, json};

use super::*;

/// Questions, rewards and tokens of rollouts.
const ROLLOUTS: [(&str, f64, i64); 8] = [
    ("a", 1.0, 3),
    ("a", 0.0, 1),
    ("a", 0.5, 2),
    ("b", 0.2, 5),
    ("b", 0.2, 4),
    ("c", 0.9, 2),
    ("d", 0.0, 6),
    ("d", 1.0, 1),
];

fn rewarded(rows: &[(&str, Option<f64>, i64)]) -> RecordBatch {
    let made = rows.iter().enumerate().map(|(place, (id, _, tokens))| {
        let mut rollout = trajectory(id, place as i32, "x", "y");
        rollout.completion_tokens = *tokens;
        rollout
    });
    let batch = to_batch(&made.collect::<Vec<_>>()).unwrap();
    let rewards: Float64Array = rows.iter().map(|(_, reward, _)| *reward).collect();
    with_columns(&batch, vec![(Field::new("reward", DataType::Float64, true), Arc::new(rewards))]).unwrap()
}

fn all() -> RecordBatch {
    rewarded(&ROLLOUTS.map(|(id, reward, tokens)| (id, Some(reward), tokens)))
}

fn try_run(params: Value, batch: RecordBatch) -> Result<Outcome, OperatorError> {
    Harness::new().run(&entry::<Advantage>(), params, &inputs([(ROWS, batch_input(RecordKind::Trajectory, batch))]))
}

fn of(params: Value, batch: RecordBatch) -> Vec<f64> {
    try_run(params, batch).unwrap().batch(ROWS)[ADVANTAGE].as_primitive::<Float64Type>().values().to_vec()
}

fn assert_near(found: &[f64], wanted: &[f64]) {
    let near = |(found, wanted): (&f64, &f64)| (found - wanted).abs() < 1e-9;
    assert!(found.len() == wanted.len() && found.iter().zip(wanted).all(near), "{found:?} {wanted:?}");
}

/// Computed with NumPy by the formulas of verl's `core_algos.py` (`masked_whiten` included).
#[test]
fn advantages_are_those_of_verl() {
    for (method, wanted) in [
        (
            json!({"grpo": {"epsilon": 1e-6}}),
            [
                0.999_998_000_004,
                -0.999_998_000_004,
                0.0,
                0.0,
                0.0,
                0.899_999_100_001,
                -0.707_105_781_188,
                0.707_105_781_188,
            ],
        ),
        (json!("rloo"), [0.75, -0.75, 0.0, 0.0, 0.0, 0.9, -1.0, 1.0]),
        (json!("dr_grpo"), [0.5, -0.5, 0.0, 0.0, 0.0, 0.9, -0.5, 0.5]),
        (
            json!("reinforce++-baseline"),
            [
                1.118_881_845_638,
                -1.176_260_401_824,
                -0.028_689_278_093,
                -0.028_689_278_093,
                -0.028_689_278_093,
                2.036_938_744_623,
                -1.176_260_401_824,
                1.118_881_845_638,
            ],
        ),
        (
            json!("reinforce++"),
            [
                1.669_323_067_611,
                -0.932_219_375_419,
                0.368_551_846_096,
                -0.411_910_886_813,
                -0.411_910_886_813,
                1.409_168_823_308,
                -0.932_219_375_419,
                1.669_323_067_611,
            ],
        ),
    ] {
        assert_near(&of(json!({"method": method, "alone": "reward"}), all()), &wanted);
    }
}

#[test]
fn the_deviation_of_the_population_and_a_lonely_rollout() {
    let wanted = [1.224_444_944_858, -1.224_444_944_858, 0.0, 0.0, 0.0, 0.0, -0.999_800_039_992, 0.999_800_039_992];
    assert_near(&of(json!({"method": {"grpo": {"deviation": "population"}}}), all()), &wanted);
    let found = of(json!({}), all());
    assert!((found[0] - 0.5 / (0.5 + 1e-4)).abs() < 1e-12 && found[5] == 0.0, "{found:?}");
    let equal = rewarded(&[("a", Some(0.1), 1), ("a", Some(0.1), 1), ("a", Some(0.1), 1)]);
    assert_eq!(of(json!({"method": {"grpo": {"epsilon": 0}}}), equal), [0.0; 3], "rounding is no difference");
}

#[test]
fn recorded_tokens_count_before_those_that_were_told() {
    let span = |sampled, count: i32| TokenSpan {
        message: 0,
        branch: 0,
        sampled,
        ids: (0..count).collect(),
        logprobs: sampled.then(|| vec![-0.5; count as usize]),
    };
    let sampling = sampled_from_all();
    let recorded = |(_, _, tokens): &(&str, f64, i64)| RecordedTokens {
        tokens: vec![span(false, 9), span(true, 1), span(false, 4), span(true, *tokens as i32 - 1)],
        sampling: sampling.clone(),
    };
    let recorded = RecordedTokens::to_batch(&ROLLOUTS.iter().map(recorded).collect::<Vec<_>>()).unwrap();
    let untold = rewarded(&ROLLOUTS.map(|(id, reward, _)| (id, Some(reward), 1)));
    let whole = crate::shared::columns::with_all(&untold, &recorded).unwrap();
    let params = json!({"method": "reinforce++"});
    assert_near(&of(params.clone(), whole), &of(params.clone(), all()));
    assert_ne!(of(params.clone(), untold), of(params, all()));
}

#[test]
fn rollouts_without_a_reward_are_rejects_and_no_part_of_a_mean() {
    let rows = [("a", Some(1.0), 1), ("a", None, 1), ("a", Some(f64::NAN), 1), ("a", Some(0.0), 1)];
    let outcome = try_run(json!({"method": "dr_grpo"}), rewarded(&rows)).unwrap();
    assert_eq!(outcome.batch(ROWS)[ADVANTAGE].as_primitive::<Float64Type>().values(), &[0.5, -0.5]);
    let rejects: Vec<_> = outcome.rejects().into_iter().map(|reject| (reject.id, reject.message)).collect();
    assert_eq!(rejects[0], ("a@1".to_owned(), "`reward` is null or no finite number".to_owned()));
    assert_eq!(rejects[1].0, "a@2");
}

#[test]
fn questions_that_teach_nothing_are_told() {
    let outcome = try_run(json!({}), all()).unwrap();
    let figure = |name: &str| outcome.figures[name];
    assert_eq!((figure("groups"), figure("groups_without_spread"), figure("groups_of_one")), (4.0, 1.0, 1.0));
    assert!(outcome.summary.contains("teach nothing: 1 questions"), "{}", outcome.summary);
    let by = of(json!({"by": ["answer"], "reward": "reward * 2", "method": "dr_grpo"}), all());
    assert!((by.iter().sum::<f64>()).abs() < 1e-9 && by[0] > 1.0, "one group of all, twice the reward: {by:?}");
    assert!(try_run(json!({}), rewarded(&[])).unwrap().rows.is_empty());
}

#[test]
fn wrong_params_are_named() {
    for (params, start) in [
        (json!({"reward": "rewrd"}), "`reward`: there is no column `rewrd`"),
        (json!({"reward": "answer"}), "`reward`: `answer` is Utf8, not a number"),
        (json!({"by": []}), "by: name at least one column"),
        (json!({"by": ["question_idd"]}), "`by`: there is no column"),
        (json!({"method": {"grpo": {"epsilon": -1}}}), "method.grpo.epsilon: must be 0 or more"),
    ] {
        let error = try_run(params, all()).expect_err("a mistake").message;
        assert!(error.starts_with(start), "{error}");
    }
}

/// A rollout with recorded tokens, as `scripts/reference_rl.py` made it.
fn reference_vectors() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tests/training/advantages.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// Returns the rollouts of the vectors.
fn sampled_rollouts(vectors: &Value) -> RecordBatch {
    let rewards = floats(&vectors["rewards"]);
    let groups: Vec<&str> = vectors["groups"].as_array().unwrap().iter().map(|group| group.as_str().unwrap()).collect();
    let rows: Vec<_> = groups.iter().zip(&rewards).map(|(group, reward)| (*group, Some(*reward), 1)).collect();
    let recorded: Vec<RecordedTokens> = (0..groups.len())
        .map(|row| {
            let (tokens, learnt) =
                (vectors["tokens"][row].as_array().unwrap(), vectors["learnt"][row].as_array().unwrap());
            let mut logprobs = floats(&vectors["sampled"][row]).into_iter();
            let mut spans: Vec<TokenSpan> = Vec::new();
            for (token, learnt) in tokens.iter().zip(learnt) {
                let sampled = learnt.as_bool().unwrap();
                if spans.last().is_none_or(|span| span.sampled != sampled) {
                    let logprobs = sampled.then(Vec::new);
                    spans.push(TokenSpan { message: 0, branch: 0, sampled, ids: Vec::new(), logprobs });
                }
                let span = spans.last_mut().unwrap();
                span.ids.push(token.as_i64().unwrap() as i32);
                span.logprobs.iter_mut().for_each(|all| all.extend(logprobs.next().map(|number| number as f32)));
            }
            RecordedTokens { tokens: spans, sampling: sampled_from_all() }
        })
        .collect();
    crate::shared::columns::with_all(&rewarded(&rows), &RecordedTokens::to_batch(&recorded).unwrap()).unwrap()
}

fn with_reference(params: Value, batch: RecordBatch) -> Result<Outcome, OperatorError> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tests/models/qwen3");
    let given =
        [(ROWS, batch_input(RecordKind::Trajectory, batch)), ("reference", tree_input(TreeKind::Model, &model))];
    Harness::new().run(&entry::<Advantage>(), params, &inputs(given))
}

fn of_tokens(outcome: &Outcome) -> Vec<Vec<f64>> {
    let column = outcome.batch(ROWS)[TOKEN_ADVANTAGES].as_list::<i32>().clone();
    let list = |row| column.value(row).as_primitive::<Float64Type>().values().to_vec();
    (0..column.len()).map(list).collect()
}

#[test]
fn advantages_are_those_of_trl_and_of_reinforce_plus_plus_with_its_divergence() {
    let vectors = reference_vectors();
    let batch = sampled_rollouts(&vectors);
    for method in ["grpo", "dr_grpo", "rloo"] {
        assert_near(&of(json!({"method": method}), batch.clone()), &floats(&vectors[method]));
    }
    for (method, estimator) in
        [("reinforce++", "k1"), ("reinforce++", "k2"), ("reinforce++", "k3"), ("reinforce++-baseline", "k1")]
    {
        let params = json!({"method": method, "kl": {"coefficient": 0.3, "estimator": estimator}});
        let outcome = with_reference(params, batch.clone()).unwrap();
        let found = of_tokens(&outcome);
        let name = format!("{method}/{estimator}");
        let wanted = vectors[&name].as_array().unwrap();
        let means = outcome.batch(ROWS)[ADVANTAGE].as_primitive::<Float64Type>().values().to_vec();
        for (row, wanted) in wanted.iter().map(floats).enumerate() {
            assert_eq!(found[row].len(), wanted.len(), "one for each sampled token");
            let apart = found[row].iter().zip(&wanted).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
            assert!(apart < 1e-4, "{name} of rollout {row}: {apart}");
            assert!((means[row] - wanted.iter().sum::<f64>() / wanted.len() as f64).abs() < 1e-4);
        }
        assert!(outcome.summary.contains("paid for the divergence"), "{}", outcome.summary);
    }
}

#[test]
fn without_a_cost_all_tokens_have_the_advantage_of_the_rollout() {
    let batch = sampled_rollouts(&reference_vectors());
    let free = with_reference(json!({"method": "reinforce++", "kl": {"coefficient": 0}}), batch.clone()).unwrap();
    let plain = of(json!({"method": "reinforce++"}), batch);
    for (all, one) in of_tokens(&free).iter().zip(plain) {
        assert!(all.iter().all(|number| (number - one).abs() < 1e-9), "{all:?} {one}");
    }
    // Those of an earlier node are not those of this one.
    let again = try_run(json!({}), free.batch(ROWS)).unwrap().batch(ROWS);
    assert!(again.column_by_name(TOKEN_ADVANTAGES).is_none() && again.column_by_name(ADVANTAGE).is_some());
}

#[test]
fn what_cannot_pay_is_named() {
    let batch = sampled_rollouts(&reference_vectors());
    let kl = |method: &str| json!({"method": method, "kl": {"coefficient": 0.1}});
    let error = with_reference(kl("reinforce++"), all()).unwrap_err();
    assert!(error.message.starts_with("`kl`: the rollouts have no recorded tokens"), "{}", error.message);
    let error = with_reference(kl("grpo"), batch.clone()).unwrap_err();
    assert!(error.message.starts_with("kl: belongs to `method: reinforce++`"), "{}", error.message);
    let error = with_reference(json!({"method": "reinforce++", "kl": {"coefficient": -1}}), batch.clone()).unwrap_err();
    assert!(error.message.starts_with("kl.coefficient: must be 0 or more"), "{}", error.message);
    let mut recorded = RecordedTokens::from_batch(&batch).unwrap().unwrap();
    recorded[2].sampling.top_p = 0.5;
    let mixed = crate::shared::columns::with_all(&batch, &RecordedTokens::to_batch(&recorded).unwrap()).unwrap();
    let outcome = with_reference(kl("reinforce++"), mixed).unwrap();
    let rejects: Vec<_> = outcome.rejects().into_iter().map(|reject| (reject.id, reject.message)).collect();
    assert!(rejects.len() == 1 && rejects[0].0 == "a@2" && rejects[0].1.contains("`top_p`"), "{rejects:?}");
    assert_eq!(outcome.batch(ROWS).num_rows(), 7);
}
