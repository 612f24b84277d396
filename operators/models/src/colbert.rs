//! ColBERT: a vector for every token of a text (Khattab and Zaharia 2020, arXiv:2004.12832; Santhanam et al. 2022,
//! arXiv:2112.01488).
//!
//! A query is `[CLS] [Q] … [SEP]`, filled up with `[MASK]` to a fixed length. The masks get vectors too (query
//! augmentation); the other tokens do not attend to them. A document is `[CLS] [D] … [SEP]`, and its punctuation gets
//! no vectors. The vectors of BERT go through a linear layer and are scaled to length 1. These are the rules of
//! `colbert/modeling/` in github.com/stanford-futuredata/ColBERT.

use std::collections::BTreeSet;
use std::path::Path;

use schemars::JsonSchema;
use searchmill_engine::operator::{OperatorError, ParamIssue};
use serde::{Deserialize, Serialize};
use tokenizers::{Encoding, Tokenizer};

use super::bert_engine::{BYTES_A_TOKEN, Engine, broken, cut, failed, open_network, open_tokenizer};
use super::bert_network::{Scratch, Text};
use super::colbert_checkpoint::Checkpoint;
use super::device::{Compute, Precision};
use super::encoder::Role;
use super::groups::groups;
use super::hashing::normalize;
use super::location::main_branch;

/// `[CLS]`, the marker, `[SEP]`, and one token of the text.
const SHORTEST: usize = 4;

/// Options of a ColBERT encoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct ColbertParams {
    /// A ColBERT checkpoint with a BERT inside: a local folder with `config.json`, `tokenizer.json` and
    /// `model.safetensors`, or a Hugging Face id (`colbert-ir/colbertv2.0`) if no folder has that name. Both ColBERT's
    /// own layout (`artifact.metadata`) and PyLate's (`1_Dense/`) are read.
    pub model: String,
    /// Branch, tag or commit of a Hugging Face model. The cache of the Hub's tools records the commit of a branch or
    /// tag; the commit is part of the cache key.
    #[serde(default = "main_branch")]
    pub revision: String,
    /// Length of a query in tokens: longer queries are cut, shorter ones are filled up with `[MASK]` (null: as the
    /// checkpoint says, usually 32).
    #[serde(default)]
    pub query_maxlen: Option<usize>,
    /// Maximum length of a document in tokens; longer ones are cut (null: as the checkpoint says, usually 180 or 220).
    #[serde(default)]
    pub doc_maxlen: Option<usize>,
    /// Approximate number of tokens (4 bytes of text each) per batch and thread; on a GPU use 32768. If a passage
    /// changes, all passages of its batch are recomputed.
    #[serde(default = "default_batch_tokens")]
    pub(crate) batch_tokens: usize,
    /// Precision of the computation: `f32`, or `bf16` (fastest on a GPU: `resources: {gpus: 1}`).
    #[serde(default)]
    pub dtype: Precision,
}

fn default_batch_tokens() -> usize {
    1024
}

impl ColbertParams {
    pub(super) fn check(&self, path: &str) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        if self.model.trim().is_empty() {
            issues.push(ParamIssue::new(format!("{path}.model"), "model must name a folder or a Hugging Face id"));
        }
        for (name, length) in [("query_maxlen", self.query_maxlen), ("doc_maxlen", self.doc_maxlen)] {
            if length.is_some_and(|length| length < SHORTEST) {
                let message = format!("{name} must be at least {SHORTEST}, because three tokens are added to a text");
                issues.push(ParamIssue::new(format!("{path}.{name}"), message));
            }
        }
        if self.batch_tokens == 0 {
            issues.push(ParamIssue::new(format!("{path}.batch_tokens"), "batch_tokens must be at least 1"));
        }
        issues
    }
}

/// The tokenizer of one role, and the token that marks it.
struct Side {
    tokenizer: Tokenizer,
    /// Inserted after `[CLS]`.
    marker: Option<u32>,
    maxlen: usize,
}

impl Side {
    fn new(tokenizer: &Tokenizer, marker: &str, maxlen: usize, folder: &Path) -> Result<Self, OperatorError> {
        let mut tokenizer = tokenizer.clone();
        if maxlen < SHORTEST {
            let message = format!("texts of {maxlen} tokens have no room for one of their own");
            return Err(broken(folder, "config.json", message));
        }
        let marker = if marker.is_empty() { None } else { Some(token(&tokenizer, marker, folder)?) };
        // The marker is inserted after the text was cut.
        cut(&mut tokenizer, maxlen - usize::from(marker.is_some()), folder)?;
        Ok(Self { tokenizer, marker, maxlen })
    }
}

/// A loaded checkpoint with its tokenizer. May be used from any number of threads.
pub struct ColbertEncoder {
    network: Engine,
    checkpoint: Checkpoint,
    queries: Side,
    documents: Side,
    mask: u32,
    /// Tokens that get no vector in documents.
    skipped: BTreeSet<u32>,
    params: ColbertParams,
}

/// The tokens of a text as the network reads them.
struct Tokens {
    ids: Vec<u32>,
    types: Vec<u32>,
    attended: usize,
    /// Positions of the tokens that get a vector.
    positions: Vec<usize>,
}

impl Tokens {
    fn text(&self) -> Text<'_> {
        Text { ids: &self.ids, types: &self.types, attended: self.attended }
    }
}

impl ColbertEncoder {
    /// Loads a model folder.
    ///
    /// # Errors
    /// When a file is missing, or does not belong to a ColBERT with a BERT inside.
    pub fn open(folder: &Path, params: &ColbertParams, compute: &Compute) -> Result<Self, OperatorError> {
        let (network, config, weights) = open_network(folder, compute)?;
        let checkpoint = Checkpoint::read(folder, &weights, config.hidden_size)?;
        let tokenizer = open_tokenizer(folder)?;
        let skipped = checkpoint.skipped.iter().filter_map(|word| first_token(&tokenizer, word)).collect();
        // The model has no vectors for more positions.
        let most = config.max_position_embeddings;
        let query_maxlen = params.query_maxlen.unwrap_or(checkpoint.query_maxlen).min(most);
        let doc_maxlen = params.doc_maxlen.unwrap_or(checkpoint.doc_maxlen).min(most);
        Ok(Self {
            queries: Side::new(&tokenizer, &checkpoint.query_marker, query_maxlen, folder)?,
            documents: Side::new(&tokenizer, &checkpoint.document_marker, doc_maxlen, folder)?,
            mask: token(&tokenizer, "[MASK]", folder)?,
            skipped,
            network,
            checkpoint,
            params: params.clone(),
        })
    }

    /// Returns the length of a vector.
    pub fn dimensions(&self) -> usize {
        self.checkpoint.head.bias.len()
    }

    /// Returns the bytes of the [`groups`](crate::groups::groups) in which passages are encoded. A passage's vectors
    /// depend only on its group.
    pub fn group_bytes(&self) -> usize {
        self.params.batch_tokens.saturating_mul(BYTES_A_TOKEN)
    }

    /// Returns the vectors of the tokens of each text, concatenated. A text without tokens of its own (blank, or, for a
    /// passage, only punctuation) has none. A query's vectors do not depend on the other texts, to the last bit.
    ///
    /// # Errors
    /// When a text cannot be tokenised, or the model fails.
    pub fn encode(&self, texts: &[&str], role: Role) -> Result<Vec<Vec<f32>>, OperatorError> {
        // A query alone: on a GPU, its last bits would depend on the others of its batch.
        let (side, batches) = match role {
            Role::Query => (&self.queries, (0..texts.len()).map(|text| text..text + 1).collect()),
            Role::Passage => (&self.documents, groups(texts, self.group_bytes())),
        };
        let encodings = side.tokenizer.encode_batch_fast(texts.to_vec(), true).map_err(failed)?;
        let tokens: Vec<Tokens> = encodings.iter().map(|text| self.tokens(text, side, role)).collect();
        let vectors = self.network.run_all(&batches, |scratch, batch| self.run(&tokens[batch.clone()], scratch))?;
        Ok(vectors.into_iter().flatten().collect())
    }

    /// Adds the marker, and to queries the masks.
    fn tokens(&self, text: &Encoding, side: &Side, role: Role) -> Tokens {
        let special = text.get_special_tokens_mask();
        let mut ids = text.get_ids().to_vec();
        let has_own = special.iter().zip(&ids).any(|(special, id)| *special == 0 && self.has_vector(*id, role));
        if let Some(marker) = side.marker {
            ids.insert(1.min(ids.len()), marker);
        }
        let mut attended = ids.len();
        if role == Role::Query && self.checkpoint.augments {
            ids.resize(side.maxlen.max(ids.len()), self.mask);
            if self.checkpoint.attends {
                attended = ids.len();
            }
        }
        let mut positions = Vec::new();
        if has_own {
            positions.extend((0..ids.len()).filter(|position| self.has_vector(ids[*position], role)));
        }
        Tokens { types: vec![0; ids.len()], ids, attended, positions }
    }

    fn has_vector(&self, token: u32, role: Role) -> bool {
        role == Role::Query || !self.skipped.contains(&token)
    }

    /// Returns the vectors of a batch.
    fn run(&self, batch: &[Tokens], scratch: &mut Scratch) -> Result<Vec<Vec<f32>>, OperatorError> {
        // Texts without vectors are not computed.
        let computed: Vec<&Tokens> = batch.iter().filter(|tokens| !tokens.positions.is_empty()).collect();
        if computed.is_empty() {
            return Ok(vec![Vec::new(); batch.len()]);
        }
        let texts: Vec<Text<'_>> = computed.iter().map(|tokens| tokens.text()).collect();
        let (hidden, width) = (self.network.tokens(&texts, scratch)?, self.checkpoint.head.inputs);
        let (mut rows, mut start) = (Vec::with_capacity(hidden.len()), 0);
        for tokens in computed {
            for position in &tokens.positions {
                rows.extend_from_slice(&hidden[(start + position) * width..][..width]);
            }
            start += tokens.ids.len();
        }
        let mut vectors = Vec::new();
        self.checkpoint.head.apply(&rows, &mut vectors);
        let dimensions = self.dimensions();
        vectors.chunks_exact_mut(dimensions).for_each(normalize);
        if vectors.iter().any(|number| !number.is_finite()) {
            return Err(OperatorError::data("the ColBERT checkpoint gives vectors that are not finite")
                .with_help("its weights are damaged, or too large for `dtype: bf16`"));
        }
        let (mut by_text, mut rest) = (Vec::with_capacity(batch.len()), vectors.as_slice());
        for tokens in batch {
            let (own, others) = rest.split_at(tokens.positions.len() * dimensions);
            by_text.push(own.to_vec());
            rest = others;
        }
        Ok(by_text)
    }
}

fn token(tokenizer: &Tokenizer, name: &str, folder: &Path) -> Result<u32, OperatorError> {
    match tokenizer.token_to_id(name) {
        Some(id) => Ok(id),
        None => Err(broken(folder, "tokenizer.json", format!("the vocabulary has no token `{name}`"))),
    }
}

/// Returns the first token of a text, as ColBERT builds its list of punctuation.
fn first_token(tokenizer: &Tokenizer, text: &str) -> Option<u32> {
    let unknown = tokenizer.token_to_id("[UNK]");
    let first = tokenizer.encode_fast(text, false).ok()?.get_ids().first().copied();
    first.filter(|id| Some(*id) != unknown)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use candle_core::DType;
    use searchmill_fixtures::models::{folder, tiny_bert};
    use serde_json::{Value, json};

    use super::*;
    use crate::bert_tensors::BertTensors;

    fn open(folder: &Path, options: Value) -> ColbertEncoder {
        opened(folder, options).unwrap()
    }

    fn opened(folder: &Path, options: Value) -> Result<ColbertEncoder, OperatorError> {
        let mut params = options;
        params["model"] = "x".into();
        ColbertEncoder::open(folder, &serde_json::from_value(params).unwrap(), &Compute::cpu())
    }

    /// A copy of the checkpoint in ColBERT's layout, with other settings.
    fn with_metadata(change: impl FnOnce(&mut Value)) -> (tempfile::TempDir, PathBuf) {
        let made = tempfile::tempdir().unwrap();
        for file in ["config.json", "tokenizer.json", "model.safetensors", "artifact.metadata"] {
            std::fs::copy(folder("colbert").join(file), made.path().join(file)).unwrap();
        }
        let path = made.path().join("artifact.metadata");
        let mut metadata = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut metadata);
        std::fs::write(path, metadata.to_string()).unwrap();
        let path = made.path().to_owned();
        (made, path)
    }

    /// Returns the largest difference from what the original libraries computed (`scripts/reference_colbert.py`).
    fn apart(encoder: &ColbertEncoder, family: &str) -> f32 {
        let reference = std::fs::read(folder(family).join("reference.json")).unwrap();
        let reference: Value = serde_json::from_slice(&reference).unwrap();
        let mut apart = 0.0f32;
        for (name, role) in [("queries", Role::Query), ("documents", Role::Passage)] {
            let cases: Vec<(String, Vec<Vec<f32>>)> = serde_json::from_value(reference[name].clone()).unwrap();
            let texts: Vec<&str> = cases.iter().map(|(text, _)| text.as_str()).collect();
            for (vectors, (text, expected)) in encoder.encode(&texts, role).unwrap().iter().zip(&cases) {
                let expected = expected.concat();
                assert_eq!(vectors.len(), expected.len(), "{text}");
                apart = vectors.iter().zip(&expected).fold(apart, |apart, (a, b)| apart.max((a - b).abs()));
            }
        }
        apart
    }

    #[test]
    fn vectors_equal_those_of_colbert_and_of_pylate() {
        for family in ["colbert", "colbert_pylate"] {
            let apart = apart(&open(&folder(family), json!({})), family);
            assert!(apart < 5e-6, "{family}: {apart}");
        }
    }

    /// The code that runs on a GPU gives the same vectors; masks are attended to by none there too.
    #[test]
    fn tensors_give_the_same_vectors() {
        for (dtype, most) in [(DType::F32, 5e-6), (DType::BF16, 0.05)] {
            let mut encoder = open(&folder("colbert"), json!({}));
            let Engine::Loops(network) = &encoder.network else { panic!("f32 on the CPU uses the loops") };
            let compute = Compute { dtype, ..Compute::cpu() };
            encoder.network = Engine::Tensors(BertTensors::new(network, &compute).unwrap());
            let apart = apart(&encoder, "colbert");
            assert!(apart < most, "{dtype:?}: {apart}");
        }
    }

    #[test]
    fn queries_are_the_same_in_any_company_and_filled_up_to_their_length() {
        let encoder = open(&folder("colbert"), json!({"query_maxlen": 9}));
        let texts = ["who was born in paris?", "the sea", "the river flows into the sea and the sea"];
        let together = encoder.encode(&texts, Role::Query).unwrap();
        for (text, vectors) in texts.iter().zip(&together) {
            assert_eq!(vectors.len(), 9 * encoder.dimensions());
            assert_eq!(encoder.encode(&[text], Role::Query).unwrap()[0], *vectors);
        }
        let short = open(&folder("colbert"), json!({"doc_maxlen": 5}));
        let cut = short.encode(&["the river flows into the sea", "the river of france"], Role::Passage).unwrap();
        assert!(cut.iter().all(|vectors| vectors.len() == 5 * 24));
        assert!(cut[0].iter().zip(&cut[1]).all(|(a, b)| (a - b).abs() < 1e-6), "[CLS] [D] the river [SEP]");
    }

    #[test]
    fn texts_without_tokens_have_no_vectors() {
        let encoder = open(&folder("colbert"), json!({}));
        let texts = ["", " \n", "?!", "sea", "..."];
        let counts = |role| -> Vec<usize> {
            encoder.encode(&texts, role).unwrap().iter().map(|vectors| vectors.len() / 24).collect()
        };
        assert_eq!(counts(Role::Passage), [0, 0, 0, 4, 0], "punctuation has no vectors of its own");
        assert_eq!(counts(Role::Query), [0, 0, 12, 12, 12], "queries keep their punctuation");
        assert!(encoder.encode(&[], Role::Passage).unwrap().is_empty());
    }

    #[test]
    fn settings_of_the_checkpoint_count() {
        let texts = ["the sea: paris"];
        let (_kept, plain) = with_metadata(|_| ());
        let (_kept, whole) = with_metadata(|metadata| metadata["mask_punctuation"] = false.into());
        let count = |folder: &Path| open(folder, json!({})).encode(&texts, Role::Passage).unwrap()[0].len() / 24;
        assert_eq!((count(&plain), count(&whole)), (6, 7));
        let (_kept, attending) = with_metadata(|metadata| metadata["attend_to_mask_tokens"] = true.into());
        let query = |folder: &Path| open(folder, json!({})).encode(&texts, Role::Query).unwrap();
        assert_ne!(query(&plain), query(&attending));
        assert_eq!(query(&plain)[0].len(), query(&attending)[0].len());
    }

    #[test]
    fn checkpoints_that_do_not_fit_are_errors_that_name_the_file() {
        let message = |folder: &Path| opened(folder, json!({})).err().unwrap().message;
        let bert = tempfile::tempdir().unwrap();
        tiny_bert(bert.path());
        let found = message(bert.path());
        assert!(found.contains("model.safetensors") && found.contains("missing tensor `linear.weight`"), "{found}");
        let (_kept, euclidean) = with_metadata(|metadata| metadata["similarity"] = "l2".into());
        assert!(message(&euclidean).contains("artifact.metadata: `similarity` is `l2`"));
        let (_kept, unmarked) = with_metadata(|metadata| metadata["query_token_id"] = "[Q]".into());
        assert!(message(&unmarked).contains("tokenizer.json: the vocabulary has no token `[Q]`"));
        let (_kept, broken) = with_metadata(|metadata| metadata["query_maxlen"] = "long".into());
        assert!(message(&broken).contains("artifact.metadata"));
        let (_kept, stacked) = with_metadata(|_| ());
        std::fs::create_dir(stacked.join("1_Dense")).unwrap();
        let tanh = json!({"activation_function": "torch.nn.modules.activation.Tanh"});
        std::fs::write(stacked.join("1_Dense/config.json"), tanh.to_string()).unwrap();
        assert!(message(&stacked).contains("only a plain linear layer"));
    }
}
