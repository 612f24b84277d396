//! BERT encoders (MiniLM, E5, BGE, …) on candle: tokenise, run, pool, normalise.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use rayon::prelude::*;
use schemars::JsonSchema;
use searchmill_engine::operator::{OperatorError, ParamIssue};
use serde::{Deserialize, Serialize};
use tokenizers::{Encoding, Tokenizer, TruncationParams};

use super::hashing::normalize;
use super::{Encoder, Role};

/// What a model folder holds.
pub(super) const FILES: &[&str] = &["config.json", "tokenizer.json", "model.safetensors"];

/// Options of a BERT encoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct BertParams {
    /// A local folder with `config.json`, `tokenizer.json` and `model.safetensors`, or a Hugging Face id
    /// (`intfloat/e5-base-v2`). Write a relative folder as `./folder`.
    pub model: String,
    /// Branch, tag or commit of a Hugging Face model. A commit never changes under you.
    #[serde(default = "default_revision")]
    pub revision: String,
    /// How a text's vector is made of its tokens' vectors: E5 and MiniLM want `mean`, BGE wants `cls`.
    #[serde(default)]
    pub pooling: Pooling,
    /// Put before every query, for example `"query: "` for E5.
    #[serde(default)]
    pub query_prefix: String,
    /// Put before every passage, for example `"passage: "` for E5.
    #[serde(default)]
    pub passage_prefix: String,
    /// Scale vectors to length 1, so that the inner product is the cosine.
    #[serde(default = "default_normalize")]
    pub normalize: bool,
    /// Longer texts are cut at so many tokens (never more than the model has positions for).
    #[serde(default = "default_max_length")]
    pub max_length: usize,
    /// Tokens run at once, padding counted: more is faster on large machines and takes more memory.
    #[serde(default = "default_batch_tokens")]
    pub batch_tokens: usize,
}

/// How a text's vector is made of its tokens' vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The mean over all tokens.
    #[default]
    Mean,
    /// The first token's vector.
    Cls,
}

fn default_revision() -> String {
    "main".to_owned()
}

fn default_normalize() -> bool {
    true
}

fn default_max_length() -> usize {
    512
}

fn default_batch_tokens() -> usize {
    4096
}

impl BertParams {
    pub(super) fn check(&self, path: &str) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        if self.model.trim().is_empty() {
            issues.push(ParamIssue::new(format!("{path}.model"), "model must name a folder or a Hugging Face id"));
        }
        if self.max_length < 3 {
            let message = "max_length must be at least 3: two tokens are the model's own";
            issues.push(ParamIssue::new(format!("{path}.max_length"), message));
        }
        if self.batch_tokens == 0 {
            issues.push(ParamIssue::new(format!("{path}.batch_tokens"), "batch_tokens must be at least 1"));
        }
        issues
    }
}

/// A loaded model with its tokenizer.
pub struct BertEncoder {
    model: BertModel,
    tokenizer: Tokenizer,
    dimensions: usize,
    padding: u32,
    params: BertParams,
}

fn broken(folder: &Path, file: &str, error: impl std::fmt::Display) -> OperatorError {
    OperatorError::data(format!("{}: {error}", folder.join(file).display()))
}

fn failed(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::machine(format!("the encoder failed: {error}"))
}

impl BertEncoder {
    /// Loads a model folder.
    ///
    /// # Errors
    /// When a file is missing, or is not what a BERT model has.
    pub fn open(folder: &Path, params: &BertParams) -> Result<Self, OperatorError> {
        let config: Config = serde_json::from_slice(&read(folder, "config.json")?)
            .map_err(|error| broken(folder, "config.json", error).with_help("the model must be of the BERT family"))?;
        let weights =
            VarBuilder::from_buffered_safetensors(read(folder, "model.safetensors")?, DType::F32, &Device::Cpu)
                .map_err(|error| broken(folder, "model.safetensors", error))?;
        let model = BertModel::load(weights, &config).map_err(|error| broken(folder, "model.safetensors", error))?;
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"));
        let mut tokenizer = tokenizer.map_err(|error| broken(folder, "tokenizer.json", error))?;
        let max_length = params.max_length.min(config.max_position_embeddings);
        let truncation = TruncationParams { max_length, ..TruncationParams::default() };
        tokenizer.with_padding(None);
        tokenizer.with_truncation(Some(truncation)).map_err(|error| broken(folder, "tokenizer.json", error))?;
        let padding = config.pad_token_id as u32;
        Ok(Self { model, tokenizer, dimensions: config.hidden_size, padding, params: params.clone() })
    }

    /// The vectors of texts of similar length, one after the other.
    fn run(&self, batch: &[&Encoding]) -> candle_core::Result<Vec<f32>> {
        let length = batch.iter().map(|text| text.len()).max().unwrap_or(0);
        let padded = |take: fn(&Encoding) -> &[u32], padding: u32| {
            let rows = batch
                .iter()
                .flat_map(|text| take(text).iter().copied().chain(std::iter::repeat_n(padding, length - text.len())));
            Tensor::from_iter(rows, &Device::Cpu)?.reshape((batch.len(), length))
        };
        let ids = padded(Encoding::get_ids, self.padding)?;
        let types = padded(Encoding::get_type_ids, 0)?;
        let mask = padded(Encoding::get_attention_mask, 0)?;
        let hidden = self.model.forward(&ids, &types, Some(&mask))?;
        let pooled = match self.params.pooling {
            Pooling::Cls => hidden.narrow(1, 0, 1)?.squeeze(1)?,
            Pooling::Mean => {
                let mask = mask.to_dtype(DType::F32)?.unsqueeze(2)?;
                hidden.broadcast_mul(&mask)?.sum(1)?.broadcast_div(&mask.sum(1)?)?
            }
        };
        pooled.flatten_all()?.to_vec1()
    }

    /// Cuts texts, ordered by length, into batches of at most `batch_tokens` tokens with padding.
    fn batches<'a>(&self, order: &'a [usize], lengths: &[usize]) -> Vec<&'a [usize]> {
        let mut batches = Vec::new();
        let mut start = 0;
        for end in 1..=order.len() {
            let full = end < order.len() && (end - start + 1) * lengths[order[end]] > self.params.batch_tokens;
            if full || end == order.len() {
                batches.push(&order[start..end]);
                start = end;
            }
        }
        batches
    }
}

fn read(folder: &Path, file: &str) -> Result<Vec<u8>, OperatorError> {
    std::fs::read(folder.join(file)).map_err(|error| broken(folder, file, error))
}

impl Encoder for BertEncoder {
    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn encode(&self, texts: &[&str], role: Role) -> Result<Vec<f32>, OperatorError> {
        let prefix = match role {
            Role::Query => &self.params.query_prefix,
            Role::Passage => &self.params.passage_prefix,
        };
        let texts: Vec<String> = texts.iter().map(|text| format!("{prefix}{text}")).collect();
        let tokens = self.tokenizer.encode_batch_fast(texts, true).map_err(failed)?;
        let lengths: Vec<usize> = tokens.iter().map(Encoding::len).collect();
        let mut order: Vec<usize> = (0..tokens.len()).collect();
        order.sort_by_key(|text| lengths[*text]);
        let batches = self.batches(&order, &lengths);
        let run = |batch: &&[usize]| self.run(&batch.iter().map(|text| &tokens[*text]).collect::<Vec<_>>());
        let found: Vec<Vec<f32>> = batches.par_iter().map(run).collect::<Result<_, _>>().map_err(failed)?;
        let mut vectors = vec![0.0f32; tokens.len() * self.dimensions];
        let places = batches.iter().flat_map(|batch| batch.iter());
        for (text, vector) in places.zip(found.iter().flat_map(|batch| batch.chunks(self.dimensions))) {
            vectors[text * self.dimensions..][..self.dimensions].copy_from_slice(vector);
        }
        if self.params.normalize {
            vectors.chunks_mut(self.dimensions).for_each(normalize);
        }
        Ok(vectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const WORDS: &[&str] = &["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "river", "flows", "into", "sea", "query", ":"];

    /// Writes a small random BERT (2 layers, 2 heads, 16 dimensions) with a word tokenizer.
    fn tiny_model(folder: &Path) {
        let config = serde_json::json!({
            "vocab_size": WORDS.len(), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 32, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "max_position_embeddings": 12,
            "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0,
            "model_type": "bert"
        });
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let vocabulary: HashMap<&str, usize> = WORDS.iter().copied().zip(0..).collect();
        let tokenizer = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
        });
        std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        candle_core::safetensors::save(&random_weights(), folder.join("model.safetensors")).unwrap();
    }

    fn random_weights() -> HashMap<String, Tensor> {
        use rand::{Rng, SeedableRng};
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let mut weights = HashMap::new();
        let mut add = |name: String, shape: &[usize]| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|_| random.random_range(-0.5..0.5)).collect();
            weights.insert(name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap());
        };
        for (name, rows) in [("word", WORDS.len()), ("position", 12), ("token_type", 2)] {
            add(format!("embeddings.{name}_embeddings.weight"), &[rows, 16]);
        }
        let mut norms = vec!["embeddings.LayerNorm".to_owned()];
        for layer in 0..2 {
            let layer = format!("encoder.layer.{layer}");
            let parts = [
                ("attention.self.query", 16, 16),
                ("attention.self.key", 16, 16),
                ("attention.self.value", 16, 16),
                ("attention.output.dense", 16, 16),
                ("intermediate.dense", 32, 16),
                ("output.dense", 16, 32),
            ];
            for (part, out, into) in parts {
                add(format!("{layer}.{part}.weight"), &[out, into]);
                add(format!("{layer}.{part}.bias"), &[out]);
            }
            norms.push(format!("{layer}.attention.output.LayerNorm"));
            norms.push(format!("{layer}.output.LayerNorm"));
        }
        for norm in norms {
            add(format!("{norm}.weight"), &[16]);
            add(format!("{norm}.bias"), &[16]);
        }
        weights
    }

    fn params(json: serde_json::Value) -> BertParams {
        serde_json::from_value(json).unwrap()
    }

    fn largest_difference(left: &[f32], right: &[f32]) -> f32 {
        left.iter().zip(right).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }

    #[test]
    fn padding_and_batches_do_not_change_vectors() {
        let folder = tempfile::tempdir().unwrap();
        tiny_model(folder.path());
        let texts = ["the river flows into the sea", "sea", "", "the unknown sea", "river river river"];
        for pooling in ["mean", "cls"] {
            let open = |tokens| {
                BertEncoder::open(
                    folder.path(),
                    &params(serde_json::json!({"model": "x", "pooling": pooling, "batch_tokens": tokens})),
                )
            };
            let together = open(1000).unwrap().encode(&texts, Role::Passage).unwrap();
            let apart = open(1).unwrap().encode(&texts, Role::Passage).unwrap();
            assert_eq!(together.len(), texts.len() * 16);
            assert!(largest_difference(&together, &apart) < 1e-5);
            for vector in together.chunks(16) {
                assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn prefixes_and_cuts_are_applied() {
        let folder = tempfile::tempdir().unwrap();
        tiny_model(folder.path());
        let plain = BertEncoder::open(folder.path(), &params(serde_json::json!({"model": "x"}))).unwrap();
        let prefixed = params(serde_json::json!({"model": "x", "query_prefix": "query: "}));
        let prefixed = BertEncoder::open(folder.path(), &prefixed).unwrap();
        assert_eq!(
            prefixed.encode(&["the sea"], Role::Query).unwrap(),
            plain.encode(&["query: the sea"], Role::Query).unwrap()
        );
        assert_eq!(
            prefixed.encode(&["the sea"], Role::Passage).unwrap(),
            plain.encode(&["the sea"], Role::Passage).unwrap()
        );
        // Twelve positions, two of them for [CLS] and [SEP].
        let (long, cut) = ("sea ".repeat(50), "sea ".repeat(10));
        let vectors = plain.encode(&[&long, &cut], Role::Passage).unwrap();
        assert!(largest_difference(&vectors[..16], &vectors[16..]) < 1e-6);
    }

    #[test]
    fn a_folder_that_is_no_model_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let open = || BertEncoder::open(folder.path(), &params(serde_json::json!({"model": "x"}))).err().unwrap();
        assert!(open().message.contains("config.json"));
        tiny_model(folder.path());
        std::fs::write(folder.path().join("model.safetensors"), b"no weights").unwrap();
        assert!(open().message.contains("model.safetensors"));
    }

    /// The first six components that sentence-transformers 5.1.0 gives (`encode(…, normalize_embeddings=True)`).
    #[test]
    fn minilm_equals_sentence_transformers() {
        let Ok(folder) = std::env::var("MINILM_DIR") else {
            println!("SKIPPED: MINILM_DIR does not name the folder of all-MiniLM-L6-v2");
            return;
        };
        let encoder = params(serde_json::json!({"model": folder, "max_length": 256}));
        let encoder = BertEncoder::open(Path::new(&folder), &encoder).unwrap();
        let expected: [(&str, [f32; 6]); 5] = [
            ("This is an example sentence", [0.0676569, 0.0634959, 0.0487131, 0.079305, 0.037448, 0.0026529]),
            ("", [-0.1188384, 0.0482988, -0.002548, -0.0110112, 0.0519507, 0.0102918]),
            ("Żółć i gęślą jaźń 東京 naïve café", [-0.0013371, 0.0842527, 0.0061252, 0.0187705, -0.0833182, 0.0094792]),
            (&"word ".repeat(400), [-0.0081237, -0.095586, -0.0386731, 0.049662, -0.0437937, 0.0237198]),
            (
                "Theodred II (Bishop of Elmham)\nTheodred II was a medieval Bishop of Elmham. The date of Theodred's consecration unknown, but the date of his death was sometime between 995 and 997.",
                [0.0003803, 0.0634092, 0.0665574, -0.0191921, 0.0165425, 0.0426965],
            ),
        ];
        let texts = expected.map(|(text, _)| text);
        let vectors = encoder.encode(&texts, Role::Passage).unwrap();
        for (vector, (text, expected)) in vectors.chunks(384).zip(expected) {
            let difference = largest_difference(&vector[..6], &expected);
            println!("largest difference {difference:e}");
            assert!(difference < 1e-5, "{text}: {:?}", &vector[..6]);
        }
    }
}
