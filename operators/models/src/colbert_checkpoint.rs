//! Layouts of ColBERT checkpoints: markers, lengths and the linear layer of a model folder.
//!
//! - ColBERTv2's (github.com/stanford-futuredata/ColBERT, `colbert/infra/config/settings.py` and
//!   `colbert/modeling/hf_colbert.py`): `linear.weight` in `model.safetensors`, settings in `artifact.metadata`.
//! - PyLate's (github.com/lightonai/pylate, `pylate/models/colbert.py`), which is that of sentence-transformers:
//!   `1_Dense/` holds the layer, `config_sentence_transformers.json` the settings.

use std::path::Path;

use candle_core::safetensors::SliceSafetensors;
use candle_core::{DType, Device};
use searchmill_engine::operator::OperatorError;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::bert_engine::{WEIGHTS, broken, read};
use super::bert_network::Dense;

const METADATA: &str = "artifact.metadata";
const SETTINGS: &str = "config_sentence_transformers.json";
const DENSE: &str = "1_Dense/config.json";
const DENSE_WEIGHTS: &str = "1_Dense/model.safetensors";
const SECOND_DENSE: &str = "2_Dense/config.json";

/// Files that a checkpoint has beside those of a BERT model, depending on its layout.
pub(super) const BESIDE: &[&str] = &[METADATA, SETTINGS, DENSE, DENSE_WEIGHTS, SECOND_DENSE];

/// The ASCII punctuation, as in Python's `string.punctuation`.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// How a checkpoint encodes texts.
pub(super) struct Checkpoint {
    /// Token after `[CLS]` in queries (empty: none).
    pub(super) query_marker: String,
    /// Token after `[CLS]` in documents (empty: none).
    pub(super) document_marker: String,
    /// Length of queries in tokens.
    pub(super) query_maxlen: usize,
    /// Maximum length of documents in tokens.
    pub(super) doc_maxlen: usize,
    /// Whether queries are filled up with `[MASK]`.
    pub(super) augments: bool,
    /// Whether the other tokens of a query attend to `[MASK]`.
    pub(super) attends: bool,
    /// Texts whose first token gets no vector in documents.
    pub(super) skipped: Vec<String>,
    /// The linear layer after BERT.
    pub(super) head: Dense,
}

/// Content of `artifact.metadata`, with ColBERT's defaults.
#[derive(Deserialize)]
#[serde(default)]
struct Metadata {
    query_token_id: String,
    doc_token_id: String,
    query_maxlen: usize,
    doc_maxlen: usize,
    attend_to_mask_tokens: bool,
    mask_punctuation: bool,
    similarity: String,
}

impl Default for Metadata {
    fn default() -> Self {
        Self {
            query_token_id: "[unused0]".to_owned(),
            doc_token_id: "[unused1]".to_owned(),
            query_maxlen: 32,
            doc_maxlen: 220,
            attend_to_mask_tokens: false,
            mask_punctuation: true,
            similarity: "cosine".to_owned(),
        }
    }
}

/// Content of `config_sentence_transformers.json`, with PyLate's defaults. Absent and null mean the default.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    query_prefix: Option<String>,
    document_prefix: Option<String>,
    query_length: Option<usize>,
    document_length: Option<usize>,
    attend_to_expansion_tokens: Option<bool>,
    do_query_expansion: Option<bool>,
    skiplist_words: Option<Vec<String>>,
}

/// Content of `1_Dense/config.json`.
#[derive(Deserialize)]
struct DenseConfig {
    #[serde(default)]
    activation_function: String,
    #[serde(default)]
    use_residual: bool,
}

fn punctuation() -> Vec<String> {
    PUNCTUATION.chars().map(String::from).collect()
}

impl Checkpoint {
    /// Reads the settings and the linear layer of a model folder whose BERT has `hidden` dimensions; `weights` is the
    /// content of its `model.safetensors`.
    pub(super) fn read(folder: &Path, weights: &[u8], hidden: usize) -> Result<Self, OperatorError> {
        // PyLate's layer is in a file of its own: its BERT alone is no ColBERT.
        if folder.join(DENSE).is_file() {
            return Self::read_pylate(folder, hidden);
        }
        let head = head(weights, hidden).map_err(|error| {
            broken(folder, WEIGHTS, error).with_help(
                "a ColBERT checkpoint has `linear.weight` in model.safetensors (as colbert-ir/colbertv2.0) or in \
                 1_Dense/model.safetensors (as PyLate writes it); a BERT for `dense` indexes has neither",
            )
        })?;
        let metadata: Metadata = parse(folder, METADATA)?.unwrap_or_default();
        // With `l2`, distances are compared; indexes have inner products.
        if metadata.similarity != "cosine" {
            let message = format!("`similarity` is `{}`; only `cosine` is supported", metadata.similarity);
            return Err(broken(folder, METADATA, message));
        }
        Ok(Self {
            query_marker: metadata.query_token_id,
            document_marker: metadata.doc_token_id,
            query_maxlen: metadata.query_maxlen,
            doc_maxlen: metadata.doc_maxlen,
            augments: true,
            attends: metadata.attend_to_mask_tokens,
            skipped: if metadata.mask_punctuation { punctuation() } else { Vec::new() },
            head,
        })
    }

    fn read_pylate(folder: &Path, hidden: usize) -> Result<Self, OperatorError> {
        if folder.join(SECOND_DENSE).is_file() {
            return Err(broken(folder, SECOND_DENSE, "only one linear layer after BERT is supported"));
        }
        if let Some(config) = parse::<DenseConfig>(folder, DENSE)? {
            // The name of a class of torch: `torch.nn.modules.linear.Identity`.
            let name = config.activation_function.rsplit('.').next().unwrap_or_default();
            if !matches!(name, "" | "Identity") || config.use_residual {
                let message = "only a plain linear layer is supported (activation `Identity`, no residual)";
                return Err(broken(folder, DENSE, message));
            }
        }
        let weights = read(folder, DENSE_WEIGHTS)?;
        let head = head(&weights, hidden).map_err(|error| broken(folder, DENSE_WEIGHTS, error))?;
        let settings: Settings = parse(folder, SETTINGS)?.unwrap_or_default();
        Ok(Self {
            query_marker: settings.query_prefix.unwrap_or_else(|| "[Q] ".to_owned()),
            document_marker: settings.document_prefix.unwrap_or_else(|| "[D] ".to_owned()),
            query_maxlen: settings.query_length.unwrap_or(32),
            doc_maxlen: settings.document_length.unwrap_or(180),
            augments: settings.do_query_expansion.unwrap_or(true),
            attends: settings.attend_to_expansion_tokens.unwrap_or(false),
            skipped: settings.skiplist_words.unwrap_or_else(punctuation),
            head,
        })
    }
}

/// Reads a JSON file of a folder, if it is there.
fn parse<T: DeserializeOwned>(folder: &Path, file: &str) -> Result<Option<T>, OperatorError> {
    if !folder.join(file).is_file() {
        return Ok(None);
    }
    let parsed = serde_json::from_slice(&read(folder, file)?);
    parsed.map(Some).map_err(|error| broken(folder, file, error))
}

/// Reads the layer `linear` of a `.safetensors` file; its bias may be missing.
fn head(file: &[u8], hidden: usize) -> Result<Dense, String> {
    let file = SliceSafetensors::new(file).map_err(|error| error.to_string())?;
    let (shape, weight) = numbers(&file, "linear.weight")?;
    let &[outputs, inputs] = shape.as_slice() else { return Err(format!("`linear.weight` has the shape {shape:?}")) };
    if inputs != hidden || outputs == 0 {
        return Err(format!(
            "`linear.weight` has {inputs} inputs and {outputs} outputs, the model has {hidden} dimensions"
        ));
    }
    let bias = match numbers(&file, "linear.bias") {
        Ok((_, bias)) if bias.len() == outputs => bias,
        Ok((shape, _)) => return Err(format!("`linear.bias` has the shape {shape:?}, not [{outputs}]")),
        // ColBERT's layer has none.
        Err(_) => vec![0.0; outputs],
    };
    Ok(Dense { weight, bias, inputs })
}

/// Returns the shape and the numbers of a tensor.
fn numbers(file: &SliceSafetensors<'_>, name: &str) -> Result<(Vec<usize>, Vec<f32>), String> {
    let tensor = file.load(name, &Device::Cpu).map_err(|_| format!("missing tensor `{name}`"))?;
    let numbers = tensor.to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all()?.to_vec1::<f32>());
    Ok((tensor.dims().to_vec(), numbers.map_err(|error| error.to_string())?))
}
