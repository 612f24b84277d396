//! Tests of training in a pipeline: an interrupted training resumes with the same bits, for any number of threads.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::harness::project::{Mill, files_in};

const PIPELINE: &str = "\
name: training
nodes:
  world:    {op: generate-world, with: {documents: 150, questions: 30, min_hops: 1, max_hops: 1}, seed: 5}
  chunks:   {op: chunk, from: world, with: {size: 80, count: words}}
  bm25:     {op: index, from: chunks, with: {kind: bm25}}
  rollouts: {op: rollout, from: {questions: world.questions, search: bm25}, with: {policy: evidence, search: {top_k: 1}, system_prompt: Search.}}
  swift:    {op: convert-to-swift, from: rollouts}
  blank:    {op: init-model, from: swift, with: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, intermediate: 64, vocab: 600, whole_phrases: 0.9}, seed: 4}
  student:
    op: train
    from: {examples: swift, model: blank}
    with: {epochs: 24, batch_size: 2, learning_rate: 3e-3, eval_share: 0.1, eval_steps: 20, save_steps: 2}
    seed: 4
";

fn mill() -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", PIPELINE);
    mill
}

/// The same with two checkpoints as outputs, which answer the questions beside the last weights.
fn mill_with_checkpoints() -> Mill {
    let nodes = "  answers:
    op: rollout
    matrix: {checkpoint: {step_50: student.checkpoint_50, step_100: student.checkpoint_100, last: student}}
    from: {questions: world.questions, search: bm25, model: \"${matrix.checkpoint}\"}
    with: {policy: {model: {temperature: 0, max_tokens: 4}}, max_turns: 1}
  scores: {op: evaluate, matrix: answers, from: answers}
  table:  {op: sql, from: {m: scores.metrics}, with: {query: \"select checkpoint, value from m where id = 'all/f1' order by checkpoint\"}}
";
    let mill = Mill::new();
    let student = PIPELINE.replace("save_steps: 2}", "save_steps: 2, checkpoints: [50, 100]}");
    mill.write("pipeline.yaml", &(student + nodes));
    mill
}

/// Counts the files under `checkpoints/` of the store.
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
    let calm = mill_with_checkpoints();
    calm.run(&[]).exit(0);
    let expected = calm.artifacts();
    let mill = mill_with_checkpoints();
    // Computes the nodes before it once.
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
    assert!(told.stdout.contains("resumes after step"), "{}", told.stdout);
    assert_eq!(mill.artifacts(), expected);
    let table = mill.call(&["show", "table", "--format", "jsonl"]).exit(0).stdout;
    let of = |name: &str| table.contains(&format!("\"checkpoint\":\"{name}\""));
    assert!(of("step_50") && of("step_100") && of("last"), "{table}");
    assert_eq!(saved(&mill), 0, "the state is deleted once the result is recorded");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
}

#[test]
fn one_ctrl_c_ends_a_training_at_its_next_step_with_its_state_saved() {
    for resources in ["", "    resources: {isolate: true}\n"] {
        let mill = mill();
        // Far longer than the test waits, and saved only when it is stopped.
        let pipeline = PIPELINE.replace("epochs: 24", "epochs: 4000").replace("save_steps: 2", "save_steps: 100000");
        mill.write("pipeline.yaml", &(pipeline + resources));
        mill.run(&["blank"]).exit(0);
        let mut child = mill.command(&["run", "pipeline.yaml", "--json"]);
        let log = std::fs::File::create(mill.path("log")).expect("a file");
        let child = child.stdout(log).spawn().expect("a child");
        let start = Instant::now();
        while !mill.read("log").contains("step 1/") {
            assert!(start.elapsed() < Duration::from_mins(2), "it does not train: {}", mill.read("log"));
            std::thread::sleep(Duration::from_millis(20));
        }
        let pid = child.id().to_string();
        let told = std::process::Command::new("kill").args(["-INT", &pid]).status();
        assert!(told.expect("`kill` is there").success());
        let start = Instant::now();
        let ended = child.wait_with_output().expect("a child");
        assert_eq!(ended.status.code(), Some(130), "{}", mill.read("log"));
        assert!(start.elapsed() < Duration::from_secs(20), "it took {:?}", start.elapsed());
        assert_eq!(saved(&mill), 1, "training resumes from it");
        let last = mill.last_nodes().into_iter().find(|node| node.node == "student").expect("the node");
        assert_eq!(last.outcome, searchmill_engine::store::NodeOutcome::Skipped);
        assert!(last.was_interrupted(), "{last:?}");
        let told = mill.call(&["show", "student"]).exit(2).stderr;
        assert!(told.contains("it was interrupted in run"), "{told}");
    }
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

/// An external trainer: it copies the model; if a file `hang` exists, it starts a program and waits.
const TRAINER: &str = r#"
import json, os, shutil, subprocess, sys, time
examples, model, out, metrics = sys.argv[1:5]
if os.path.exists("hang"):
    child = subprocess.Popen(["sleep", "600"])
    with open("child.tmp", "w") as file:
        file.write(str(child.pid))
    os.rename("child.tmp", "child.pid")
    time.sleep(600)
for name in ("config.json", "model.safetensors"):
    shutil.copy(os.path.join(model, name), out)
with open(metrics, "w") as log:
    log.write(json.dumps({"step": 1, "loss": sum(1 for _ in open(examples))}) + "\n")
print("trained with", os.environ["SEARCHMILL_PARAMS"])
"#;

/// Returns the pipeline with that trainer.
fn foreign(program: &str, version: &str, resources: &str) -> String {
    let (before, _) = PIPELINE.split_once("  student:").expect("a student");
    format!(
        "{before}  student:\n    op: train\n    from: {{examples: swift, model: blank}}\n    with:\n      backend:\n        \
         exec:\n          program: {program}\n          version: {version}\n          \
         arguments: [trainer.py, \"{{examples}}\", \"{{model}}\", \"{{output}}\", \"{{metrics}}\"]\n    \
         resources: {{{resources}}}\n"
    )
}

fn foreign_mill(resources: &str) -> Mill {
    let mill = Mill::new();
    mill.write("trainer.py", TRAINER);
    mill.write("pipeline.yaml", &foreign("[python3]", "one", resources));
    mill
}

#[test]
fn a_trainer_of_others_is_known_by_its_program_version_and_content() {
    let mill = foreign_mill("");
    assert!(mill.run(&[]).exit(0).stdout.contains("trained with {}"));
    mill.write("pipeline.yaml", &foreign("[/usr/bin/env, python3]", "one", "threads: 1"));
    assert_eq!(mill.run(&[]).exit(0).ran(), "student", "another program");
    mill.write("pipeline.yaml", &foreign("[python3]", "two", ""));
    assert_eq!(mill.run(&[]).exit(0).ran(), "student");
    mill.write("trainer.py", &format!("{TRAINER}\n# Another.\n"));
    assert_eq!(mill.run(&[]).exit(0).ran(), "student");
    let told = mill.call(&["audit", "student", "--replay", "--allow-programs"]).exit(6);
    assert!(told.stdout.contains("it is not repeatable"), "{}", told.stdout);
}

/// Waits for the program that the hanging trainer started; returns its process id.
fn started(mill: &Mill) -> String {
    let start = Instant::now();
    while !mill.path("child.pid").is_file() {
        assert!(start.elapsed() < Duration::from_mins(2), "the trainer did not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    mill.read("child.pid")
}

fn gone(pid: &str) {
    let start = Instant::now();
    // A zombie process has an empty command line.
    while std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()) {
        assert!(start.elapsed() < Duration::from_secs(15), "process {pid} is alive");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_trainer_that_hangs_ends_with_the_time_of_its_node() {
    let mill = foreign_mill("isolate: true, timeout: 8s");
    mill.write("hang", "");
    let told = mill.run(&[]).exit(5);
    assert!(told.stdout.contains("was stopped after 8 s, its `timeout`"), "{}", told.stdout);
    gone(&started(&mill));
}

#[test]
fn a_trainer_ends_when_searchmill_is_killed() {
    for resources in ["", "isolate: true"] {
        let mill = foreign_mill(resources);
        mill.write("hang", "");
        let mut child = mill.command(&["run", "pipeline.yaml", "--json"]).spawn().expect("a child");
        let pid = started(&mill);
        child.kill().expect("a running child");
        child.wait().expect("a child");
        gone(&pid);
    }
}

/// An RL trainer on questions: a reward from the rows pushes every weight, and the checkpoints are verl's.
const ON_ROWS: &str = r#"
import json, pathlib, struct, sys, urllib.request
rows, model, out, metrics, retriever = sys.argv[1:]
def found(row):
    body = json.dumps({"queries": [row["extra_info"]["question"]], "topk": 3}).encode()
    request = urllib.request.Request(retriever + "/retrieve", body, {"Content-Type": "application/json"})
    texts = " ".join(document["contents"] for document in json.load(urllib.request.urlopen(request))["result"][0])
    return float(any(str(answer) in texts for answer in row["reward_model"]["ground_truth"]["target"]))
data = pathlib.Path(model, "model.safetensors").read_bytes()
size = 8 + struct.unpack("<Q", data[:8])[0]
weights = struct.unpack(f"<{(len(data) - size) // 4}f", data[size:])
for step, row in enumerate(map(json.loads, open(rows)), 1):
    reward = found(row)
    weights = [weight * (1 + 1e-3 * (reward - 0.5)) for weight in weights]
    with open(metrics, "a") as log:
        print(json.dumps({"step": step, "data": {"critic/score/mean": reward}}), file=log)
folder = pathlib.Path(out, f"global_step_{step}", "actor", "huggingface"); folder.mkdir(parents=True)
folder.joinpath("config.json").write_bytes(pathlib.Path(model, "config.json").read_bytes())
folder.joinpath("model.safetensors").write_bytes(data[:size] + struct.pack(f"<{len(weights)}f", *weights))
"#;

const RL: &str = "  rows: {op: convert-to-verl, from: world.questions, with: {layout: verl, data_source: hotpotqa}}
  policy:
    op: train
    from: {rows: rows, model: blank}
    services: {retriever: {search: [bm25]}}
    with: {method: external, backend: {exec: {program: [python3], arguments: [rl.py, \"{rows_jsonl}\", \"{model}\", \"{output}\", \"{metrics}\", \"${service.retriever}\"]}}}
  rewards: {op: sql, from: {s: policy.steps}, with: {query: \"select count(*) as steps, sum(reward) > 5 as found from s\"}}
  rewards_file: {op: write, from: rewards, with: {path: rewards.csv}}
  after:
    op: rollout
    from: {questions: world.questions, search: bm25, model: [blank, policy]}
    with: {policy: {model: {temperature: 0, max_tokens: 4}}, system_prompt: Search., max_turns: 1}
";

#[test]
fn an_rl_trainer_runs_as_a_node_and_its_model_is_rolled_out() {
    let mill = Mill::new();
    let before_training = PIPELINE.split("  student:").next().expect("the nodes before").to_owned();
    mill.write("pipeline.yaml", &(before_training.clone() + RL));
    mill.write("rl.py", ON_ROWS);
    mill.run(&[]).exit(0);
    assert_eq!(mill.read("rewards.csv"), "steps,found\n30,true\n", "a reward of every step");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    let rolled = mill.call(&["show", "after", "--format", "jsonl", "-n", "1"]).exit(0).stdout;
    let rolled: serde_json::Value = serde_json::from_str(&rolled).expect("a row");
    let model = rolled["model"].as_str().expect("text");
    assert!(model.starts_with("artifact:") && !model.contains('+'), "{model}: `blank` is not used");
    // Other rows are another training.
    mill.write("pipeline.yaml", &(before_training + &RL.replace("hotpotqa", "nq")));
    let again = mill.run(&[]).exit(0).ran();
    assert!(again.contains("policy") && again.contains("rows") && !again.contains("blank"), "{again}");
}
