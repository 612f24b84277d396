//! `init-model`: creates a small untrained decoder, and a tokenizer trained on a corpus.

#[cfg(test)]
mod gguf_tests;

use std::path::Path;

use arrow::array::AsArray;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Accept, Arity, BlockingKernel, Context, Declaration, Example, InputArtifact, Inputs, Kernel, Operator,
    OperatorError, Outputs, ParamIssue, Ports, TreeKind,
};
use searchmill_models::decoder::DecoderConfig;
use searchmill_models::inference::WHOLE;
use searchmill_models::initial::{phrases, tokenizer, weights};
use searchmill_models::on_path;
use searchmill_schemas::RecordKind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A family of decoders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModelFamily {
    /// Biases in the query, key and value projections.
    Qwen2,
    /// Norms of each head's queries and keys; no biases.
    #[default]
    Qwen3,
    /// No biases, no such norms.
    Llama,
}

/// Parameters of `init-model`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct InitModelParams {
    /// Model family: the `model_type` of transformers.
    pub(crate) family: ModelFamily,
    /// Number of layers.
    #[schemars(range(min = 1))]
    pub(crate) layers: usize,
    /// Hidden size: dimensions of a token's vector.
    #[schemars(range(min = 2))]
    pub(crate) hidden: usize,
    /// Number of attention heads.
    #[schemars(range(min = 1))]
    pub(crate) heads: usize,
    /// Number of key/value heads; must divide `heads`.
    #[schemars(range(min = 1))]
    pub(crate) kv_heads: usize,
    /// Dimensions of a head; must be even (`null`: `hidden` / `heads`).
    pub(crate) head_dim: Option<usize>,
    /// Width of the feed-forward layers.
    #[schemars(range(min = 1))]
    pub(crate) intermediate: usize,
    /// Maximum vocabulary size, including the 265 special and single-byte tokens. A small corpus yields fewer tokens.
    #[schemars(range(min = 265))]
    pub(crate) vocab: usize,
    /// Phrases found in at least this share of the texts become single tokens, and so does the beginning shared by
    /// all texts (`null`: no phrases). The fixed parts of prompts and tool calls then need few tokens, which makes
    /// small students several times faster.
    pub(crate) whole_phrases: Option<f64>,
    /// Maximum text length in tokens that the model supports.
    #[schemars(range(min = 1))]
    pub(crate) context: usize,
    /// Base of the rotary position frequencies.
    pub(crate) rope_theta: f64,
    /// Share the embedding weights with the output layer.
    pub(crate) tie_embeddings: bool,
    /// Standard deviation of the initial weights.
    pub(crate) deviation: f64,
}

impl Default for InitModelParams {
    fn default() -> Self {
        Self {
            family: ModelFamily::Qwen3,
            layers: 4,
            hidden: 256,
            heads: 4,
            kv_heads: 2,
            head_dim: None,
            intermediate: 768,
            vocab: 8192,
            whole_phrases: None,
            context: 2048,
            rope_theta: 10_000.0,
            tie_embeddings: true,
            deviation: 0.02,
        }
    }
}

/// Creates an untrained decoder as a Hugging Face folder: `config.json`, `generation_config.json`, seeded weights
/// (`model.safetensors`, f32), and a byte-level BPE tokenizer trained on the corpus. The tokenizer has the special
/// tokens of ChatML and Hermes and a chat template that renders as `convert-to-swift` does. The template marks what the
/// assistant writes (`{% generation %}`), as TRL's `assistant_only_loss` needs. Training pipelines then need no
/// download. transformers, PEFT and vLLM can load the folder.
pub(crate) struct InitModel;

impl Operator for InitModel {
    type Params = InitModelParams;
    const NAME: &'static str = "init-model";
    const VERSION: u32 = 3;
    const ABOUT: &'static str =
        "Creates a small untrained language model: seeded weights, and a tokenizer trained on a corpus.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "A student for the training rows of this pipeline",
            yaml: "blank: {op: init-model, from: swift, with: {layers: 3, hidden: 128, intermediate: 384, vocab: 2048, whole_phrases: 0.9}, seed: 1}",
        },
        Example {
            title: "A Llama whose tokenizer is also trained on the documents",
            yaml: "blank: {op: init-model, from: {corpus: [chunks, swift]}, with: {family: llama, heads: 8, head_dim: 64, vocab: 16384}, seed: 1}",
        },
    ];

    fn declare(params: &InitModelParams) -> Declaration {
        let kinds = vec![RecordKind::Example, RecordKind::Chunk, RecordKind::Document, RecordKind::Question];
        let about = "Text to train the tokenizer on: rendered examples, chunks, documents, questions.";
        let ports = Ports::new().input_of("corpus", Accept::Rows(kinds), Arity::Many, about);
        let ports = ports.tree_out("model", TreeKind::Model, "A Hugging Face model folder.");
        Declaration::seeded(ports).variant(WHOLE).issues(issues(params))
    }

    fn open(params: &InitModelParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn issues(params: &InitModelParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    if params.vocab < tokenizer::FEWEST {
        issues.push(ParamIssue::new("vocab", format!("must be at least {}", tokenizer::FEWEST)));
    }
    if !(params.deviation.is_finite() && params.deviation > 0.0) {
        issues.push(ParamIssue::new("deviation", "must be greater than 0"));
    }
    if !(params.rope_theta.is_finite() && params.rope_theta > 1.0) {
        issues.push(ParamIssue::new("rope_theta", "must be greater than 1"));
    }
    if params.whole_phrases.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
        issues.push(ParamIssue::new("whole_phrases", "must be above 0 and at most 1, or null"));
    }
    // Shapes that contradict each other are found by the reader of models; the ids of tokens do not matter to it.
    let shape = DecoderConfig::parse(config(params, params.vocab, 0, 0).to_string().as_bytes(), "the params");
    issues.extend(shape.err().map(|problem| ParamIssue::new("", problem.message)));
    issues
}

/// Builds `config.json`.
fn config(params: &InitModelParams, vocab: usize, end: u32, pad: u32) -> Value {
    let (model_type, architecture) = match params.family {
        ModelFamily::Qwen2 => ("qwen2", "Qwen2ForCausalLM"),
        ModelFamily::Qwen3 => ("qwen3", "Qwen3ForCausalLM"),
        ModelFamily::Llama => ("llama", "LlamaForCausalLM"),
    };
    json!({
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": vocab,
        "hidden_size": params.hidden,
        "intermediate_size": params.intermediate,
        "num_hidden_layers": params.layers,
        "num_attention_heads": params.heads,
        "num_key_value_heads": params.kv_heads,
        "head_dim": params.head_dim.unwrap_or(params.hidden / params.heads.max(1)),
        "max_position_embeddings": params.context,
        "rope_theta": params.rope_theta,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": params.tie_embeddings,
        "hidden_act": "silu",
        // For Llama and Qwen3: transformers builds Qwen2 with its biases in any case.
        "attention_bias": false,
        "attention_dropout": 0.0,
        "initializer_range": params.deviation,
        "use_cache": true,
        "torch_dtype": "float32",
        "eos_token_id": end,
        "pad_token_id": pad,
    })
}

impl BlockingKernel for InitModelParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let texts = corpus(inputs)?;
        context.check_cancelled()?;
        let phrases = self.whole_phrases.map(|share| phrases::phrases(&texts, share)).unwrap_or_default();
        let tokenizer = tokenizer::train(&texts, &phrases, self.vocab).map_err(no_tokenizer)?;
        // Counting phrases and merging tokens are the long parts.
        context.check_cancelled()?;
        // A small corpus has fewer tokens than `vocab` allows: the embedding has one row for each that exists.
        let vocab = tokenizer.get_vocab_size(true);
        let end = tokenizer.token_to_id(tokenizer::END_OF_MESSAGE).unwrap_or_default();
        let pad = tokenizer.token_to_id(tokenizer::END_OF_TEXT).unwrap_or_default();
        let config = config(self, vocab, end, pad);
        let decoder = DecoderConfig::parse(config.to_string().as_bytes(), "config.json")?;
        let folder = outputs.tree("model")?;
        write(&folder.join("config.json"), format!("{config:#}\n"))?;
        // As in Qwen's own folders, generation ends at either token.
        let generation = json!({"eos_token_id": [end, pad], "pad_token_id": pad, "do_sample": false});
        write(&folder.join("generation_config.json"), format!("{generation:#}\n"))?;
        let tokenizer_config = tokenizer::config(&tokenizer, self.context);
        write(&folder.join("tokenizer_config.json"), format!("{tokenizer_config:#}\n"))?;
        write(&folder.join("tokenizer.json"), tokenizer.to_string(true).map_err(no_tokenizer)?)?;
        write(&folder.join("model.safetensors"), weights::file(&decoder.tensors(), self.deviation, context.seed())?)?;
        outputs.figure("parameters", decoder.parameter_count() as f64);
        outputs.figure("vocabulary", vocab as f64);
        Ok(())
    }
}

fn no_tokenizer(error: tokenizers::Error) -> OperatorError {
    OperatorError::data(format!("no tokenizer can be trained: {error}"))
}

fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), OperatorError> {
    std::fs::write(path, content).map_err(on_path(path))
}

/// Collects all texts of the inputs, in order.
fn corpus(inputs: &Inputs) -> Result<Vec<String>, OperatorError> {
    let mut texts = Vec::new();
    for artifact in inputs.many("corpus") {
        let InputArtifact::Rows(rows) = artifact else { continue };
        let columns: &[&str] = match rows.kind {
            RecordKind::Document => &["title", "text"],
            RecordKind::Question => &["question"],
            RecordKind::Example => &["text"],
            _ => &["contents"],
        };
        for batch in rows.batches() {
            let batch = batch?;
            for name in columns {
                let Some(column) = batch.column_by_name(name) else { continue };
                // `text` of an example is beyond its kind: it may have any type.
                let Some(column) = column.as_string_opt::<i32>() else { continue };
                texts.extend(column.iter().flatten().map(str::to_owned));
            }
        }
    }
    if texts.is_empty() {
        return Err(OperatorError::data("the corpus has no text to train a tokenizer on")
            .with_help("examples need the column `text`, as added by `convert-to-swift`"));
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
    use searchmill_schemas::Document;
    use serde_json::json;

    use super::*;

    fn make(seed: u64, params: Value) -> Outcome {
        let text = |n: usize| format!("Brausvairna has held a city charter since {n}. Its mayor is Rorne Pandak.");
        let document =
            |n: usize| Document { id: format!("d{n}"), title: Some("Town".to_owned()), text: text(n), metadata: None };
        let rows: Vec<Document> = (0..40).map(document).collect();
        let harness = Box::leak(Box::new(Harness::new()));
        harness.seed = seed;
        harness.run(&entry::<InitModel>(), params, &inputs([("corpus", rows_input(&rows))])).expect("runs")
    }

    #[test]
    fn the_folder_is_a_model_and_depends_on_its_seed() {
        let params = json!({"layers": 1, "hidden": 16, "heads": 2, "kv_heads": 1, "intermediate": 24, "vocab": 300});
        let read = |outcome: &Outcome, file: &str| std::fs::read(outcome.trees["model"].join(file)).expect("a file");
        let (one, same, other) = (make(1, params.clone()), make(1, params.clone()), make(2, params));
        for file in
            ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
        {
            assert_eq!(read(&one, file), read(&same, file), "{file}");
        }
        assert_ne!(read(&one, "model.safetensors"), read(&other, "model.safetensors"));
        assert_eq!(read(&one, "tokenizer.json"), read(&other, "tokenizer.json"));
        let tokenizer: Value = serde_json::from_slice(&read(&one, "tokenizer_config.json")).expect("JSON");
        assert_eq!(tokenizer["model_input_names"], json!(["input_ids", "attention_mask"]));
        let template = tokenizer["chat_template"].as_str().expect("a template");
        assert!(template.contains("{%- generation %}") && template.contains("{%- endgeneration %}"));
        let loaded = searchmill_models::decoder::Decoder::load(
            &one.trees["model"],
            &candle_core::Device::Cpu,
            candle_core::DType::F32,
        );
        assert_eq!(loaded.expect("loads").config().parameter_count() as f64, one.figures["parameters"]);
    }

    #[test]
    fn shapes_that_cannot_be_are_told() {
        let entry = entry::<InitModel>();
        for (params, told) in [
            (json!({"heads": 3, "kv_heads": 2}), "do not divide"),
            (json!({"vocab": 100}), "at least 265"),
            (json!({"deviation": 0.0}), "greater than 0"),
            (json!({"head_dim": 15}), "even"),
        ] {
            let issues = (entry.bind)(params).expect("params").declaration.issues;
            assert!(issues.iter().any(|issue| issue.message.contains(told)), "{issues:?}");
        }
    }
}
