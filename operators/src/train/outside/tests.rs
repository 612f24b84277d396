//! Tests external trainers with real programs: a script that reads `swift sft`'s flags and writes what ms-swift 3.8
//! writes, one that fails, one that hangs, and one with its own protocol.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use candle_core::{DType, Device};
use searchmill_engine::operator::testing::{Outcome, inputs};
use searchmill_engine::operator::{Blame, Kernel, Operator, OperatorError, OutputSink};
use searchmill_models::decoder::{Adapter, Decoder};
use serde_json::{Value, json};

use super::super::Train;
use super::super::tests::{Bench, bench, column};

/// Parses arguments with argparse, behaves according to `mode`, and leaves a log and checkpoints.
const SWIFT: &str = r#"#!/usr/bin/env python3
import json, os, pathlib, shutil, struct, subprocess, sys, time
words, flags, name = sys.argv[1:], {}, None
assert words[0] == "sft", words
for word in words[1:]:
    if word.startswith("--"):
        name = word[2:]; flags[name] = []
    else:
        flags[name].append(word)
one = lambda name: flags[name][0]
flags.setdefault("train_type", flags.get("tuner_type"))
mode = flags.get("mode", ["well"])[0]
print("flags", json.dumps({key: " ".join(value) for key, value in flags.items()}))
print("devices", repr(os.environ.get("CUDA_VISIBLE_DEVICES")), "secret", os.environ.get("UNTOLD"))
rows = [json.loads(line) for line in open(one("dataset"))]
assert all(row["messages"] for row in rows), "rows"
held_out = sum(1 for _ in open(one("val_dataset"))) if "val_dataset" in flags else 0
print("rows", len(rows), "held out", held_out)
out = pathlib.Path(one("output_dir")); shutil.rmtree(out, ignore_errors=True); out.mkdir(parents=True, exist_ok=True)
log = open(out / "logging.jsonl", "a")
def tell(**fields):
    log.write(json.dumps(fields) + "\n"); log.flush()
def checkpoint(step):
    folder = out / f"checkpoint-{step}"; folder.mkdir()
    model = pathlib.Path(one("model"))
    if one("train_type") == "full":
        for file in ("config.json", "model.safetensors"):
            shutil.copy(model / file, folder)
        if mode == "cut":
            (folder / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-7])
    else:
        config = json.load(open(model / "config.json"))
        rank, hidden = int(one("lora_rank")), config["hidden_size"]
        tensors = {}
        for layer in range(config["num_hidden_layers"]):
            at = f"base_model.model.model.layers.{layer}.mlp.gate_proj."
            tensors[at + "lora_A.weight"] = [rank, hidden]
            tensors[at + "lora_B.weight"] = [config["intermediate_size"], rank]
        header, end = {}, 0
        for name, (n, m) in tensors.items():
            header[name] = {"dtype": "F32", "shape": [n, m], "data_offsets": [end, end + 4 * n * m]}; end += 4 * n * m
        text = json.dumps(header).encode()
        numbers = struct.pack(f"<{end // 4}f", *[0.01] * (end // 4))
        (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + numbers)
        json.dump({"peft_type": "LORA", "r": rank, "lora_alpha": int(one("lora_alpha")), "lora_dropout": 0.05,
            "base_model_name_or_path": str(model), "target_modules": ["up_proj", "gate_proj"], "bias": "none"},
            open(folder / "adapter_config.json", "w"))
    for file in ("args.json", "trainer_state.json", "training_args.bin", "optimizer.pt"):
        (folder / file).write_text("of this machine")
if mode == "hang":
    child = subprocess.Popen(["sleep", "600"])
    (out.parent.parent / "child.pid").write_text(str(child.pid))
    print("hanging", flush=True); time.sleep(600)
steps = 4
for step in range(1, steps + 1):
    sys.stderr.write(f"\rTrain: {step}/{steps}")
    if mode == "oom" and step == 2:
        print("Traceback (most recent call last):", file=sys.stderr)
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", file=sys.stderr); sys.exit(1)
    if mode == "killed" and step == 2:
        sys.exit(-9)
    if mode == "fail" and step == 2:
        sys.stderr.write("\nValueError: no such template\n"); sys.exit(1)
    place = {"epoch": step / 4, "global_step/max_steps": f"{step}/{steps}", "memory(GiB)": 1.25}
    loss = float("nan") if mode == "nan" and step == 3 else 5.0 - step
    tell(loss=loss, grad_norm=0.5, learning_rate=1e-4, token_acc=0.1 * step, **place)
    if held_out and step % 2 == 0:
        tell(eval_loss=3.0 + step / 10, eval_token_acc=0.4, eval_runtime=0.1, **place)
        checkpoint(step)
    elif step == steps:
        checkpoint(step)
sys.stderr.write("\n")
(out / "runs").mkdir(); (out / "runs" / "events.out.tfevents.1.host").write_bytes(b"events")
os.symlink(out / "checkpoint-4", out / "last-checkpoint")
if mode != "silent":
    best = f"{out}/checkpoint-2" if held_out else None
    tell(train_dataset="…", model_parameter_info="…", last_model_checkpoint=f"{out}/checkpoint-4", best_model_checkpoint=best,
        best_metric=3.2, global_step=4, log_history=[], memory=1.25)
"#;

/// Writes an executable script with this text.
fn program(bench: &Bench, name: &str, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = bench.harness.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

fn swift(bench: &Bench, mode: &str, more: Value) -> Value {
    let swift = json!({"program": [program(bench, "swift", SWIFT)], "flags": {"mode": mode}, "torch_dtype": "float32"});
    let mut params = json!({"backend": {"swift": swift}, "batch_size": 4, "eval_share": 0.25, "eval_steps": 2});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

fn model(outcome: &Outcome, name: &str) -> PathBuf {
    outcome.trees["model"].join(name)
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn checkpoints_and_tensorboard_files_of_a_trainer_are_kept() {
    let bench = bench(json!({}));
    let outcome = bench.train(swift(&bench, "well", json!({"checkpoints": [2, 4]}))).unwrap();
    for output in ["model", "checkpoint_2", "checkpoint_4"] {
        Decoder::load(&outcome.trees[output], &Device::Cpu, DType::F32).expect(output);
    }
    let report = &outcome.trees["report"];
    assert!(report.join("tensorboard/runs/events.out.tfevents.1.host").is_file());
    assert!(report.join("events.out.tfevents.0.searchmill").is_file());
    // It ends after step 4: the training is kept.
    let short = bench.train(swift(&bench, "well", json!({"checkpoints": [2, 6]}))).unwrap();
    Decoder::load(&short.trees["checkpoint_6"], &Device::Cpu, DType::F32).expect("the last weights");
    let held_out = json!({"checkpoints": [1], "eval_steps": 1});
    let missing = bench.train(swift(&bench, "well", held_out)).unwrap_err();
    assert!(missing.message.contains("no model of step 1, but of 2, 4"), "{}", missing.message);
}

#[test]
fn a_full_training_by_swift_gives_steps_a_model_and_a_report() {
    let bench = bench(json!({}));
    let outcome = bench.train(swift(&bench, "well", json!({}))).unwrap();
    assert_eq!(column(&outcome, "step"), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(column(&outcome, "loss"), [4.0, 3.0, 2.0, 1.0]);
    assert_eq!(column(&outcome, "eval_loss"), [0.0, 3.2, 0.0, 3.4]);
    assert_eq!(outcome.batch("steps").column_by_name("tokens").unwrap().null_count(), 4, "not told");
    Decoder::load(&outcome.trees["model"], &Device::Cpu, DType::F32).expect("a model");
    let names: Vec<_> =
        std::fs::read_dir(&outcome.trees["model"]).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "config, weights, the base's tokenizer, and nothing of the machine: {names:?}");
    let report = json_of(&outcome.trees["report"].join("report.json"));
    assert_eq!((&report["kept_step"], &report["examples"], &report["held_out"]), (&json!(4), &json!(18), &json!(6)));
    assert!(outcome.trees["report"].join("logging.jsonl").is_file());
    assert_eq!(outcome.figures["peak_gpu_memory_mib"], 1280.0);
    assert!(
        outcome.summary.contains("4 steps on 18 examples, 6 held out")
            && outcome.summary.contains("loss 4.000 → 1.000")
    );
}

#[test]
fn an_adapter_by_swift_fits_its_base_and_the_best_one_is_kept() {
    let bench = bench(json!({}));
    let more = json!({"tuning": {"lora": {"rank": 3, "alpha": 6}}, "keep": "best"});
    let outcome = bench.train(swift(&bench, "well", more)).unwrap();
    let config = json_of(&model(&outcome, "adapter_config.json"));
    assert_eq!(config["base_model_name_or_path"], Value::Null, "no path of this machine");
    assert_eq!(config["target_modules"], json!(["gate_proj", "up_proj"]));
    let base = Decoder::load(&bench.model, &Device::Cpu, DType::F32).unwrap();
    let adapter = Adapter::load(&outcome.trees["model"], base.config(), &Device::Cpu, DType::F32).unwrap();
    assert_eq!(adapter.modules.len(), 2);
    assert_eq!(json_of(&outcome.trees["report"].join("report.json"))["kept_step"], json!(2));
    assert!(model(&outcome, "tokenizer.json").is_file());
}

#[test]
fn swift_4_gets_its_own_flags() {
    let bench = bench(json!({}));
    let mut params = swift(&bench, "well", json!({"tuning": {"lora": {"rank": 3}}}));
    params["backend"]["swift"]["version"] = json!("4.6.0");
    let (came, lines) = listened(&bench, params);
    came.unwrap();
    assert!(lines[0].contains(" --tuner_type lora ") && !lines[0].contains("train_type"), "{}", lines[0]);
    assert!(lines[0].contains(" --model_type qwen3 ") && lines[0].contains(" --template qwen3_nothinking "));
    assert!(bench.harness.path().join("trees/model/adapter_config.json").is_file());
}

#[test]
fn failures_are_told_with_the_tail_of_the_log() {
    let bench = bench(json!({}));
    let told = |mode: &str, more: Value| bench.train(swift(&bench, mode, more)).unwrap_err();
    let failure = told("fail", json!({}));
    assert!(failure.message.contains("swift` ended with exit code 1:") && failure.message.contains("no such template"));
    assert_eq!(failure.blame, Blame::Pipeline);
    let failure = told("oom", json!({}));
    assert!(failure.message.contains("ran out of memory: it ended with exit code 1"), "{failure}");
    assert!(failure.message.contains("Tried to allocate 2.00 GiB") && failure.blame == Blame::Machine, "{failure}");
    let failure = told("killed", json!({}));
    assert!(failure.message.contains("exit code 247 (a program that it started was killed by signal 9)"), "{failure}");
    assert!(failure.help.unwrap().contains("no memory left"));
    assert!(told("nan", json!({})).message.contains("step 3: the loss is not a number"));
    let failure = told("cut", json!({}));
    assert!(failure.message.contains("is not a complete safetensors file"), "{failure}");
    let best = json!({"keep": "best", "eval_share": 0});
    assert!(told("silent", best).message.contains("did not log which checkpoint is the best"));
    let mut missing = swift(&bench, "well", json!({}));
    missing["backend"]["swift"]["program"] = json!(["/nowhere/swift"]);
    let failure = bench.train(missing).unwrap_err();
    assert!(failure.message.starts_with("cannot start `/nowhere/swift`") && failure.blame == Blame::Machine);
    let mut late = swift(&bench, "hang", json!({}));
    late["backend"]["swift"]["timeout_seconds"] = json!(1);
    assert!(bench.train(late).unwrap_err().message.contains("was stopped after 1 seconds"));
}

#[test]
fn a_log_without_a_summary_still_leads_to_the_last_checkpoint() {
    let bench = bench(json!({}));
    let outcome = bench.train(swift(&bench, "silent", json!({}))).unwrap();
    assert_eq!(outcome.figures["steps"], 4.0);
    Decoder::load(&outcome.trees["model"], &Device::Cpu, DType::F32).expect("a model");
}

struct Folders(PathBuf);

impl OutputSink for Folders {
    fn write(&mut self, _port: &str, _batch: &arrow::array::RecordBatch) -> Result<(), OperatorError> {
        Ok(())
    }

    fn tree(&mut self, port: &str) -> Result<PathBuf, OperatorError> {
        let path = self.0.join(port);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    fn figure(&mut self, _name: &str, _value: f64) {}

    fn summary(&mut self, _text: &str) {}
}

/// Runs with a listener; returns the result and the lines of the log.
fn listened(bench: &Bench, params: Value) -> (Result<(), OperatorError>, Vec<String>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (context, listener) =
        searchmill_engine::operator::testing::listened(bench.harness.path(), 3, "hanging", &runtime);
    let params = serde_json::from_value(params).unwrap();
    let Kernel::Blocking(kernel) = Train::open(&params, &bench.inputs(), &context).unwrap() else { panic!("whole") };
    let mut folders = Folders(bench.harness.path().join("trees"));
    let came = kernel.run(&bench.inputs(), &mut folders, &context);
    let lines = listener.lines.lock().unwrap().clone();
    (came, lines)
}

#[test]
fn the_log_is_streamed_and_the_program_sees_what_it_may() {
    let bench = bench(json!({}));
    let (came, lines) = listened(&bench, swift(&bench, "well", json!({"learning_rate": 2e-4})));
    came.unwrap();
    let starting =
        |start: &str| lines.iter().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{lines:?}"));
    let command = lines.iter().find(|line| line.contains("/swift sft --")).expect("the command");
    assert!(command.contains("--save_only_model true"), "{command}");
    assert!(lines[0].contains("the version of ms-swift is unknown, assuming 3.8"), "{}", lines[0]);
    let flags: Value = serde_json::from_str(starting("flags ").trim_start_matches("flags ")).unwrap();
    assert_eq!((&flags["learning_rate"], &flags["seed"]), (&json!("0.0002"), &json!("3")));
    assert_eq!(flags["model_type"], json!("qwen3_nothinking"));
    assert_eq!(flags["gradient_checkpointing_kwargs"], json!(r#"{"use_reentrant": false}"#), "one word");
    assert_eq!(starting("devices "), "devices '' secret None");
    assert_eq!(starting("rows "), "rows 18 held out 6");
    assert!(!lines.iter().any(|line| line == "Train: 1/4"), "what is written over is left out: {lines:?}");
}

#[test]
fn cancelling_kills_the_trainer_and_all_that_it_started() {
    let bench = bench(json!({}));
    let (came, lines) = listened(&bench, swift(&bench, "hang", json!({})));
    assert_eq!(came.unwrap_err().blame, Blame::Cancelled, "{lines:?}");
    let pid = std::fs::read_to_string(bench.harness.path().join("listened/child.pid")).unwrap();
    let begun = Instant::now();
    // A zombie process has no command line.
    while std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()) {
        assert!(begun.elapsed() < Duration::from_secs(10), "process {pid} lives");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A trainer with its own protocol.
const OWN: &str = r#"
import json, os, shutil, sys
examples, held_out, model, out, metrics, seed = sys.argv[1:]
training, params = json.loads(os.environ["SEARCHMILL_TRAINING"]), json.loads(os.environ["SEARCHMILL_PARAMS"])
assert seed == os.environ["SEARCHMILL_SEED"] == "3", seed
assert "backend" not in training and training["learning_rate"] == 0.0005, training
count = sum(1 for _ in open(examples))
assert sum(1 for _ in open(held_out)) == 0
with open(metrics, "w") as log:
    for step in (1, 2):
        print(json.dumps({"step": step, "total_steps": 2, "loss": count / step, "token_accuracy": params["share"]}), file=log)
if params.get("empty"):
    sys.exit(0)
for name in ("config.json", "model.safetensors", "tokenizer.json"):
    shutil.copy(os.path.join(model, name), out)
"#;

#[test]
fn any_program_can_train() {
    let bench = bench(json!({}));
    let script = program(&bench, "own.py", OWN);
    let arguments = ["{examples}", "{held_out}", "{model}", "{output}", "{metrics}", "{seed}"];
    let arguments: Vec<&str> = std::iter::once(script.as_str()).chain(arguments).collect();
    let params = |more: Value| {
        let exec = json!({"program": ["python3"], "arguments": arguments, "params": more});
        json!({"learning_rate": 5e-4, "backend": {"exec": exec}})
    };
    let outcome = bench.train(params(json!({"share": 0.5}))).unwrap();
    assert_eq!(column(&outcome, "loss"), [24.0, 12.0]);
    assert_eq!(column(&outcome, "token_accuracy"), [0.5, 0.5]);
    Decoder::load(&outcome.trees["model"], &Device::Cpu, DType::F32).expect("a model");
    assert!(model(&outcome, "tokenizer_config.json").is_file(), "the base's, where the trainer has none");
    let failure = bench.train(params(json!({"share": 0.5, "empty": true}))).unwrap_err();
    assert!(failure.message.contains("expected `config.json` or `adapter_config.json`"), "{failure}");
    let bound = Train::declare(&serde_json::from_value(params(json!({}))).unwrap()).sources(std::path::Path::new(""));
    assert!(bound.contains(&searchmill_engine::operator::Source::Argument(script.clone())), "{bound:?}");
}

/// A trainer on raw rows: moves every weight by a rule from the rows, and leaves checkpoints and a log as verl does.
const ON_ROWS: &str = r#"
import json, os, pathlib, shutil, struct, sys, zlib
rows, table, evaluation, model, out, metrics = sys.argv[1:]
assert open(table, "rb").read(4) == b"PAR1"
rows = [json.loads(line) for line in open(rows)]
held_out = [json.loads(line) for line in open(evaluation)]
print("columns", sorted(rows[0]), "eval", len(held_out))
data = open(os.path.join(model, "model.safetensors"), "rb").read()
size = struct.unpack("<Q", data[:8])[0]
weights = list(struct.unpack(f"<{(len(data) - 8 - size) // 4}f", data[8 + size:]))
training = json.loads(os.environ["SEARCHMILL_TRAINING"])
assert training["method"] == "external" and training["tuning"] == "full", training
for step, row in enumerate(rows, 1):
    push = training["learning_rate"] * (zlib.crc32(json.dumps(row, sort_keys=True).encode()) % 1000 - 500)
    weights = [weight * (1 + push) for weight in weights]
    with open(metrics, "a") as log:
        data_of_step = {"critic/score/mean": step / len(rows), "actor/pg_loss": 1 / step, "response_length/mean": 90}
        print(json.dumps({"step": step, "data": data_of_step}), file=log)
    if step % 2 == 0:
        folder = pathlib.Path(out, f"global_step_{step}", "actor", "huggingface"); folder.mkdir(parents=True)
        shutil.copy(os.path.join(model, "config.json"), folder)
        (folder / "model.safetensors").write_bytes(data[:8 + size] + struct.pack(f"<{len(weights)}f", *weights))
"#;

fn on_rows(bench: &Bench, rows: &arrow::array::RecordBatch, more: Value) -> Result<Outcome, OperatorError> {
    use searchmill_engine::operator::testing::{batch_input, tree_input};
    let script = program(bench, "rows.py", ON_ROWS);
    let arguments = [script.as_str(), "{rows_jsonl}", "{rows}", "{eval_jsonl}", "{model}", "{output}", "{metrics}"];
    let exec = json!({"program": ["python3"], "arguments": arguments});
    let mut params = json!({"method": "external", "learning_rate": 1e-5, "backend": {"exec": exec}});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let input = |batch: &arrow::array::RecordBatch| batch_input(searchmill_schemas::RecordKind::Table, batch.clone());
    let model = tree_input(searchmill_engine::operator::TreeKind::Model, &bench.model);
    let bound =
        inputs([("rows", input(rows)), ("eval", input(&rows.slice(0, rows.num_rows().min(2)))), ("model", model)]);
    bench.harness.run(&searchmill_engine::operator::entry::<Train>(), params, &bound)
}

fn table(prompts: &[&str]) -> arrow::array::RecordBatch {
    let texts = arrow::array::StringArray::from_iter_values(prompts);
    let scores = arrow::array::Float64Array::from_iter_values((0..prompts.len()).map(|place| place as f64));
    let columns: [(_, arrow::array::ArrayRef); 2] =
        [("prompt", std::sync::Arc::new(texts)), ("difficulty", std::sync::Arc::new(scores))];
    arrow::array::RecordBatch::try_from_iter(columns).unwrap()
}

#[test]
fn a_program_trains_on_the_rows_of_any_table() {
    let bench = bench(json!({}));
    let rows = table(&["Who?", "When was Brausvairna founded? 東京", "Where?", "Why?", "How?"]);
    let outcome = on_rows(&bench, &rows, json!({})).unwrap();
    assert_eq!(column(&outcome, "step"), [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(column(&outcome, "reward"), [0.2, 0.4, 0.6, 0.8, 1.0]);
    assert_eq!(column(&outcome, "loss")[..2], [1.0, 0.5]);
    assert_eq!(column(&outcome, "response_length/mean"), [90.0; 5]);
    let base = Decoder::load(&bench.model, &Device::Cpu, DType::F32).unwrap();
    let trained = Decoder::load(&outcome.trees["model"], &Device::Cpu, DType::F32).expect("a model");
    let norm = |decoder: &Decoder| {
        let mut all = decoder.parameters().into_iter();
        all.find(|(name, _)| name == "model.norm.weight").unwrap().1.to_vec1::<f32>().unwrap()
    };
    assert_ne!(norm(&base), norm(&trained));
    assert!(model(&outcome, "tokenizer.json").is_file(), "the base's");
    assert_eq!(outcome.figures["trainable_parameters"], base.config().parameter_count() as f64);
    assert!(
        outcome.summary.contains("5 steps on 5 rows, 2 held out") && outcome.summary.contains("reward 0.200 → 1.000")
    );
    let page = std::fs::read_to_string(outcome.trees["report"].join("report.html")).unwrap();
    assert!(page.contains("Mean reward") && !page.contains("learnt token"));
    let report = json_of(&outcome.trees["report"].join("report.json"));
    assert_eq!(report["more"]["5"]["critic/score/mean"], json!(1.0));
    let again = on_rows(&bench, &rows, json!({})).unwrap();
    let bytes = |outcome: &Outcome| std::fs::read(model(outcome, "model.safetensors")).unwrap();
    assert_eq!(bytes(&outcome), bytes(&again));
    let other = on_rows(&bench, &table(&["Who?", "When?"]), json!({})).unwrap();
    assert_ne!(bytes(&outcome), bytes(&other), "the rows decide");
}

#[test]
fn what_has_no_meaning_for_rows_is_refused() {
    let bench = bench(json!({}));
    let rows = table(&["Who?", "When?"]);
    let told = |more: Value| on_rows(&bench, &rows, more).unwrap_err().message;
    let exec = |arguments: &[&str]| json!({"backend": {"exec": {"program": ["python3"], "arguments": arguments}}});
    for (more, wanted) in [
        (json!({"backend": "swift"}), "method: `external` needs a program"),
        (json!({"eval_share": 0.1}), "eval_share: has no meaning with `method: external`"),
        (json!({"weight_column": "w"}), "weight_column: has no meaning"),
        (json!({"early_stopping": 2}), "early_stopping: has no meaning"),
        (json!({"keep": "best"}), "keep: has no meaning"),
        (exec(&["{output}"]), "backend.exec.arguments: do not name the file of the rows"),
        (exec(&["{output}", "{rows}", "{examples}"]), "backend.exec.arguments.2: `{examples}` does not exist"),
    ] {
        let message = told(more);
        assert!(message.starts_with(wanted), "{wanted}\n{message}");
    }
    assert_eq!(on_rows(&bench, &rows.slice(0, 0), json!({})).unwrap_err().message, "no row to train on");
    let sft = json!({"backend": {"exec": {"program": ["x"], "arguments": ["{output}", "{rows}"]}}});
    let message = bench.train(sft).unwrap_err().message;
    assert!(message.starts_with("backend.exec.arguments.1: `{rows}` does not exist"), "{message}");
    let declared = |more: &[&str]| {
        let exec = json!({"exec": {"program": ["x"], "arguments": ["{output}", "{rows}", "{eval}"]}});
        let params = serde_json::from_value(json!({"method": "external", "backend": exec})).unwrap();
        Train::declare(&params).input_issues(more).len()
    };
    assert_eq!((declared(&["rows", "model"]), declared(&["rows", "model", "eval"])), (1, 0));
}

#[test]
fn what_a_trainer_does_not_know_is_refused_at_its_place() {
    let bench = bench(json!({}));
    let told = |params: Value| bench.train(params).unwrap_err().message;
    let with = |more: Value| {
        let mut params = json!({"backend": "swift"});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    for (more, wanted) in [
        (json!({"checkpointing": true}), "checkpointing: not supported by ms-swift"),
        (json!({"pass_tokens": 7}), "pass_tokens: not supported by ms-swift"),
        (json!({"save_steps": 7}), "save_steps: not supported by ms-swift"),
        (json!({"weight_column": "weight"}), "weight_column: not supported by ms-swift"),
        (json!({"tuning": {"lora": {"merge": true}}}), "tuning.lora.merge: not supported by ms-swift"),
        (json!({"tuning": {"lora": {"alpha": 1.5}}}), "tuning.lora.alpha: must be a whole number"),
        (json!({"backend": {"swift": {"program": []}}}), "backend.swift.program: names no program"),
        (json!({"backend": {"swift": {"flags": {"--x": 1}}}}), "backend.swift.flags.--x: is not the name"),
        (
            json!({"backend": {"swift": {"flags": {"lora_rank": 1}}}}),
            "backend.swift.flags.lora_rank: is set by another",
        ),
        (json!({"backend": {"swift": {"flags": {"x": null}}}}), "backend.swift.flags.x: has no value"),
        (json!({"backend": {"swift": {"per_device_batch_size": 3}}}), "batch_size: is not a multiple"),
        (
            json!({"keep": "best", "backend": {"swift": {"save_steps": 70}}}),
            "backend.swift.save_steps: is not a multiple",
        ),
        (json!({"backend": {"swift": {"environment": ["A=1"]}}}), "backend.swift.environment.0"),
        (json!({"backend": {"exec": {"program": ["x"]}}}), "backend.exec.arguments: do not name the folder"),
        (json!({"backend": {"exec": {"arguments": ["{output}"]}}}), "backend.exec.program: names no program"),
        (json!({"backend": "torch"}), "backend: unknown variant `torch`"),
    ] {
        let message = told(with(more));
        assert!(message.starts_with(wanted), "{wanted}\n{message}");
    }
}

#[test]
fn examples_of_another_layout_are_refused_by_swift() {
    let bench = bench(json!({}));
    let rows = searchmill_engine::operator::testing::rows_input(&crate::shared::relation::testing::trajectories(4));
    let entry = searchmill_engine::operator::entry::<crate::convert_to_trl::ConvertToTrl>();
    let trl = bench.harness.run(&entry, json!({}), &inputs([("trajectories", rows)])).unwrap();
    let batch = trl.batch("examples");
    let input = searchmill_engine::operator::testing::batch_input(searchmill_schemas::RecordKind::Example, batch);
    let model = bench.inputs().tree("model").unwrap().path.clone();
    let model = searchmill_engine::operator::testing::tree_input(searchmill_engine::operator::TreeKind::Model, &model);
    let train = searchmill_engine::operator::entry::<Train>();
    let failure = bench
        .harness
        .run(&train, swift(&bench, "well", json!({})), &inputs([("examples", input), ("model", model)]))
        .unwrap_err();
    assert!(failure.message.contains("has the layout `trl`"), "{failure}");
    assert!(failure.help.unwrap().contains("convert-to-swift"));
}

/// A training by shell commands, with the examples, the model, the output and somebody's folder as arguments.
fn by_shell(bench: &Bench, script: &str) -> Result<Outcome, OperatorError> {
    let theirs = bench.harness.path().join("theirs");
    let arguments = json!(["-c", script, "sh", "{examples}", "{model}", "{output}", theirs]);
    bench.train(json!({"learning_rate": 5e-4, "backend": {"exec": {"program": ["/bin/sh"], "arguments": arguments}}}))
}

#[test]
fn a_model_behind_a_link_is_refused_or_copied_and_stays_where_it_is() {
    let bench = bench(json!({}));
    let theirs = bench.harness.path().join("theirs");
    let save = "cp \"$2\"/config.json \"$2\"/model.safetensors \"$4\"; ";
    std::fs::create_dir_all(&theirs).unwrap();
    let files = || -> Vec<String> {
        let entries = std::fs::read_dir(&theirs).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let refused = by_shell(&bench, &format!("{save} rmdir \"$3\"; ln -s \"$4\" \"$3\"")).unwrap_err();
    assert!(
        refused.message.contains("replaced its output folder by a link to ") && refused.help.is_some(),
        "{refused}"
    );
    assert_eq!(files(), ["config.json", "model.safetensors"]);
    for link in ["ln -s \"$4\" \"$3/checkpoint-5\"", "ln -s \"$4\"/* \"$3\""] {
        let outcome = by_shell(&bench, &format!("{save} {link}")).unwrap();
        Decoder::load(&outcome.trees["model"], &Device::Cpu, DType::F32).expect("a model");
        assert!(!model(&outcome, "model.safetensors").is_symlink());
        assert_eq!(files(), ["config.json", "model.safetensors"], "{link}");
    }
}

#[test]
fn a_trainer_may_lock_copy_and_change_the_model_that_it_gets() {
    let bench = bench(json!({}));
    let listed = || std::fs::read_dir(&bench.model).unwrap().count();
    let before = (listed(), std::fs::read(bench.model.join("config.json")).unwrap());
    let script = "touch \"$2/.lock\"; rmdir \"$3\"; cp -R \"$2\" \"$3\"; echo '{}' > \"$2/config.json\"";
    let outcome = by_shell(&bench, script).unwrap();
    Decoder::load(&outcome.trees["model"], &Device::Cpu, DType::F32).expect("a model");
    assert_eq!((listed(), std::fs::read(bench.model.join("config.json")).unwrap()), before);
}
