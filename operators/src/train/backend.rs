//! The trainer: our own, ms-swift, or any other program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use schemars::JsonSchema;
use searchmill_data::program::{Command, named, unseen};
use searchmill_engine::operator::{ParamIssue, Source};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The trainer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Backend {
    /// This process.
    #[default]
    Candle,
    /// ms-swift: `swift sft` with flags from the params.
    Swift(Box<SwiftParams>),
    /// Any other program.
    Exec(Box<ExecParams>),
}

/// Options of `swift sft` of ms-swift 3.8 or 4. The params of `train` itself (learning rate, LoRA, …) are
/// passed on. Examples must come from `convert-to-swift`. `train` chooses the held-out examples, by question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct SwiftParams {
    /// The program and its arguments before `sft`: `[swift]`, `[/opt/swift/bin/swift]`, `[uv, run, swift]`. Its
    /// content, or its answer to `--version`, is part of the key; its path is not.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) program: Vec<String>,
    /// Version of ms-swift (`3.8.2`, `4.6.0`). Part of the cache key. Its first number decides the names of the flags;
    /// without one, the version that is installed beside the program does, else 3.8.
    pub(crate) version: Option<String>,
    /// `--model_type`; `null`: `qwen3_nothinking` (from ms-swift 4 on `qwen3`) for Qwen3, `qwen2_5` (`qwen2`) for Qwen2,
    /// swift's guess for others.
    pub(crate) model_type: Option<String>,
    /// `--template`; `null`: the template of the model type; from ms-swift 4 on `qwen3_nothinking` for Qwen3 and
    /// `qwen2_5` for Qwen2.
    pub(crate) template: Option<String>,
    /// `--agent_template`: format of tools and tool calls.
    pub(crate) agent_template: String,
    /// `--torch_dtype`.
    pub(crate) torch_dtype: TorchDtype,
    /// Examples per device and pass. `batch_size` must be a multiple of this times the node's GPUs; the quotient
    /// becomes `--gradient_accumulation_steps`.
    #[schemars(range(min = 1))]
    pub(crate) per_device_batch_size: usize,
    /// `--gradient_checkpointing`, not reentrant.
    pub(crate) gradient_checkpointing: bool,
    /// `--packing`; needs flash attention.
    pub(crate) packing: bool,
    /// `--attn_impl` (`flash_attn`, `sdpa`); `null`: swift's choice.
    pub(crate) attn_impl: Option<String>,
    /// `--use_liger_kernel`.
    pub(crate) use_liger_kernel: bool,
    /// `--logging_steps`: steps between rows of `steps`.
    #[schemars(range(min = 1))]
    pub(crate) logging_steps: u64,
    /// `--save_steps`: steps between checkpoints; `null`: `eval_steps`. `keep: best` outputs one of these checkpoints.
    #[schemars(range(min = 1))]
    pub(crate) save_steps: Option<u64>,
    /// `--save_total_limit`. Not part of the cache key.
    #[schemars(range(min = 1), extend("x-searchmill-key" = false))]
    pub(crate) save_total_limit: u64,
    /// `--dataloader_num_workers`. Not part of the cache key.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) dataloader_num_workers: u64,
    /// `--dataset_num_proc`. Not part of the cache key.
    #[schemars(range(min = 1), extend("x-searchmill-key" = false))]
    pub(crate) dataset_num_proc: u64,
    /// `--load_from_cache_file`. Not part of the cache key.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) load_from_cache_file: bool,
    /// `--report_to` (`tensorboard`, `wandb`). Not part of the cache key.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) report_to: String,
    /// More flags, named without dashes: `{loss_scale: hermes, deepspeed: zero2}`. A list becomes several words, a map
    /// becomes JSON. Files and folders named in values are sources.
    pub(crate) flags: BTreeMap<String, Value>,
    /// Environment variables passed to swift besides `PATH`, `HOME` and the node's GPUs (`HF_HOME`, `WANDB_API_KEY`).
    /// Their values are not part of the cache key.
    pub(crate) environment: Vec<String>,
    /// Timeout in seconds (0 = none). Not part of the cache key.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) timeout_seconds: u64,
}

/// The precision in which ms-swift trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TorchDtype {
    /// 16 bits, 8 of them for the exponent.
    #[default]
    Bfloat16,
    /// 16 bits, 5 of them for the exponent.
    Float16,
    /// 32 bits.
    Float32,
}

impl Default for SwiftParams {
    fn default() -> Self {
        Self {
            program: vec!["swift".to_owned()],
            version: None,
            model_type: None,
            template: None,
            agent_template: "hermes".to_owned(),
            torch_dtype: TorchDtype::default(),
            per_device_batch_size: 1,
            gradient_checkpointing: true,
            packing: false,
            attn_impl: None,
            use_liger_kernel: false,
            logging_steps: 1,
            save_steps: None,
            save_total_limit: 2,
            dataloader_num_workers: 0,
            dataset_num_proc: 1,
            load_from_cache_file: false,
            report_to: "none".to_owned(),
            flags: BTreeMap::new(),
            environment: Vec::new(),
            timeout_seconds: 0,
        }
    }
}

/// Any program that trains. Its arguments may contain `{examples}` and `{held_out}` (JSONL files, one row per line),
/// `{model}` (the folder of the base model), `{output}` (an empty folder for the trained model or adapter),
/// `{metrics}` (a file for its metrics) and `{seed}` (the node's seed). Metrics are JSON objects, one per line:
/// `step` (or `global_step`), `epoch`, `loss`, `learning_rate`, `grad_norm`, `token_accuracy`, `eval_loss`,
/// `eval_token_accuracy`, or the names of transformers and ms-swift. `SEARCHMILL_TRAINING` holds all params of
/// `train` as JSON, `SEARCHMILL_PARAMS` holds `params`, and `SEARCHMILL_SEED` the seed.
///
/// With `method: external` there are `{rows}` and `{eval}` (Parquet files of the inputs of these names),
/// `{rows_jsonl}` and `{eval_jsonl}` (the same as JSON lines) instead of `{examples}` and `{held_out}`. Every number in
/// the metrics becomes a column of `steps`, also those of verl's file logger. The model is in `{output}`, or in the
/// folder below it with the highest step (`checkpoint-34`, `global_step_120/actor/huggingface`, `models/NAME/0034`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct ExecParams {
    /// The program and its first arguments: `[python3]`, `[/opt/trl/bin/python]`. No shell is involved. The key
    /// identifies your own program by its content, a system program by its answer to `--version`.
    pub(crate) program: Vec<String>,
    /// Version of the program (`trl 0.20`), instead of its answer to `--version`. Part of the cache key; otherwise
    /// unused.
    pub(crate) version: Option<String>,
    /// Its arguments, with the names in braces replaced. Files and folders named there (also after a `=`) are
    /// sources: if their content changes, the node runs again.
    pub(crate) arguments: Vec<String>,
    /// More files whose content decides the outcome (modules that the script imports). A folder means all files below
    /// it. A file of yours that the program reads and that is not part of the key stops it.
    pub(crate) files: Vec<String>,
    /// Files and folders that the program writes besides its output, or that it reads without an effect on its output
    /// (logs, caches, credentials). Arguments that name them are not sources.
    pub(crate) writes: Vec<String>,
    /// Passed to the program as JSON in the environment variable `SEARCHMILL_PARAMS`.
    pub(crate) params: Map<String, Value>,
    /// Environment variables passed to the program besides `PATH`, `HOME` and the node's GPUs. Their values are not
    /// part of the cache key.
    pub(crate) environment: Vec<String>,
    /// Timeout in seconds (0 = none). Not part of the cache key.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) timeout_seconds: u64,
}

impl Backend {
    /// Whether an external program trains.
    pub(crate) fn is_outside(&self) -> bool {
        *self != Self::Candle
    }

    /// Returns the files whose content is part of the key.
    pub(super) fn sources(&self, directory: &Path) -> Vec<Source> {
        // A set: a file named twice is one source.
        let mut sources: BTreeSet<Source> = BTreeSet::new();
        match self {
            Self::Candle => {}
            Self::Swift(swift) => {
                sources.extend(swift.words().sources(directory));
                // The program's path is not part of the key; its other words are.
                sources.extend(swift.program.iter().skip(1).map(|word| Source::Identity(format!("word {word}"))));
                let mut words = Vec::new();
                swift.flags.values().for_each(|value| texts(value, &mut words));
                sources.extend(named(words.into_iter(), directory));
            }
            Self::Exec(exec) => {
                // Named, so they count even if no argument has them.
                sources.extend(exec.files.iter().cloned().map(Source::Argument));
                sources.extend(exec.words().sources(directory));
            }
        }
        sources.into_iter().collect()
    }

    /// Returns a description of what the key does not cover.
    pub(super) fn unseen(&self) -> Option<String> {
        match self {
            Self::Candle => None,
            Self::Swift(swift) => Some(unseen(&swift.words(), &swift.environment)),
            Self::Exec(exec) => Some(unseen(&exec.words(), &exec.environment)),
        }
    }
}

impl SwiftParams {
    fn words(&self) -> Command<'_> {
        Command { program: &self.program, arguments: &[], version: self.version.as_deref(), writes: &[] }
    }
}

impl ExecParams {
    fn words(&self) -> Command<'_> {
        let version = self.version.as_deref();
        Command { program: &self.program, arguments: &self.arguments, version, writes: &self.writes }
    }
}

/// Collects all texts in a value.
fn texts<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(map) => map.values().for_each(|item| texts(item, found)),
        _ => {}
    }
}

/// Returns an issue if the program is missing or empty.
pub(super) fn no_program(path: &str, program: &[String]) -> Option<ParamIssue> {
    program.first().is_none_or(String::is_empty).then(|| {
        let issue = ParamIssue::new(path, "names no program");
        issue.with_help("write the program and its first arguments as a list: `[python3]`")
    })
}
