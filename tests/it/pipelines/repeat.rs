//! Tests of loops: rounds as nodes, what they carry, what more rounds cost, and mistakes.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::harness::project::{Mill, killed_after};

const SUM: &str = "\
name: sum
params: {rounds: 4, step: 10}
nodes:
  start: {op: read, with: {path: start.jsonl, as: table}}
  curve: {op: sql, from: {t: add}, with: {query: \"select round, x from t order by round\"}}
  last:  {op: sql, from: {t: sum.total}, with: {query: \"select x from t\"}}
repeat:
  sum:
    rounds: \"${params.rounds}\"
    carry: {total: start}
    nodes:
      add: {op: sql, from: {t: total}, with: {query: \"select x + ${params.step} * ${repeat.round} as x from t\"}}
    next: {total: add}
";

fn sum() -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", SUM);
    mill.write("start.jsonl", "{\"x\": 1}\n");
    mill
}

fn rows(mill: &Mill, node: &str) -> Vec<Value> {
    mill.call(&["show", node, "--json"]).exit(0).events()
}

fn ran(told: &crate::harness::project::Told) -> Vec<String> {
    let done = told.events().into_iter().filter(|event| event["event"] == "node_finished");
    done.filter_map(|event| Some(event["node"].as_str()?.to_owned())).collect()
}

#[test]
fn rounds_hand_on_and_more_of_them_run_only_what_is_new() {
    let mill = sum();
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    mill.run(&[]).exit(0);
    let x = |row: &Value| row["x"].as_i64().expect("a number");
    assert_eq!(rows(&mill, "curve").iter().map(x).collect::<Vec<_>>(), [1, 11, 31, 61]);
    assert_eq!(rows(&mill, "curve")[2]["round"], 2, "a number, not text");
    assert_eq!(x(&rows(&mill, "last")[0]), 61);
    assert_eq!(x(&rows(&mill, "add@round=1")[0]), 11);
    let more = mill.run(&["--set", "rounds=6"]).exit(0);
    let mut new = ran(&more);
    new.sort();
    assert_eq!(new, ["add@all", "add@round=4", "add@round=5", "curve", "last"], "{}", more.stdout);
    assert_eq!(x(&rows(&mill, "last")[0]), 151);
}

#[test]
fn mistakes_in_loops_are_told_at_their_place() {
    let told = |from: &str, to: &str| {
        let mill = sum();
        assert!(SUM.contains(from), "{from}");
        mill.write("pipeline.yaml", &SUM.replace(from, to));
        mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr
    };
    for (from, to, place, words) in [
        ("\"${params.rounds}\"", "0", "9:13", "`rounds` must be a whole number of at least 1"),
        ("rounds: \"${params.rounds}\"", "rounds: 1e9", "9:13", "whole number"),
        ("rounds: \"${params.rounds}\"", "rounds: 20000", "9:13", "(limit: 10000)"),
        ("    rounds: \"${params.rounds}\"\n", "", "8:3", "has no `rounds`"),
        ("    next: {total: add}\n", "", "10:13", "the loop `sum` carries `total`, which `next` lacks"),
        ("next: {total: add}", "next: {totl: add, total: add}", "13:12", "did you mean `total`?"),
        ("next: {total: add}", "next: {total: ad}", "13:19", "did you mean `add`?"),
        ("carry: {total: start}", "carry: {total: strat}", "10:20", "there is no node `strat`"),
        ("carry: {total: start}", "carry: {total: add}", "10:20", "the first round cannot start from `add`"),
        ("{t: sum.total}", "{t: sum.totl}", "6:30", "write `sum.total`"),
        ("{t: sum.total}", "{t: sum}", "6:30", "write `sum.total`"),
        ("from: {t: total}", "from: {t: sum.total}", "12:32", "is part of it"),
        ("from: {t: total}", "from: {t: total.rows}", "12:32", "write `total`"),
        (
            "  start: {",
            "  sum: {op: read, with: {path: start.jsonl, as: table}}\n  start: {",
            "9:3",
            "`sum` is there already",
        ),
        ("    carry:", "    cary: {}\n    carry:", "10:5", "did you mean `carry`?"),
        (
            "with: {query: \"select x from t\"}",
            "with: {query: \"select ${repeat.round} from t\"}",
            "6:64",
            "there are no rounds here",
        ),
        ("${repeat.round}", "${repeat.rond}", "12:83", "`repeat` has only `round`"),
    ] {
        let text = told(from, to);
        let is_there = text.contains(words) && text.contains(&format!("pipeline.yaml:{place}"));
        assert!(is_there && text.matches("error[").count() <= 2, "{to}\n{text}");
    }
}

#[test]
fn a_seed_of_several_numbers_differs_in_each_of_them() {
    let mill = Mill::new();
    let text = |seed: &str| {
        format!(
            "name: seeds\nnodes:\n  rows: {{op: read, with: {{path: rows.jsonl, as: document}}}}\nrepeat:\n  rl:\n    \
             rounds: 3\n    matrix: {{seed: [1, 2]}}\n    nodes:\n      batch: {{op: sample, from: rows, with: {{n: 9}}, \
             seed: {seed}}}\n"
        )
    };
    let lines = (0..400).map(|row| format!("{{\"id\": \"d{row}\", \"text\": \"x\"}}\n"));
    mill.write("rows.jsonl", &lines.collect::<String>());
    mill.write("pipeline.yaml", &text("[\"${repeat.round}\", \"${matrix.seed}\"]"));
    mill.run(&[]).exit(0);
    let nodes = mill.last_nodes();
    let batches: BTreeSet<_> = nodes.iter().filter_map(|node| Some(node.outputs.get("rows")?.id)).collect();
    assert_eq!(batches.len(), 7, "the rows, and six batches");
    mill.write("pipeline.yaml", &text("\"${repeat.round}${matrix.seed}\""));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("`seed: [\"${repeat.round}\", \"${matrix.seed}\"]`"), "{told}");
    assert_eq!(told.matches("error[").count(), 1, "{told}");
    mill.write("pipeline.yaml", &text("[]"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("`seed` is an empty list"), "{told}");
}

#[test]
fn status_folds_rounds() {
    let mill = sum();
    mill.run(&[]).exit(0);
    let folded = mill.call(&["status", "pipeline.yaml"]).exit(0).stdout;
    assert!(folded.contains("add ×4") && folded.contains("4 cached") && !folded.contains("round=2"), "{folded}");
    let all = mill.call(&["status", "pipeline.yaml", "--all"]).exit(0).stdout;
    assert!(all.contains("add@round=2") && !all.contains("×4"), "{all}");
    let json = mill.call(&["status", "pipeline.yaml", "--json"]).exit(0).stdout;
    assert_eq!(json, mill.call(&["status", "pipeline.yaml", "--json", "--all"]).exit(0).stdout);
    assert!(json.contains("\"add@round=2\""), "{json}");
}

#[test]
fn what_follows_from_a_missing_file_or_a_name_given_twice_is_not_told() {
    let mill = sum();
    let included = SUM
        .replace("params:", "include: [gone.yaml]\nparams:")
        .replace("{t: add}", "{t: add, u: more.rows}")
        .replace("    nodes:\n", "    include: [round.yaml]\n    best: \"select count(*) from score\"\n    nodes:\n")
        .replace("next: {total: add}", "next: {total: other}");
    mill.write("pipeline.yaml", &included);
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("`gone.yaml`: no such file") && told.contains("`round.yaml`: no such file"), "{told}");
    assert_eq!(told.matches("error[").count(), 2, "{told}");
    // An error that does not follow from it is told behind it.
    mill.write("pipeline.yaml", &included.replace("params: {", "params: {step: 1, "));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.starts_with("error[file-not-found]") && told.matches("error[").count() == 3, "{told}");
    // A node of the loop has the name of another one, which lacks the output that is handed on.
    let twice = SUM
        .replace(
            "add: {op: sql, from: {t: total}",
            "add: {op: split, from: start, with: {parts: {few: 3, rest: rest}}}\n      x: {op: sql, from: {t: total}",
        )
        .replace("next: {total: add}", "next: {total: add.few}")
        .replace("  start:", "  add: {op: read, with: {path: start.jsonl, as: table}}\n  start:");
    mill.write("pipeline.yaml", &twice);
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("duplicate node `add`") && told.matches("error[").count() == 1, "{told}");
}

#[test]
fn a_thousand_rounds_are_planned_in_order() {
    let mill = sum();
    let told = mill.call(&["plan", "pipeline.yaml", "--set", "rounds=1000", "--json"]).exit(0).events();
    let at = |id: &str| told.iter().position(|node| node["node"] == id).unwrap_or_else(|| panic!("{id}"));
    assert!(at("add@round=9") < at("add@round=10") && at("add@round=999") < at("last"));
}

pub(crate) const LEARNT: &str = "\
name: rl
params: {rounds: 2}
nodes:
  world:   {op: generate-world, with: {documents: 120, questions: 12, min_hops: 1, max_hops: 1}, seed: 5}
  bm25:    {op: index, from: chunks, with: {kind: bm25}}
  chunks:  {op: chunk, from: world, with: {size: 60, count: words}}
  start:   {op: read-model, with: {model: models/decoder}}
  steps:   {op: sql, from: {s: step.steps}, with: {query: \"select round, step, ratio, kl, logprob_gap from s order by round, step\"}}
  best:    {op: rollout, from: {questions: world.questions, search: bm25, model: rl.policy}, with: {policy: {model: {temperature: 0, max_tokens: 8}}, max_turns: 2}}
repeat:
  rl:
    rounds: \"${params.rounds}\"
    carry: {policy: start, optimizer: null}
    nodes:
      batch:    {op: sample, from: world.questions, with: {n: 4}, seed: \"${repeat.round}\"}
      rollouts: {op: rollout, from: {questions: batch, search: bm25, model: policy}, with: {policy: {model: {temperature: 1, max_tokens: 8}}, max_turns: 2, samples: 3, record: tokens}, seed: \"${repeat.round}\"}
      scored:   {op: advantage, from: rollouts, with: {reward: \"sample_index\", method: grpo}}
      step:     {op: train, from: {trajectories: scored, model: policy, state: optimizer, reference: start}, with: {method: grpo, epochs: 1, batch_size: 6, learning_rate: 1e-3, schedule: constant, warmup_ratio: 0, policy_loss: {kl: {coefficient: 0.01}}}}
    next: {policy: step.model, optimizer: step.state}
";

#[test]
fn a_policy_learns_from_its_own_tokens_round_by_round() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", LEARNT);
    crate::harness::models::write(&mill.path("models"));
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    mill.run(&[]).exit(0);
    let steps = rows(&mill, "steps");
    let figure = |row: &Value, name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
    assert_eq!(steps.iter().map(|row| figure(row, "round")).collect::<Vec<_>>(), [0.0, 0.0, 1.0, 1.0]);
    for row in steps.iter().filter(|row| row["step"] == 1) {
        assert!(figure(row, "logprob_gap") < 1e-4 && figure(row, "kl") < 1e-8, "sampled by the same weights: {row}");
    }
    for row in steps.iter().filter(|row| row["step"] == 2) {
        assert!(figure(row, "kl") > 0.0, "the first step moved the policy: {row}");
    }
    let again = mill.run(&[]).exit(0);
    assert!(ran(&again).is_empty(), "{}", again.stdout);
    let third = mill.run(&["--set", "rounds=3"]).exit(0);
    assert!(ran(&third).iter().all(|node| node.ends_with("round=2") || !node.contains("round=")), "{}", third.stdout);
    let told = mill.call(&["audit", "step@round=2", "--replay", "--rollouts"]).exit(0);
    assert!(told.stdout.contains("as recorded") || told.stderr.contains("as recorded"), "{}", told.stdout);
}

/// The loop of [`LEARNT`] with an adapter that every round trains further, and rollouts of the last policy as adapter and merged.
pub(crate) fn with_adapter() -> String {
    let merge = "      merged: {op: train, from: {trajectories: scored, model: [start, policy], state: optimizer, reference: start}, with: {method: grpo, tuning: {lora: {rank: 4, alpha: 8, dropout: 0.1, merge: true}}, epochs: 1, batch_size: 6, learning_rate: 1e-2, schedule: constant, warmup_ratio: 0, policy_loss: {kl: {coefficient: 0.01}, entropy: 0.01}}, seed: 3}\n";
    let step = merge.replace("merged: {", "step: {").replace(", merge: true", "");
    let rollouts = "op: rollout, from: {questions: batch, search: bm25, model: MODEL}, with: {policy: {model: {temperature: 1, max_tokens: 8}}, max_turns: 2, samples: 2, record: tokens}, seed: 9";
    let looks = ["[start, step.model]", "merged.model"].map(|model| rollouts.replace("MODEL", model));
    let looks = format!("      adapted: {{{}}}\n      whole: {{{}}}\n", looks[0], looks[1]);
    let nodes: String = LEARNT
        .lines()
        .map(|line| if line.trim_start().starts_with("step:") { step.clone() } else { format!("{line}\n") })
        .collect();
    nodes
        .replace("model: policy}", "model: [start, policy]}")
        .replace("model: rl.policy", "model: [start, rl.policy]")
        .replace("    next:", &format!("{merge}{looks}    next:"))
}

#[test]
fn an_adapter_goes_on_from_round_to_round() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &with_adapter());
    crate::harness::models::write(&mill.path("models"));
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    mill.run(&["--set", "rounds=3"]).exit(0);
    let steps = rows(&mill, "steps");
    let figure = |row: &Value, name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
    assert_eq!(steps.len(), 6);
    for row in steps.iter().filter(|row| row["step"] == 1) {
        // With an adapter, the generation and the training add its product in another order.
        assert!(figure(row, "logprob_gap") < 1e-3, "sampled by the policy that learns: {row}");
    }
    let far = |round: u32| figure(&rows(&mill, &format!("step@round={round}.steps"))[0], "reference_kl");
    assert!(far(0) < 1e-6 && far(1) > 1e-6 && far(2) > 1e-6, "the reference is the base: {} {}", far(1), far(2));
    for round in 0..3 {
        let [adapted, whole] = ["adapted", "whole"].map(|node| rows(&mill, &format!("{node}@round={round}")));
        assert_eq!(adapted.len(), 8);
        for (one, other) in adapted.iter().zip(&whole) {
            assert_eq!((&one["messages"], &one["answer"]), (&other["messages"], &other["answer"]), "the same policy");
            let logprobs = |row: &Value| {
                let spans = row["tokens"].as_array().into_iter().flatten();
                let numbers = spans.flat_map(|span| span["logprobs"].as_array().into_iter().flatten());
                numbers.map(|number| number.as_f64().expect("a number")).collect::<Vec<_>>()
            };
            let (one, other) = (logprobs(one), logprobs(other));
            assert!(!one.is_empty() && one.len() == other.len());
            assert!(one.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-3), "{one:?} {other:?}");
        }
    }
    assert!(ran(&mill.run(&["--set", "rounds=3"]).exit(0)).is_empty());
    let told = mill.call(&["audit", "step@round=2", "--replay", "--rollouts"]).exit(0);
    assert!(told.stdout.contains("everything checked is as recorded"), "{}", told.stdout);
    // An adapter alone is named before anything runs.
    mill.write("pipeline.yaml", &with_adapter().replace("[start, policy], state", "policy, state"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("`model` is an adapter without its base") && told.contains("[base, adapter]"), "{told}");
}

#[test]
fn kill_9_at_any_moment_of_a_loop_gives_the_same_model() {
    let learning = || {
        let mill = Mill::new();
        mill.write("pipeline.yaml", LEARNT);
        crate::harness::models::write(&mill.path("models"));
        mill
    };
    let model = |mill: &Mill| {
        mill.run(&["--set", "rounds=4", "step"]).exit(0);
        let nodes = mill.last_nodes();
        let step = nodes.iter().find(|node| node.node == "step@round=3").expect("the last round");
        (step.outputs["model"].id, step.outputs["state"].id)
    };
    let (calm, killed) = (learning(), learning());
    for wait in [120, 260, 340, 420, 500] {
        let mut run = killed.command(&["run", "pipeline.yaml", "--set", "rounds=4", "step", "-q"]);
        killed_after(&mut run, Duration::from_millis(wait));
    }
    assert_eq!(model(&killed), model(&calm));
}

#[test]
fn another_reward_keeps_the_rollouts_of_the_first_round() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", LEARNT);
    crate::harness::models::write(&mill.path("models"));
    mill.run(&["step"]).exit(0);
    mill.write("pipeline.yaml", &LEARNT.replace("\"sample_index\"", "\"sample_index * sample_index\""));
    let mut again = ran(&mill.run(&["step"]).exit(0));
    again.sort();
    assert_eq!(again, ["rollouts@round=1", "scored@round=0", "scored@round=1", "step@round=0", "step@round=1"]);
}

/// Another temperature than 1, a divergence in the reward, and pairs of recorded rollouts.
const OTHERS: &str = "\
name: others
nodes:
  world:   {op: generate-world, with: {documents: 120, questions: 12, min_hops: 1, max_hops: 1}, seed: 5}
  bm25:    {op: index, from: chunks, with: {kind: bm25}}
  chunks:  {op: chunk, from: world, with: {size: 60, count: words}}
  start:   {op: read-model, with: {model: models/decoder}}
  batch:   {op: sample, from: world.questions, with: {n: 4}, seed: 1}
  rollouts: {op: rollout, from: {questions: batch, search: bm25, model: start}, with: {policy: {model: {temperature: TEMPERATURE, max_tokens: 8}}, max_turns: 2, samples: 3, record: tokens}, seed: 1}
  scored:  {op: advantage, from: {trajectories: rollouts, reference: start}, with: {reward: \"sample_index\", method: reinforce++, kl: {coefficient: 0.1}}}
  step:    {op: train, from: {trajectories: scored, model: start}, with: {method: reinforce++, epochs: 2, batch_size: 20, learning_rate: 1e-3, schedule: constant, warmup_ratio: 0}}
  pairs:   {op: pair, from: rollouts, with: {order_by: [sample_index desc]}}
  likes:   {op: train, from: {pairs: pairs, model: start}, with: {method: dpo, epochs: 4, batch_size: 4, learning_rate: 1e-2, schedule: constant, warmup_ratio: 0}}
  steps:   {op: sql, from: {s: step.steps}, with: {query: \"select step, ratio, kl, logprob_gap, entropy, rollout_tokens from s order by step\"}}
  liked:   {op: sql, from: {s: likes.steps}, with: {query: \"select step, loss, reward_margin from s order by step\"}}
";

#[test]
fn what_was_sampled_at_a_temperature_is_learnt_at_that_temperature() {
    let entropies = ["0.6", "1", "8"].map(|temperature| {
        let mill = Mill::new();
        mill.write("pipeline.yaml", &OTHERS.replace("TEMPERATURE", temperature));
        crate::harness::models::write(&mill.path("models"));
        mill.run(&[]).exit(0);
        let steps = rows(&mill, "steps");
        let figure = |row: &Value, name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
        assert!(
            figure(&steps[0], "logprob_gap") < 1e-4 && figure(&steps[0], "kl") < 1e-8,
            "{temperature}: {}",
            steps[0]
        );
        assert!((figure(&steps[0], "ratio") - 1.0).abs() < 1e-5 && figure(&steps[1], "kl") > 0.0, "{temperature}");
        assert!(figure(&steps[0], "rollout_tokens") >= 1.0, "{}", steps[0]);
        let liked = rows(&mill, "liked");
        assert!((figure(&liked[0], "loss") - 2.0_f64.ln()).abs() < 1e-4, "{}", liked[0]);
        // At a low temperature, both rollouts of a pair are the same: there is nothing to prefer.
        let margin = figure(&liked[3], "reward_margin");
        assert!(margin >= 0.0 && (margin > 0.0 || temperature != "8"), "{temperature}: {liked:?}");
        figure(&steps[0], "entropy")
    });
    assert!(entropies[0] < entropies[1] && entropies[1] < entropies[2], "{entropies:?}");
}

#[test]
fn a_loop_includes_the_nodes_of_its_rounds() {
    let mill = sum();
    let round = "\
params: {step: 1}
nodes:
  add: {op: sql, from: {t: total}, with: {query: \"select x + ${params.step} * ${repeat.round} as x from t\"}}
";
    let (before, after) = SUM.split_once("    nodes:\n").expect("the nodes of the loop");
    let next = after.split_once("    next:").expect("what is handed on").1;
    let included = "    include: {path: round.yaml, params: {step: 10}}\n";
    mill.write("pipeline.yaml", &format!("{before}{included}    next:{next}"));
    mill.write("round.yaml", round);
    mill.run(&[]).exit(0);
    let x = |row: &Value| row["x"].as_i64().expect("a number");
    assert_eq!(rows(&mill, "curve").iter().map(x).collect::<Vec<_>>(), [1, 11, 31, 61]);
    // A mistake stands in the file that has it.
    mill.write("round.yaml", &round.replace("op: sql", "op: sqll"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("round.yaml:3:") && told.contains("did you mean `sql`"), "{told}");
    mill.write("round.yaml", &(round.to_owned() + "repeat: {}\n"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("round.yaml:4:1") && told.contains("repeat"), "{told}");
}
