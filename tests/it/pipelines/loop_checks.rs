//! Tests of what `validate` knows of loops before anything runs: how rollouts are sampled, columns in conditions.

use super::repeat::{LEARNT, with_adapter};
use crate::harness::project::Mill;

#[test]
fn rollouts_that_cannot_be_learnt_from_are_told_before_anything_runs() {
    let told = |from: &str, to: &str| {
        let mill = Mill::new();
        assert!(LEARNT.contains(from), "{from}");
        mill.write("pipeline.yaml", &LEARNT.replace(from, to));
        crate::harness::models::write(&mill.path("models"));
        mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr
    };
    for (from, to, words) in [
        (", record: tokens", "", "the rollouts have no recorded tokens"),
        ("temperature: 1,", "temperature: 0,", "sampled at temperature 0"),
        ("temperature: 1,", "temperature: 1, top_p: 0.9,", "with `top_p` or `top_k`"),
        ("temperature: 1,", "temperature: 1, top_k: 20,", "with `top_p` or `top_k`"),
        (
            ", record: tokens}, seed: \"${repeat.round}\"}\n      scored:   {op: advantage, from: rollouts",
            "}, seed: \"${repeat.round}\"}\n      some: {op: filter, from: rollouts, with: {where: \"turns > 0\"}}\n      scored:   {op: advantage, from: some",
            "the rollouts have no recorded tokens",
        ),
    ] {
        let text = told(from, to);
        assert!(text.contains(words) && text.contains("method: grpo"), "{to}\n{text}");
        assert_eq!(text.matches("error[").count(), 1, "{text}");
    }
}

#[test]
fn conditions_on_the_columns_of_operators_are_checked_before_anything_runs() {
    let told = |ends: &str| {
        let mill = Mill::new();
        let text = LEARNT.replace(
            "      step: ",
            "      greedy: {op: rollout, from: {questions: world.questions, search: bm25, model: policy}, with: {policy: {model: {temperature: 0, max_tokens: 8}}}}\n      validation: {op: evaluate, from: greedy}\n      step: ",
        );
        mill.write("pipeline.yaml", &format!("{text}    {ends}\n"));
        crate::harness::models::write(&mill.path("models"));
        mill.call(&["validate", "pipeline.yaml"])
    };
    for (ends, words) in [
        ("best: \"select avg(f2) from validation\"", "there is no column `f2`"),
        ("best: \"select valu from validation.metrics where id = 'all/f1'\"", "did you mean `value`?"),
        ("stop: {watch: {kl: \"select max(kll) < 0.5 from step.steps\"}}", "did you mean `kl`?"),
        (
            "stop: {watch: {gap: \"select max(gap) < 0.5 from step.steps\", f1: \"select avg(f1) > 0 from validation\"}}",
            "there is no column `gap`",
        ),
        ("best: \"select avg(advantag) from scored\"", "did you mean `advantage`?"),
    ] {
        let text = told(ends).exit(2).stderr;
        assert!(text.contains(words) && text.matches("error[").count() == 1, "{ends}\n{text}");
    }
    for ends in [
        "best: \"select avg(f1) from validation\"",
        "best: \"select -max(kl) - max(reference_kl) - avg(rollout_tokens) from step.steps\"",
        "best: \"select avg(advantage) from scored\"",
    ] {
        told(ends).exit(0);
    }
}

#[test]
fn a_loop_without_next_is_told_once() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &LEARNT.replace("    next: {policy: step.model, optimizer: step.state}\n", ""));
    crate::harness::models::write(&mill.path("models"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(
        told.contains("carries `policy` and `optimizer`, which `next` lacks")
            && told.contains("{policy: NODE.PORT, optimizer: NODE.PORT}"),
        "{told}"
    );
    assert_eq!(told.matches("error[").count(), 1, "{told}");
}

#[test]
fn rewards_without_advantages_and_adapters_without_their_base_are_told_before_anything_runs() {
    let told = |text: &str| {
        let mill = Mill::new();
        mill.write("pipeline.yaml", text);
        crate::harness::models::write(&mill.path("models"));
        mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr
    };
    let rewarded = "scored:   {op: reward, from: rollouts, with: {sum: [{f1: 1}]}}";
    let text = told(&LEARNT.replace(
        "scored:   {op: advantage, from: rollouts, with: {reward: \"sample_index\", method: grpo}}",
        rewarded,
    ));
    assert!(text.contains("no numbers in a column `advantage`") && text.contains("add the node `advantage`"), "{text}");
    assert!(text.contains("method: grpo") && text.matches("error[").count() == 1, "{text}");
    let adapter = with_adapter();
    let text = told(&adapter.replacen("search: bm25, model: [start, policy]", "search: bm25, model: policy", 1));
    assert!(text.contains("`model` is an adapter without its base") && text.contains("made here"), "{text}");
    let made = "{op: init-model, from: world.documents, with: {vocab: 512, hidden: 32, layers: 1, heads: 2}}";
    let merged = adapter.replace("dropout: 0.1}", "dropout: 0.1, merge: true}");
    let merged = merged.replace("{op: read-model, with: {model: models/decoder}}", made);
    // In the first round, `[start, policy]` is one model twice.
    let trained = format!(
        "{{op: train, from: {{examples: swift, model: blank}}}}\n  blank: {made}\n  swift: {{op: convert-to-swift, from: taught}}\n  \
         taught: {{op: rollout, from: {{questions: world.questions, search: bm25}}, with: {{policy: evidence}}}}"
    );
    let mill = Mill::new();
    mill.write("pipeline.yaml", &adapter.replace("{op: read-model, with: {model: models/decoder}}", &trained));
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    let text = told(&merged);
    assert!(text.contains("`model` names two whole models") && text.contains("leave `merge` out"), "{text}");
}

#[test]
fn rows_that_pass_a_node_are_sampled_as_before() {
    let mill = Mill::new();
    for between in [
        "sample, from: rollouts, with: {n: 4}, seed: 1",
        "gather, from: {a: rollouts}, with: {columns: [part], tables: [{name: a, values: [1]}]}",
    ] {
        let text = LEARNT.replace(", record: tokens", "").replace(
            "      scored:   {op: advantage, from: rollouts",
            &format!("      some: {{op: {between}}}\n      scored:   {{op: advantage, from: some"),
        );
        mill.write("pipeline.yaml", &text);
        crate::harness::models::write(&mill.path("models"));
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        assert!(
            told.contains("the rollouts have no recorded tokens") && told.contains("made here"),
            "{between}\n{told}"
        );
    }
}

#[test]
fn a_name_that_stands_for_several_models_is_no_model() {
    let mill = Mill::new();
    let seeds = LEARNT.replace("    rounds: \"${params.rounds}\"\n", "    rounds: 2\n    matrix: {seed: [1, 2]}\n");
    for (text, count) in [(LEARNT.replace("model: rl.policy}", "model: step.model}"), "2"), (seeds, "2")] {
        mill.write("pipeline.yaml", &text);
        crate::harness::models::write(&mill.path("models"));
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        assert!(told.contains(&format!("one name stands for {count} models at `model`")), "{told}");
        assert!(told.contains("LOOP.NAME") && told.matches("error[").count() == 1, "{told}");
    }
}

/// Rounds that each lose one of twelve rows.
const LOSSES: &str = "\
name: losses
params: {rounds: 5}
nodes:
  world: {op: generate-world, with: {documents: 120, questions: 12, min_hops: 1, max_hops: 1}, seed: 5}
  start: {op: sql, from: {w: world.questions}, with: {query: \"select 0 * count(*) as x from w\"}}
  file:  {op: write, from: sum.total, with: {path: total.jsonl}}
repeat:
  sum:
    rounds: \"${params.rounds}\"
    carry: {total: start}
    nodes:
      asked:    {op: sql, from: {w: world.questions, t: total}, with: {query: \"select w.* from w cross join t\", as: question}}
      rollouts: {op: rollout, from: {questions: asked}, with: {policy: {evidence: {}}}}
      marked:   {op: sql, from: {r: rollouts}, with: {query: \"select r.*, case when row_number() over (order by id) = 1 then cast('NaN' as double) else 1.0 end as reward from r\", as: trajectory}}
      scored:   {op: advantage, from: marked, with: {method: grpo}}
      add:      {op: sql, from: {s: scored}, with: {query: \"select count(*) as x from s\"}}
    next: {total: add}
";

#[test]
fn losses_of_rounds_do_not_add_up() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", LOSSES);
    mill.run(&[]).exit(0);
    assert_eq!(mill.read("total.jsonl").trim(), "{\"x\":11}");
    mill.write("pipeline.yaml", &LOSSES.replace("= 1 then", "<= 2 then"));
    let told = mill.run(&[]).exit(3).stdout;
    assert!(told.contains("17 % of the rows were lost before it"), "two of twelve in each round: {told}");
}
