//! ms-swift 3.8 and 4: flags of `swift sft` from params, and the checkpoint that it leaves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use searchmill_data::program::variable_issues;
use searchmill_engine::operator::{Context, OperatorError, ParamIssue};
use searchmill_models::decoder::{Decoder, Family};
use searchmill_models::paths_in;
use searchmill_models::training::fit::Keep;
use searchmill_models::training::learning_rate::Decay;
use searchmill_models::training::student::Tuning;
use serde_json::{Value, json};

use super::super::backend::{SwiftParams, no_program};
use super::super::params::TrainParams;
use super::files::Files;
use crate::shared::issues::refused;

/// Flags by name, in alphabetical order.
pub(super) type Flags = BTreeMap<String, Vec<String>>;

/// Flags that only some trainings have, and `lora_r`, which ms-swift reads as a prefix of `lora_rank`.
const HANDLED: [&str; 12] = [
    "train_type",
    "tuner_type",
    "lora_r",
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "model_type",
    "template",
    "attn_impl",
    "max_steps",
    "early_stop_interval",
];

/// Returns the params that cannot be passed to ms-swift.
pub(crate) fn issues(own: &SwiftParams, params: &TrainParams) -> Vec<ParamIssue> {
    let mut issues: Vec<ParamIssue> = no_program("backend.swift.program", &own.program).into_iter().collect();
    issues.extend(variable_issues("backend.swift.environment", &own.environment));
    let at_least_1 = "must be at least 1";
    let saved = own.save_steps.unwrap_or(params.eval_steps);
    let (alpha, merge) = match &params.tuning {
        Tuning::Full => (false, false),
        // ms-swift reads alpha as a whole number.
        Tuning::Lora(lora) => (lora.alpha.fract() != 0.0, lora.merge),
    };
    let weighted = params.weight_column.is_some();
    let is_uneven = !params.batch_size.is_multiple_of(own.per_device_batch_size.max(1));
    let passes = "a step is split into passes of that many examples";
    let is_unsaved = params.keep == Keep::Best && !saved.is_multiple_of(params.eval_steps.max(1));
    let best = "`keep: best` needs a checkpoint at every evaluation";
    let are_unsaved = params.checkpoints.iter().any(|step| !step.is_multiple_of(saved.max(1)));
    let unsupported = "not supported by ms-swift";
    issues.extend(refused(&[
        (own.per_device_batch_size == 0, "backend.swift.per_device_batch_size", at_least_1, "write 1"),
        (own.logging_steps == 0, "backend.swift.logging_steps", at_least_1, "write 1"),
        (own.save_steps == Some(0), "backend.swift.save_steps", at_least_1, "leave it out to save at every evaluation"),
        (own.save_total_limit == 0, "backend.swift.save_total_limit", at_least_1, "write 2"),
        (own.dataset_num_proc == 0, "backend.swift.dataset_num_proc", at_least_1, "write 1"),
        (is_uneven, "batch_size", "is not a multiple of `backend.swift.per_device_batch_size`", passes),
        (is_unsaved, "backend.swift.save_steps", "is not a multiple of `eval_steps`", best),
        (are_unsaved, "checkpoints", "are not multiples of `backend.swift.save_steps`", "save at these steps"),
        (weighted, "weight_column", unsupported, "repeat examples with `rebalance` instead of weighting them"),
        (alpha, "tuning.lora.alpha", "must be a whole number for ms-swift", "only alpha / rank matters: scale both"),
        (merge, "tuning.lora.merge", unsupported, "leave it out"),
    ]));
    issues.extend(own.flags.iter().filter_map(|(name, value)| flag_issue(name, value, own, params)));
    issues
}

fn flag_issue(name: &str, value: &Value, own: &SwiftParams, params: &TrainParams) -> Option<ParamIssue> {
    let path = format!("backend.swift.flags.{name}");
    // `--name=value` would escape the check of known names.
    if name.is_empty() || name.starts_with('-') || name.contains(['=', ' ']) {
        let issue = ParamIssue::new(path, "is not the name of a flag");
        return Some(issue.with_help("write it without dashes: `loss_scale`"));
    }
    if value.is_null() {
        return Some(ParamIssue::new(path, "has no value").with_help("leave the flag out"));
    }
    // The flags that params set, rendered without the user's: only the names count here, not the paths.
    let nowhere = Files::at(Path::new("."));
    let bare = SwiftParams { flags: BTreeMap::new(), ..own.clone() };
    let rendered = flags(&bare, params, &Facts { held_out: true, ..Facts::default() }, Path::new("."), &nowhere);
    if !rendered.contains_key(name) && !HANDLED.contains(&name) {
        return None;
    }
    let issue = ParamIssue::new(path, "is set by another param");
    Some(issue.with_help("set the param of `train` or `backend.swift` instead"))
}

/// A generation of ms-swift. Version 4.0 renamed `--train_type` to `--tuner_type`, and its model types are
/// architectures: what were model types with another chat template became templates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Release {
    #[default]
    Three,
    Four,
}

impl Release {
    /// Reads the first number of a version: `3.8.2`, `4`, `ms-swift 4.6.0`.
    fn of_version(version: &str) -> Option<Self> {
        let digits: String =
            version.chars().skip_while(|one| !one.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
        Some(if digits.parse::<u64>().ok()? >= 4 { Self::Four } else { Self::Three })
    }

    /// Returns the release that the params name, else that of the installation.
    fn of(own: &SwiftParams, context: &Context) -> Self {
        if let Some(release) = own.version.as_deref().and_then(Self::of_version) {
            return release;
        }
        if let Some(version) = own.program.first().and_then(|program| installed(program, context))
            && let Some(release) = Self::of_version(&version)
        {
            context.progress().log(&format!("ms-swift {version}"));
            return release;
        }
        context.progress().log("the version of ms-swift is unknown, assuming 3.8: set `backend.swift.version`");
        Self::default()
    }
}

/// Finds the version of ms-swift from the metadata that pip and uv leave beside the program: `../lib/python3.11/
/// site-packages/ms_swift-4.6.0.dist-info`. Asking the program itself would import it whole.
fn installed(program: &str, context: &Context) -> Option<String> {
    let path = if program.contains('/') {
        context.resolve(program)
    } else {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file())?
    };
    // The program of a virtual environment may be reached through a link in a folder of programs.
    let root = std::fs::canonicalize(path).ok()?.parent()?.parent()?.join("lib");
    for python in names_in(&root).iter().filter(|name| name.starts_with("python")) {
        // Debian's own packages are in `dist-packages`.
        for kind in ["site-packages", "dist-packages"] {
            for name in names_in(&root.join(python).join(kind)) {
                let version = name.strip_prefix("ms_swift-").and_then(|rest| rest.strip_suffix(".dist-info"));
                if let Some(version) = version {
                    return Some(version.to_owned());
                }
            }
        }
    }
    None
}

/// Returns the names in a folder, sorted; none if it cannot be read.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Inputs of the flags besides params.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    pub(super) release: Release,
    pub(super) seed: u64,
    pub(super) gpus: u32,
    /// Whether examples are held out.
    pub(super) held_out: bool,
    pub(super) family: Option<Family>,
}

impl Facts {
    pub(super) fn of(own: &SwiftParams, model: &Path, held_out: bool, context: &Context) -> Self {
        let family = Decoder::read_config(model).ok().map(|config| config.model_type);
        Self { release: Release::of(own, context), seed: context.seed(), gpus: context.gpus(), held_out, family }
    }
}

/// Returns the command line.
///
/// # Errors
/// When `batch_size` cannot be split evenly among the GPUs.
pub(super) fn command(
    own: &SwiftParams,
    params: &TrainParams,
    facts: &Facts,
    model: &Path,
    files: &Files,
) -> Result<Vec<String>, OperatorError> {
    let at_once = own.per_device_batch_size * (facts.gpus.max(1) as usize);
    if !params.batch_size.is_multiple_of(at_once) {
        let (whole, each, gpus) = (params.batch_size, own.per_device_batch_size, facts.gpus);
        let message = format!("batch_size {whole} is not a multiple of {each} examples on each of {gpus} GPUs");
        let help = "change `batch_size`, `per_device_batch_size` or `gpus`";
        return Err(OperatorError::pipeline(message).with_help(help));
    }
    let mut words = own.program.clone();
    words.push("sft".to_owned());
    for (name, values) in flags(own, params, facts, model, files) {
        words.push(format!("--{name}"));
        words.extend(values);
    }
    Ok(words)
}

/// Collects flags.
struct Rendering(Flags);

impl Rendering {
    fn set(&mut self, name: &str, value: impl ToString) {
        self.0.insert(name.to_owned(), vec![value.to_string()]);
    }

    fn optional(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }
}

/// Returns all flags.
pub(super) fn flags(own: &SwiftParams, params: &TrainParams, facts: &Facts, model: &Path, files: &Files) -> Flags {
    let mut rendering = Rendering(Flags::new());
    set_model(&mut rendering, own, &params.tuning, facts, model);
    set_data(&mut rendering, own, params, facts, files);
    set_steps(&mut rendering, own, params, facts);
    set_measurements(&mut rendering, own, params, facts, files);
    // The user's own flags come last. None of them has the name of one above: `flag_issue` reports these.
    for (name, value) in &own.flags {
        let words = match value {
            Value::Array(items) => items.iter().map(word).collect(),
            other => vec![word(other)],
        };
        rendering.0.insert(name.clone(), words);
    }
    rendering.0
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn set_model(rendering: &mut Rendering, own: &SwiftParams, tuning: &Tuning, facts: &Facts, model: &Path) {
    rendering.set("model", model.display());
    // The model type and the template for models without thoughts.
    let (model_type, template) = match (facts.family, facts.release) {
        (Some(Family::Qwen3), Release::Three) => (Some("qwen3_nothinking"), None),
        (Some(Family::Qwen3), Release::Four) => (Some("qwen3"), Some("qwen3_nothinking")),
        (Some(Family::Qwen2), Release::Three) => (Some("qwen2_5"), None),
        (Some(Family::Qwen2), Release::Four) => (Some("qwen2"), Some("qwen2_5")),
        (Some(Family::Llama) | None, _) => (None, None),
    };
    rendering.optional("model_type", own.model_type.as_deref().or(model_type));
    // A model type that the user names has a template of its own.
    let template = template.filter(|_| own.model_type.is_none());
    rendering.optional("template", own.template.as_deref().or(template));
    rendering.set("agent_template", &own.agent_template);
    rendering.set("torch_dtype", word(&json!(own.torch_dtype)));
    rendering.optional("attn_impl", own.attn_impl.as_ref());
    rendering.set("use_liger_kernel", own.use_liger_kernel);
    rendering.set("gradient_checkpointing", own.gradient_checkpointing);
    rendering.set("gradient_checkpointing_kwargs", r#"{"use_reentrant": false}"#);
    let name = if facts.release == Release::Three { "train_type" } else { "tuner_type" };
    match tuning {
        Tuning::Full => rendering.set(name, "full"),
        Tuning::Lora(lora) => {
            rendering.set(name, "lora");
            rendering.set("lora_rank", lora.rank);
            rendering.set("lora_alpha", lora.alpha);
            rendering.set("lora_dropout", lora.dropout);
            rendering.0.insert("target_modules".to_owned(), lora.target_modules.clone());
        }
    }
}

fn set_data(rendering: &mut Rendering, own: &SwiftParams, params: &TrainParams, facts: &Facts, files: &Files) {
    rendering.set("dataset", files.examples.display());
    // The examples were split here, by question.
    rendering.set("split_dataset_ratio", 0);
    if facts.held_out {
        rendering.set("val_dataset", files.held_out.display());
    }
    rendering.set("max_length", params.max_length);
    rendering.set("truncation_strategy", word(&json!(params.truncation)));
    rendering.set("packing", own.packing);
    rendering.set("load_from_cache_file", own.load_from_cache_file);
    rendering.set("dataset_num_proc", own.dataset_num_proc);
    rendering.set("dataloader_num_workers", own.dataloader_num_workers);
    // NumPy rejects larger seeds.
    rendering.set("seed", facts.seed % (1 << 32));
    rendering.set("data_seed", facts.seed % (1 << 32));
}

fn set_steps(rendering: &mut Rendering, own: &SwiftParams, params: &TrainParams, facts: &Facts) {
    let at_once = own.per_device_batch_size.max(1) * facts.gpus.max(1) as usize;
    rendering.set("num_train_epochs", params.epochs);
    rendering.optional("max_steps", params.max_steps);
    rendering.set("per_device_train_batch_size", own.per_device_batch_size);
    rendering.set("per_device_eval_batch_size", own.per_device_batch_size);
    rendering.set("gradient_accumulation_steps", params.batch_size / at_once);
    rendering.set("learning_rate", params.learning_rate);
    rendering.set("warmup_ratio", params.warmup_ratio);
    let scheduler = match params.schedule {
        Decay::Cosine => "cosine",
        Decay::Linear => "linear",
        Decay::Constant => "constant_with_warmup",
    };
    rendering.set("lr_scheduler_type", scheduler);
    rendering.set("weight_decay", params.optimizer.weight_decay);
    rendering.set("adam_beta1", params.optimizer.beta1);
    rendering.set("adam_beta2", params.optimizer.beta2);
    rendering.set("adam_epsilon", params.optimizer.epsilon);
    // 0 disables clipping.
    rendering.set("max_grad_norm", params.max_grad_norm.unwrap_or(0.0));
}

fn set_measurements(rendering: &mut Rendering, own: &SwiftParams, params: &TrainParams, facts: &Facts, files: &Files) {
    rendering.set("do_eval", facts.held_out);
    rendering.set("eval_strategy", if facts.held_out { "steps" } else { "no" });
    rendering.set("eval_steps", params.eval_steps);
    rendering.optional("early_stop_interval", params.early_stopping);
    rendering.set("logging_steps", own.logging_steps);
    rendering.set("save_strategy", "steps");
    rendering.set("save_steps", own.save_steps.unwrap_or(params.eval_steps));
    // The checkpoints that are outputs must not be deleted.
    if params.checkpoints.is_empty() {
        rendering.set("save_total_limit", own.save_total_limit);
    }
    // A killed training starts over, so the optimiser's state has no use.
    rendering.set("save_only_model", true);
    rendering.set("report_to", &own.report_to);
    rendering.set("output_dir", files.output.display());
    // The folder belongs to this run alone: no subfolder per version.
    rendering.set("add_version", false);
}

/// Returns the checkpoint to keep: the one named by the last line of the log, else the one with the highest step.
///
/// # Errors
/// When no checkpoint exists, or the log does not name the best one.
pub(super) fn checkpoint(output: &Path, summary: Option<&Value>, keep: Keep) -> Result<PathBuf, OperatorError> {
    let key = match keep {
        Keep::Best => "best_model_checkpoint",
        Keep::Last => "last_model_checkpoint",
    };
    // The trainer may name its checkpoint by another path to the same folder: only the last name counts.
    if let Some(named) = summary.and_then(|summary| summary.get(key)?.as_str())
        && let Some(name) = Path::new(named).file_name()
        && output.join(name).is_dir()
    {
        return Ok(output.join(name));
    }
    if keep == Keep::Best {
        let message = "swift sft did not log which checkpoint is the best";
        return Err(OperatorError::data(message).with_help("set `eval_share`, or connect the input `eval`"));
    }
    let mut checkpoints = BTreeMap::new();
    for path in paths_in(output)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let step = name.strip_prefix("checkpoint-").and_then(|step| step.parse::<u64>().ok());
        if let Some(step) = step
            && path.is_dir()
        {
            checkpoints.insert(step, path);
        }
    }
    match checkpoints.pop_last() {
        Some((_, newest)) => Ok(newest),
        None => Err(OperatorError::data("swift sft succeeded but left no checkpoint").with_help("see its log")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::backend::Backend;
    use super::*;

    fn shown(params: Value, facts: &Facts) -> String {
        let params: TrainParams = serde_json::from_value(params).unwrap();
        let Backend::Swift(own) = &params.backend else { panic!("swift") };
        assert!(issues(own, &params).is_empty());
        let words = command(own, &params, facts, Path::new("/m"), &Files::at(Path::new("/t"))).unwrap();
        words.join(" ")
    }

    /// The flags of DeepSearch-RL's `train_sft.sh` with their values there.
    #[test]
    fn every_flag_of_deepsearch_rl_is_rendered() {
        let params = json!({
            "tuning": {"lora": {"rank": 64, "alpha": 128, "dropout": 0.05}}, "epochs": 2, "batch_size": 8,
            "max_length": 32768, "eval_share": 0.05, "eval_steps": 50,
            "backend": {"swift": {"attn_impl": "flash_attn", "packing": true, "use_liger_kernel": true,
                "dataloader_num_workers": 4, "dataset_num_proc": 16, "load_from_cache_file": true, "save_total_limit": 3,
                "report_to": "tensorboard", "flags": {"loss_scale": "hermes", "deepspeed": {"stage": 2}, "freeze": ["a", "b"]}}},
        });
        let facts = Facts { seed: (1 << 32) + 7, held_out: true, family: Some(Family::Qwen3), ..Facts::default() };
        let told = shown(params, &facts) + " ";
        assert!(told.starts_with("swift sft --"), "{told}");
        for flag in [
            "--model /m",
            "--model_type qwen3_nothinking",
            "--train_type lora",
            "--lora_rank 64",
            "--lora_alpha 128",
            "--lora_dropout 0.05",
            "--target_modules all-linear",
            "--dataset /t/examples.jsonl",
            "--val_dataset /t/held_out.jsonl",
            "--load_from_cache_file true",
            "--agent_template hermes",
            "--torch_dtype bfloat16",
            "--num_train_epochs 2",
            "--per_device_train_batch_size 1",
            "--per_device_eval_batch_size 1",
            "--learning_rate 0.0001",
            "--weight_decay 0.1",
            "--gradient_accumulation_steps 8",
            "--gradient_checkpointing true",
            "--gradient_checkpointing_kwargs {\"use_reentrant\": false}",
            "--report_to tensorboard",
            "--do_eval true",
            "--split_dataset_ratio 0",
            "--eval_steps 50",
            "--save_steps 50",
            "--save_strategy steps",
            "--save_total_limit 3",
            "--logging_steps 1",
            "--max_length 32768",
            "--truncation_strategy delete",
            "--save_only_model true",
            "--packing true",
            "--output_dir /t/output",
            "--warmup_ratio 0.05",
            "--lr_scheduler_type cosine",
            "--attn_impl flash_attn",
            "--dataloader_num_workers 4",
            "--dataset_num_proc 16",
            "--use_liger_kernel true",
            "--seed 7",
            "--data_seed 7",
            "--loss_scale hermes",
            "--deepspeed {\"stage\":2}",
            "--freeze a b",
            "--max_grad_norm 1",
        ] {
            assert!(told.contains(&format!(" {flag} ")), "{flag}\n{told}");
        }
        assert!(!told.contains("--max_steps"));
    }

    /// `swift sft` of ms-swift 4.6.0 accepted these flags, and refused `--train_type` and the model type
    /// `qwen3_nothinking`.
    #[test]
    fn flags_follow_the_release() {
        let shown = |version: Option<&str>, more: Value, family| {
            let mut swift = json!({"version": version, "program": ["/nowhere/swift"]});
            swift.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let params = json!({"tuning": {"lora": {}}, "backend": {"swift": swift}});
            let parsed: TrainParams = serde_json::from_value(params.clone()).unwrap();
            let Backend::Swift(own) = &parsed.backend else { panic!("swift") };
            let harness = searchmill_engine::operator::testing::Harness::new();
            let release = Release::of(own, &harness.context());
            shown(params, &Facts { release, family: Some(family), ..Facts::default() }) + " "
        };
        for version in ["4.6.0", "4", "ms-swift 4.0.1"] {
            let told = shown(Some(version), json!({}), Family::Qwen3);
            assert!(told.contains(" --tuner_type lora ") && !told.contains("train_type"), "{told}");
            assert!(told.contains(" --model_type qwen3 ") && told.contains(" --template qwen3_nothinking "), "{told}");
        }
        let told = shown(Some("4.6.0"), json!({}), Family::Qwen2);
        assert!(told.contains(" --model_type qwen2 ") && told.contains(" --template qwen2_5 "), "{told}");
        let own = json!({"model_type": "qwen3", "template": "qwen3_thinking"});
        assert!(shown(Some("4.6.0"), own, Family::Qwen3).contains(" --template qwen3_thinking "));
        assert!(!shown(Some("4.6.0"), json!({"model_type": "mimo"}), Family::Qwen3).contains(" --template "));
        for version in [Some("3.8.2"), Some("ours"), None] {
            let told = shown(version, json!({}), Family::Qwen3);
            assert!(told.contains(" --train_type lora ") && !told.contains("tuner_type"), "{told}");
            assert!(told.contains(" --model_type qwen3_nothinking ") && !told.contains("--template"), "{told}");
        }
    }

    #[test]
    fn the_installed_release_is_found_beside_the_program() {
        let harness = searchmill_engine::operator::testing::Harness::new();
        let root = harness.path().join("venv");
        let packages = root.join("lib/python3.11/site-packages");
        std::fs::create_dir_all(packages.join("ms_swift-4.6.0.dist-info")).unwrap();
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::write(root.join("bin/swift"), "").unwrap();
        let link = harness.path().join("swift");
        std::os::unix::fs::symlink(root.join("bin/swift"), &link).unwrap();
        for program in [root.join("bin/swift"), link] {
            let found = installed(&program.display().to_string(), &harness.context());
            assert_eq!(found.as_deref(), Some("4.6.0"), "{}", program.display());
        }
        assert_eq!(installed("/nowhere/swift", &harness.context()), None);
    }

    #[test]
    fn the_batch_is_the_same_on_any_number_of_gpus() {
        let params = json!({"batch_size": 8, "backend": {"swift": {"per_device_batch_size": 2}}});
        let on = |gpus| shown(params.clone(), &Facts { gpus, ..Facts::default() });
        assert!(
            on(0).contains("--gradient_accumulation_steps 4 ") && on(4).contains("--gradient_accumulation_steps 1 ")
        );
        assert!(on(1).contains("--eval_strategy no ") && !on(1).contains("--model_type"));
        let params: TrainParams = serde_json::from_value(params).unwrap();
        let Backend::Swift(own) = &params.backend else { panic!("swift") };
        let facts = Facts { gpus: 3, ..Facts::default() };
        let failure = command(own, &params, &facts, Path::new("/m"), &Files::at(Path::new("/t"))).unwrap_err();
        assert!(failure.message.contains("not a multiple of 2 examples on each of 3 GPUs"), "{failure}");
    }
}
