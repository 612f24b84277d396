//! Training in a pipeline: a killed one goes on to the same bits, and the threads at hand change none.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::mill::{Mill, files_in};

const PIPELINE: &str = "\
name: training
nodes:
  world:    {op: generate-world, with: {documents: 150, questions: 30, min_hops: 1, max_hops: 1}, seed: 5}
  chunks:   {op: chunk, from: world, with: {size: 80, count: words}}
  bm25:     {op: index, from: chunks, with: {kind: bm25}}
  rollouts: {op: rollout, from: {questions: world.questions, search: bm25}, with: {policy: evidence, search: {top_k: 1}, system_prompt: Search.}}
  swift:    {op: convert-to-swift, from: rollouts}
  blank:    {op: init-model, from: swift, with: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, intermediate: 64, vocab: 600, whole_lines: 0.9}, seed: 4}
  student:
    op: train
    from: {examples: swift, model: blank}
    with: {epochs: 2, batch_size: 2, learning_rate: 3e-3, eval_share: 0.1, eval_steps: 20, save_steps: 2}
    seed: 4
";

fn mill() -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", PIPELINE);
    mill
}

/// What lies under `checkpoints/` of the store.
fn saved(mill: &Mill) -> usize {
    files_in(&mill.store_path().join("checkpoints")).iter().map(|folder| files_in(folder).len()).sum()
}

fn undisturbed(threads: &str) -> BTreeMap<String, String> {
    let mill = mill();
    let told = mill.command(&["run", "pipeline.yaml", "--json"]).env("RAYON_NUM_THREADS", threads).output();
    assert!(told.expect("a run").status.success());
    mill.artifacts()
}

#[test]
fn a_training_killed_three_times_ends_as_an_undisturbed_one() {
    let expected = undisturbed("2");
    let mill = mill();
    // What comes before it is made once.
    mill.run(&["blank"]).exit(0);
    for round in 0..3_u64 {
        let mut child = mill.command(&["run", "pipeline.yaml", "--json"]).spawn().expect("a child");
        let start = Instant::now();
        while saved(&mill) == 0 {
            assert!(start.elapsed() < Duration::from_mins(2), "no state was saved");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(150 + round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 500));
        assert!(child.try_wait().expect("a child").is_none(), "round {round}: it had ended already");
        child.kill().expect("a running child");
        child.wait().expect("a child");
        assert_eq!(saved(&mill), 1, "the state outlives the process");
    }
    let told = mill.run(&[]).exit(0);
    assert!(told.stdout.contains("goes on after step"), "{}", told.stdout);
    assert_eq!(mill.artifacts(), expected);
    assert_eq!(saved(&mill), 0, "the state goes once the result is there");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    assert_eq!(undisturbed("1"), undisturbed("3"));
}

#[test]
fn a_training_that_does_not_fit_says_so_before_it_starts() {
    let mill = mill();
    mill.write("pipeline.yaml", &(PIPELINE.to_owned() + "    resources: {memory: 1MiB}\n"));
    let told = mill.run(&[]).exit(5);
    assert!(
        told.stdout.contains("the training needs about") && told.stdout.contains("1 MiB are available"),
        "{}",
        told.stdout
    );
}
