//! BERT encoders (MiniLM, E5, BGE, …): tokenise, run the network, pool, normalise.

use std::path::Path;

use schemars::JsonSchema;
use searchmill_engine::operator::{OperatorError, ParamIssue};
use serde::{Deserialize, Serialize};
use tokenizers::Tokenizer;

use super::bert_engine::{BYTES_A_TOKEN, Engine, cut, failed, open_network, open_tokenizer};
use super::bert_network::Text;
use super::device::{Compute, Precision};
use super::encoder::{Encoder, Role};
use super::groups::groups;
use super::hashing::normalize;
use super::location::main_branch;
use super::pooling::Pooling;

/// Options of a BERT encoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct BertParams {
    /// A local folder with `config.json`, `tokenizer.json` and `model.safetensors`, or a Hugging Face id
    /// (`intfloat/e5-base-v2`) if no folder has that name.
    pub model: String,
    /// Branch, tag or commit of a Hugging Face model. The cache of the Hub's tools records the commit of a branch or tag; the
    /// commit is part of the cache key.
    #[serde(default = "main_branch")]
    pub revision: String,
    /// How the vector of a text is computed from the vectors of its tokens: E5 and MiniLM need `mean`, BGE needs `cls`.
    #[serde(default)]
    pub pooling: Pooling,
    /// Prefix of every query, for example `"query: "` for E5.
    #[serde(default)]
    pub query_prefix: String,
    /// Prefix of every passage, for example `"passage: "` for E5.
    #[serde(default)]
    pub passage_prefix: String,
    /// Scale vectors to length 1, so that the inner product is the cosine.
    #[serde(default = "default_normalize")]
    pub normalize: bool,
    /// Maximum length in tokens (at most the model's number of positions); longer texts are cut.
    #[serde(default = "default_max_length")]
    pub max_length: usize,
    /// Approximate number of tokens (4 bytes of text each) per batch and thread. Batches that fit the processor's caches are
    /// fastest; on a GPU use 32768. If a passage changes, all passages of its batch are recomputed.
    #[serde(default = "default_batch_tokens")]
    pub(crate) batch_tokens: usize,
    /// Precision of the computation: `f32`, or `bf16` (fastest on a GPU: `resources: {gpus: 1}`), which changes the components
    /// of a vector by some thousandths.
    #[serde(default)]
    pub dtype: Precision,
}

fn default_normalize() -> bool {
    true
}

fn default_max_length() -> usize {
    512
}

fn default_batch_tokens() -> usize {
    1024
}

impl BertParams {
    pub(super) fn check(&self, path: &str) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        if self.model.trim().is_empty() {
            issues.push(ParamIssue::new(format!("{path}.model"), "model must name a folder or a Hugging Face id"));
        }
        if self.max_length < 3 {
            let message = "max_length must be at least 3, because the model adds two tokens";
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
    network: Engine,
    tokenizer: Tokenizer,
    dimensions: usize,
    params: BertParams,
}

impl BertEncoder {
    /// Loads a model folder.
    ///
    /// # Errors
    /// When a file is missing, or does not belong to a BERT model.
    pub fn open(folder: &Path, params: &BertParams, compute: &Compute) -> Result<Self, OperatorError> {
        let (network, config, _) = open_network(folder, compute)?;
        let mut tokenizer = open_tokenizer(folder)?;
        cut(&mut tokenizer, params.max_length.min(config.max_position_embeddings), folder)?;
        Ok(Self { network, tokenizer, dimensions: config.hidden_size, params: params.clone() })
    }

    /// Returns the bytes of text with about `batch_tokens` tokens.
    fn bytes(&self) -> usize {
        self.params.batch_tokens.saturating_mul(BYTES_A_TOKEN)
    }
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
        // A query alone: on a GPU, its last bits would depend on the others of its batch.
        let batches = match role {
            Role::Query => (0..texts.len()).map(|text| text..text + 1).collect(),
            Role::Passage => groups(texts, self.bytes()),
        };
        let texts: Vec<String> = texts.iter().map(|text| format!("{prefix}{text}")).collect();
        let tokens = self.tokenizer.encode_batch_fast(texts, true).map_err(failed)?;
        let parts = self.network.run_all(&batches, |scratch, batch| {
            let texts = tokens[batch.clone()].iter().map(|text| Text::whole(text.get_ids(), text.get_type_ids()));
            self.network.pooled(&texts.collect::<Vec<_>>(), self.params.pooling, self.dimensions, scratch)
        })?;
        let mut vectors = parts.concat();
        if self.params.normalize {
            vectors.chunks_mut(self.dimensions).for_each(normalize);
        }
        Ok(vectors)
    }

    fn group_bytes(&self) -> Option<usize> {
        Some(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use searchmill_fixtures::models::tiny_bert;

    use super::*;
    use crate::bert_engine::read;
    use crate::bert_tensors::BertTensors;

    fn params(json: serde_json::Value) -> BertParams {
        serde_json::from_value(json).unwrap()
    }

    fn largest_difference(left: &[f32], right: &[f32]) -> f32 {
        left.iter().zip(right).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }

    #[test]
    fn padding_and_batches_do_not_change_vectors() {
        let folder = tempfile::tempdir().unwrap();
        tiny_bert(folder.path());
        let texts = ["the river flows into the sea", "sea", "", "the unknown sea", "river river river"];
        for pooling in ["mean", "cls"] {
            let open = |tokens| {
                BertEncoder::open(
                    folder.path(),
                    &params(serde_json::json!({"model": "x", "pooling": pooling, "batch_tokens": tokens})),
                    &Compute::cpu(),
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
        tiny_bert(folder.path());
        let plain =
            BertEncoder::open(folder.path(), &params(serde_json::json!({"model": "x"})), &Compute::cpu()).unwrap();
        let prefixed = params(serde_json::json!({"model": "x", "query_prefix": "query: "}));
        let prefixed = BertEncoder::open(folder.path(), &prefixed, &Compute::cpu()).unwrap();
        assert_eq!(
            prefixed.encode(&["the sea"], Role::Query).unwrap(),
            plain.encode(&["query: the sea"], Role::Query).unwrap()
        );
        assert_eq!(
            prefixed.encode(&["the sea"], Role::Passage).unwrap(),
            plain.encode(&["the sea"], Role::Passage).unwrap()
        );
        // Twelve positions, including [CLS] and [SEP].
        let (long, cut) = ("sea ".repeat(50), "sea ".repeat(10));
        let vectors = plain.encode(&[&long, &cut], Role::Passage).unwrap();
        assert!(largest_difference(&vectors[..16], &vectors[16..]) < 1e-6);
    }

    #[test]
    fn a_folder_that_is_no_model_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            BertEncoder::open(folder.path(), &params(serde_json::json!({"model": "x"})), &Compute::cpu()).err().unwrap()
        };
        assert!(open().message.contains("config.json"));
        tiny_bert(folder.path());
        std::fs::write(folder.path().join("model.safetensors"), b"no weights").unwrap();
        assert!(open().message.contains("model.safetensors"));
    }

    /// Compares with candle's own model, text by text.
    #[test]
    fn vectors_equal_candles() {
        use candle_core::IndexOp;
        use candle_nn::VarBuilder;
        use candle_transformers::models::bert::{BertModel, Config};
        let folder = tempfile::tempdir().unwrap();
        tiny_bert(folder.path());
        let config: Config = serde_json::from_slice(&read(folder.path(), "config.json").unwrap()).unwrap();
        let weights = read(folder.path(), "model.safetensors").unwrap();
        let weights = VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu).unwrap();
        let candle = BertModel::load(weights, &config).unwrap();
        let plain = params(serde_json::json!({"model": "x", "pooling": "cls", "normalize": false}));
        let encoder = BertEncoder::open(folder.path(), &plain, &Compute::cpu()).unwrap();
        for text in ["the river flows into the sea", "", "sea", "query : the the unknown river"] {
            let tokens = encoder.tokenizer.encode(text, true).unwrap();
            let tensor = |ids: &[u32]| Tensor::new(ids, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
            let theirs = candle.forward(&tensor(tokens.get_ids()), &tensor(tokens.get_type_ids()), None).unwrap();
            let theirs: Vec<f32> = theirs.i((0, 0)).unwrap().to_vec1().unwrap();
            let ours = encoder.encode(&[text], Role::Passage).unwrap();
            assert!(largest_difference(&ours, &theirs) < 2e-6, "{text}: {}", largest_difference(&ours, &theirs));
        }
    }

    /// The code that runs on a GPU gives the same vectors, for texts of different lengths at once.
    #[test]
    fn tensors_give_the_same_vectors() {
        let folder = tempfile::tempdir().unwrap();
        tiny_bert(folder.path());
        let texts = ["the river flows into the sea", "", "sea", "query : the the unknown river"];
        for pooling in ["mean", "cls"] {
            let params = params(serde_json::json!({"model": "x", "pooling": pooling}));
            let loops = BertEncoder::open(folder.path(), &params, &Compute::cpu()).unwrap();
            let whole = loops.encode(&texts, Role::Passage).unwrap();
            for (dtype, most) in [(DType::F32, 2e-6), (DType::BF16, 0.02)] {
                let Engine::Loops(network) = &loops.network else { panic!("f32 on the CPU uses the loops") };
                let compute = Compute { dtype, ..Compute::cpu() };
                let network = Engine::Tensors(BertTensors::new(network, &compute).unwrap());
                let tensors = BertEncoder { network, ..BertEncoder::open(folder.path(), &params, &compute).unwrap() };
                let found = tensors.encode(&texts, Role::Passage).unwrap();
                let apart = largest_difference(&found, &whole);
                assert!(apart < most, "{pooling} {dtype:?}: {apart}");
            }
        }
    }

    /// The first six components, to four decimals, of sentence-transformers 5.1.0
    /// (`encode(…, normalize_embeddings=True)`).
    #[test]
    fn minilm_equals_sentence_transformers() {
        let Some(folder) = searchmill_fixtures::minilm() else { return };
        let encoder = params(serde_json::json!({"model": folder, "max_length": 256}));
        let encoder = BertEncoder::open(Path::new(&folder), &encoder, &Compute::cpu()).unwrap();
        let expected: [(&str, [f32; 6]); 5] = [
            ("This is an example sentence", [0.0677, 0.0635, 0.0487, 0.0793, 0.0374, 0.0027]),
            ("", [-0.1188, 0.0483, -0.0025, -0.0110, 0.0520, 0.0103]),
            ("Żółć i gęślą jaźń 東京 naïve café", [-0.0013, 0.0843, 0.0061, 0.0188, -0.0833, 0.0095]),
            (&"word ".repeat(400), [-0.0081, -0.0956, -0.0387, 0.0497, -0.0438, 0.0237]),
            (
                "Theodred II (Bishop of Elmham)\nTheodred II was a medieval Bishop of Elmham. The date of Theodred's consecration unknown, but the date of his death was sometime between 995 and 997.",
                [0.0004, 0.0634, 0.0666, -0.0192, 0.0165, 0.0427],
            ),
        ];
        let texts = expected.map(|(text, _)| text);
        let vectors = encoder.encode(&texts, Role::Passage).unwrap();
        for (vector, (text, expected)) in vectors.chunks(384).zip(expected) {
            let difference = largest_difference(&vector[..6], &expected);
            println!("largest difference {difference:e}");
            assert!(difference < 6e-5, "{text}: {:?}", &vector[..6]);
        }
    }
}
