//! Who trains: the decoder of our own, ms-swift, or any other program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use schemars::JsonSchema;
use searchmill_data::program::{Command, named, unseen};
use searchmill_engine::operator::{ParamIssue, Source};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Who trains.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Backend {
    /// This process, on the CPU.
    #[default]
    Candle,
    /// ms-swift: `swift sft` with flags made of the params.
    Swift(Box<SwiftParams>),
    /// Any other program.
    Exec(Box<ExecParams>),
}

/// How `swift sft` is run. Flags follow ms-swift 3.8; what the params of `train` itself say (learning rate, LoRA, …) is
/// passed on. Examples must be those of `convert-to-swift`. What is held out is chosen by question, here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct SwiftParams {
    /// The program, with arguments that come before `sft`: `[swift]`, `[/opt/swift/bin/swift]`, `[uv, run, swift]`. Its
    /// content, or what it answers to `--version`, is part of the key; where it lies is not.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) program: Vec<String>,
    /// Which ms-swift that is (`3.8.3`), or any other text that tells trainers apart: what the program itself does not say.
    /// Part of the key; otherwise unused.
    pub(crate) version: Option<String>,
    /// `--model_type`; `null`: `qwen3_nothinking` for Qwen3, `qwen2_5` for Qwen2, and swift's guess for others.
    pub(crate) model_type: Option<String>,
    /// `--template`; `null`: that of the model type.
    pub(crate) template: Option<String>,
    /// `--agent_template`: how tools and tool calls are written.
    pub(crate) agent_template: String,
    /// `--torch_dtype`.
    pub(crate) torch_dtype: Precision,
    /// Examples on a device at a time. `batch_size` must be a multiple of it, times the node's GPUs: the rest is
    /// `--gradient_accumulation_steps`.
    #[schemars(range(min = 1))]
    pub(crate) per_device_batch_size: usize,
    /// `--gradient_checkpointing`, not reentrant.
    pub(crate) gradient_checkpointing: bool,
    /// `--packing`; wants flash attention.
    pub(crate) packing: bool,
    /// `--attn_impl` (`flash_attn`, `sdpa`); `null`: swift's choice.
    pub(crate) attn_impl: Option<String>,
    /// `--use_liger_kernel`.
    pub(crate) use_liger_kernel: bool,
    /// `--logging_steps`: steps between rows of `steps`.
    #[schemars(range(min = 1))]
    pub(crate) logging_steps: u64,
    /// `--save_steps`: steps between checkpoints, of which `keep: best` takes one; `null`: as `eval_steps`.
    #[schemars(range(min = 1))]
    pub(crate) save_steps: Option<u64>,
    /// `--save_total_limit`. Does not enter the key.
    #[schemars(range(min = 1), extend("x-searchmill-key" = false))]
    pub(crate) save_total_limit: u64,
    /// `--dataloader_num_workers`. Does not enter the key.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) dataloader_num_workers: u64,
    /// `--dataset_num_proc`. Does not enter the key.
    #[schemars(range(min = 1), extend("x-searchmill-key" = false))]
    pub(crate) dataset_num_proc: u64,
    /// `--load_from_cache_file`. Does not enter the key.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) load_from_cache_file: bool,
    /// `--report_to` (`tensorboard`, `wandb`). Does not enter the key.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) report_to: String,
    /// Further flags by their names, without dashes: `{loss_scale: hermes, deepspeed: zero2}`. A list is several words, a
    /// map is JSON. Files and folders that they name are sources.
    pub(crate) flags: BTreeMap<String, Value>,
    /// Environment variables that swift may see besides `PATH`, `HOME` and the node's GPUs (`HF_HOME`, `WANDB_API_KEY`). Their values are not part of the node's key.
    pub(crate) environment: Vec<String>,
    /// Seconds after which it is stopped; 0: never. Does not enter the key.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) timeout_seconds: u64,
}

/// Numbers that a model is trained in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Precision {
    /// 16 bits, of which 8 are the exponent's.
    #[default]
    Bfloat16,
    /// 16 bits, of which 5 are the exponent's.
    Float16,
    /// 32 bits.
    Float32,
}

impl Precision {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bfloat16 => "bfloat16",
            Self::Float16 => "float16",
            Self::Float32 => "float32",
        }
    }
}

impl Default for SwiftParams {
    fn default() -> Self {
        Self {
            program: vec!["swift".to_owned()],
            version: None,
            model_type: None,
            template: None,
            agent_template: "hermes".to_owned(),
            torch_dtype: Precision::default(),
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

/// Any program that trains. In its arguments, `{examples}` and `{held_out}` are JSONL files with one row each, `{model}` is
/// the folder of the model to begin with, `{output}` an empty folder for the trained model or adapter, `{metrics}` a file
/// for its figures, `{seed}` the node's seed. Figures are JSON objects, one a line: `step` (or `global_step`), `epoch`, `loss`,
/// `learning_rate`, `grad_norm`, `token_accuracy`, `eval_loss`, `eval_token_accuracy`, or what transformers and ms-swift log. All
/// params of `train` arrive as JSON in `SEARCHMILL_TRAINING`, `params` in `SEARCHMILL_PARAMS`, the seed in `SEARCHMILL_SEED`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct ExecParams {
    /// The program, with arguments that come before the others: `[python3]`, `[/opt/trl/bin/python]`; no shell is involved. A
    /// program of your own is known by its content, one of the system by what it answers to `--version`.
    pub(crate) program: Vec<String>,
    /// Which program that is (`trl 0.20`), in place of asking it by `--version`. Part of the key; otherwise unused.
    pub(crate) version: Option<String>,
    /// Its arguments, with the names in braces replaced. Files and folders that they name (also behind a `=`) are sources:
    /// when their content changes, the node runs again.
    pub(crate) arguments: Vec<String>,
    /// Further files whose content decides the outcome (modules that the script imports); a folder stands for all files
    /// below it.
    pub(crate) files: Vec<String>,
    /// Files and folders that the program writes besides its output (logs, caches): arguments that name them are no sources.
    pub(crate) writes: Vec<String>,
    /// Handed to the program as JSON in the environment variable `SEARCHMILL_PARAMS`.
    pub(crate) params: Map<String, Value>,
    /// Environment variables that the program may see besides `PATH`, `HOME` and the node's GPUs. Their values are not part
    /// of the node's key.
    pub(crate) environment: Vec<String>,
    /// Seconds after which it is stopped; 0: never. Does not enter the key.
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) timeout_seconds: u64,
}

impl Backend {
    /// Is it a program of others?
    pub(crate) fn is_outside(&self) -> bool {
        *self != Self::Candle
    }

    /// Files whose content is part of the key.
    pub(super) fn sources(&self, directory: &Path) -> Vec<Source> {
        let mut sources: BTreeSet<Source> = BTreeSet::new();
        match self {
            Self::Candle => {}
            Self::Swift(swift) => {
                sources.extend(swift.words().sources(directory));
                // Where the program lies is not part of the key; what else its words say is.
                sources.extend(swift.program.iter().skip(1).map(|word| Source::Identity(format!("word {word}"))));
                let mut words = Vec::new();
                swift.flags.values().for_each(|value| texts(value, &mut words));
                sources.extend(named(words.into_iter(), directory));
            }
            Self::Exec(exec) => {
                sources.extend(exec.files.iter().cloned().map(Source::Argument));
                sources.extend(exec.words().sources(directory));
            }
        }
        sources.into_iter().collect()
    }

    /// What the key does not see.
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

/// All texts in a value.
fn texts<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(map) => map.values().for_each(|item| texts(item, found)),
        _ => {}
    }
}

/// No program, or an empty word for one.
pub(super) fn no_program(path: &str, program: &[String]) -> Option<ParamIssue> {
    program.first().is_none_or(String::is_empty).then(|| {
        let issue = ParamIssue::new(path, "names no program");
        issue.with_help("write the program, and what comes before its arguments, as a list: `[python3]`")
    })
}
