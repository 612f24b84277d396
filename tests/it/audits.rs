//! What an audit could not look at is its last word, with an exit code of its own.

use std::fs;

use crate::mill::{Mill, Told, files_in};

const PIPELINE: &str = "\
name: audits
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 6, count: words}}
  few:    {op: sample, from: chunks, with: {n: 5}, seed: 3}
";

fn ran(pipeline: &str) -> Mill {
    let mill = Mill::new();
    let line = |number: usize| {
        format!("{}\n", serde_json::json!({"id": format!("d{number}"), "text": format!("The river {number} is long.")}))
    };
    mill.write("documents.jsonl", &(0..20).map(line).collect::<String>());
    mill.write("pipeline.yaml", pipeline);
    mill.run(&[]).exit(0);
    mill
}

fn last_line(told: &Told) -> &str {
    told.stdout.trim_end().lines().last().unwrap_or_default()
}

#[test]
fn everything_was_looked_at_and_only_then_it_says_so() {
    let mill = ran(PIPELINE);
    assert_eq!(last_line(&mill.call(&["audit", "few", "--replay"]).exit(0)), "everything checked is as recorded");
    // A source that changed: what reads it cannot be computed again.
    mill.write("documents.jsonl", "{\"id\": \"d\", \"text\": \"Another river.\"}\n");
    let told = mill.call(&["audit", "few", "--replay"]).exit(6);
    assert!(last_line(&told).starts_with("1 of "), "{}", told.stdout);
    assert!(last_line(&told).contains(" not checked: replay of corpus (its source"), "{}", told.stdout);
    assert!(!told.stdout.contains("everything checked"), "{}", told.stdout);
    mill.call(&["audit", "few", "--replay", "--strict"]).exit(1);
    // A source that is gone cannot be looked at.
    fs::remove_file(mill.path("documents.jsonl")).expect("removed");
    let told = mill.call(&["audit", "few"]).exit(6);
    assert!(last_line(&told).contains(" not checked: source "), "{}", told.stdout);
    mill.call(&["audit", "few", "--strict"]).exit(1);
}

#[test]
fn what_met_nothing_was_not_checked() {
    let mill = ran(PIPELINE);
    let told = mill.call(&["audit", "few", "--rollouts"]).exit(6);
    assert!(
        last_line(&told).contains("not checked: recheck of any node (no node behind the target"),
        "{}",
        told.stdout
    );
    let page = mill.call(&["audit", "few", "--rollouts", "--json"]).exit(6).events().remove(0);
    assert_eq!((&page["ok"], &page["complete"]), (&false.into(), &false.into()));
    assert_eq!(page["report"]["unchecked"][0]["what"], "recheck of any node");
}

#[test]
fn programs_that_may_not_run_were_not_checked() {
    let program = PIPELINE
        .replace("  few:", "  upper:\n    op: exec\n    from: chunks\n    with: {command: [cat], as: chunk}\n  few:");
    let mill = ran(&program);
    let told = mill.call(&["audit", "upper", "--replay"]).exit(6);
    assert!(last_line(&told).contains("replay of upper (it runs a program"), "{}", told.stdout);
    mill.call(&["audit", "upper", "--replay", "--allow-programs"]);
}

#[test]
fn another_version_was_not_checked() {
    let mill = ran(PIPELINE);
    // The record as an older program would have written it: another version, its own key.
    let store = mill.store();
    let node = mill.last_nodes().into_iter().find(|node| node.node == "few").expect("a node");
    let mut result = store.result(&node.key.expect("a key")).expect("a result");
    result.preimage["version"] = 0.into();
    result.key = searchmill_engine::fingerprint::Preimage::key(&result.preimage);
    store.record(&result).expect("recorded");
    let told = mill.call(&["audit", &result.key.to_string(), "--replay"]).exit(6);
    assert!(last_line(&told).contains("it was made by `sample` version 0"), "{}", told.stdout);
}

#[test]
fn a_run_that_was_deleted_by_hand_is_missed_and_one_that_gc_forgot_is_not() {
    let mill = ran(PIPELINE);
    let first = mill.store().run_ids().remove(0);
    mill.run(&[]).exit(0);
    mill.call(&["audit", "few"]).exit(0);
    let folder = mill.store_path().join("runs").join(&first);
    let kept = mill.path("kept");
    fs::rename(&folder, &kept).expect("moved");
    let told = mill.call(&["audit", "few"]).exit(6);
    assert!(told.stdout.contains(&format!("runs/{first}")), "{}", told.stdout);
    assert!(last_line(&told).contains(&format!("ledger of run {first}")), "{}", told.stdout);
    fs::rename(&kept, &folder).expect("moved back");
    mill.call(&["gc", "--yes", "--keep-runs", "1", "--older-than", "0s", "--forget-runs"]).exit(0);
    assert!(!files_in(&mill.store_path().join("runs")).contains(&folder), "gc forgets it");
    mill.call(&["audit", "few"]).exit(0);
}

const ROLLOUTS: &str = "\
name: replayed
nodes:
  world:    {op: generate-world, with: {documents: 100, questions: 12, min_hops: 1, max_hops: 1}, seed: 3}
  chunks:   {op: chunk, from: world, with: {size: 60, count: words}}
  bm25:     {op: index, from: chunks, with: {kind: bm25}}
  rollouts: {op: rollout, from: {questions: world.questions, search: bm25}, with: {policy: evidence, samples: 2}}
";

fn check<'a>(page: &'a serde_json::Value, node: &str, check: &str) -> &'a serde_json::Value {
    let nodes = page["report"]["nodes"].as_array().expect("nodes");
    let found = nodes.iter().find(|found| found["node"] == node && found["check"] == check);
    found.unwrap_or_else(|| panic!("no {check} of {node}: {page}"))
}

#[test]
fn rollouts_of_a_policy_that_repeats_are_computed_again() {
    let mill = ran(ROLLOUTS);
    let audit = |args: &[&str], code: i32| {
        mill.call(&[&["audit", "rollouts", "--json"], args].concat()).exit(code).events().remove(0)
    };
    assert_eq!(check(&audit(&["--replay"], 0), "rollouts", "replay")["outcome"], "same");
    let both = audit(&["--replay", "--rollouts", "--sample", "3", "--seed", "1"], 0);
    assert!(
        check(&both, "rollouts", "replay")["detail"]
            .as_str()
            .expect("a detail")
            .starts_with("3 of 12 input rows, 6 output rows")
    );
    assert_eq!(check(&both, "rollouts", "recheck")["outcome"], "same");
    // What was computed on a device is not called wrong by a machine that has none.
    let store = mill.store();
    let node = mill.last_nodes().into_iter().find(|node| node.node == "rollouts").expect("a node");
    let mut result = store.result(&node.key.expect("a key")).expect("a result");
    let computed = serde_json::json!({"repeats": "device", "on": "GPU (X)"});
    result.origin.as_mut().expect("an origin").computed = serde_json::from_value(computed).expect("a word");
    store.record_anew(&result).expect("recorded");
    let page = audit(&["--replay"], 6);
    let found = check(&page, "rollouts", "replay");
    assert_eq!(found["outcome"], "not checked");
    assert!(found["detail"].as_str().expect("why").contains("it was computed on GPU (X)"), "{found}");
}
