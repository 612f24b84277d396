//! Models: encoders, decoders, generation, scoring, training.
//!
//! `place` is the one type for the location of a model: a folder, a `.gguf` file, or a repository of the Hub. A model's
//! identity and its files come from it alone. An existing folder counts before a repository of the same name. A
//! repository is identified by a commit; until a run has resolved it, the node waits.
//!
//! `device` is the only module that turns a node's lease into a device. `dtype` is a param and part of the key; the
//! device is a resource and not part of it.
//!
//! In f32 on the CPU, the loops of `searchmill-kernels` compute. Everything else is composed of tensor operations,
//! which the CPU also runs, so tests cover them. On a GPU, the last bits of a row's logits depend on the other rows of
//! the batch. No run on a GPU is on record yet.
//!
//! - `decoder`: the network on tensors, for training and scoring.
//! - `inference`: text generation with the same weights.
//! - `training`: examples, objectives, the loop over steps.
//! - `gguf`: llama.cpp's files, dequantised into the same network. The row order of queries and keys is restored, and
//!   Llama 3's frequency factors become the scaling that they came from.
//! - `encoder`, `bert`, `hashing`: text to vectors. `bert_engine` is a BERT on any device.
//! - `token_encoder`, `colbert`, `colbert_checkpoint`: text to one vector per token.
//!
//! `scripts/reference_models.py` creates the tiny models of `tests/models` and what transformers computes with them.

mod bert;
mod bert_engine;
mod bert_network;
mod bert_tensors;
mod colbert;
mod colbert_checkpoint;
pub mod decoder;
pub mod device;
mod encoder;
mod files;
pub mod gguf;
pub mod groups;
mod hashing;
pub mod inference;
pub mod initial;
mod pooling;
pub mod template;
pub mod throughput;
mod token_encoder;
pub mod training;
pub mod location;

use std::path::Path;

use schemars::JsonSchema;
use searchmill_engine::operator::{Context, OperatorError, ParamIssue, Source};
use serde::{Deserialize, Serialize};

pub use bert::{BertEncoder, BertParams};
pub use colbert::{ColbertEncoder, ColbertParams};
pub use encoder::{Encoder, Role};
pub use files::{on_path, paths_in};
pub use hashing::{HashingEncoder, HashingParams};
pub use pooling::Pooling;
pub use token_encoder::TokenEncoderParams;

use device::Compute;
use location::{ModelPlace, Needs};

/// A BERT model consists of three files; others in its folder are ignored.
const BERT: Needs = Needs { files: bert_engine::FILES, whole_folder: false, beside: &[] };

/// The encoder that turns text into vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum EncoderParams {
    /// Feature hashing of words and character n-grams: no weights, no download, the same result on every machine. It finds
    /// texts that share words or parts of words with the query, not synonyms.
    Hashing(HashingParams),
    /// A BERT model (MiniLM, E5, BGE, …) from a local folder or the Hugging Face hub.
    Bert(BertParams),
}

impl Default for EncoderParams {
    fn default() -> Self {
        Self::Hashing(HashingParams::default())
    }
}

impl EncoderParams {
    /// Opens the encoder. `stored` is the folder to which [`Self::keep`] copied its files, if any.
    ///
    /// # Errors
    /// When the model cannot be found, downloaded or read.
    pub fn open(&self, stored: Option<&Path>, context: &Context) -> Result<Box<dyn Encoder>, OperatorError> {
        Ok(match self {
            Self::Hashing(params) => Box::new(HashingEncoder::new(params)),
            Self::Bert(params) => {
                // An index holds its encoder, so that it needs neither the folder nor the Hub that it came from.
                let folder = match stored {
                    Some(folder) => folder.to_owned(),
                    None => bert_place(params, &context.resolve("")).open(BERT, context)?.path,
                };
                Box::new(BertEncoder::open(&folder, params, &Compute::leased(context, params.dtype)?)?)
            }
        })
    }

    /// Copies the encoder's files into `folder`, so that an index is self-contained.
    ///
    /// # Errors
    /// When the model cannot be found, downloaded or copied.
    pub fn keep(&self, folder: &Path, context: &Context) -> Result<(), OperatorError> {
        // Hashing has no files.
        let Some(place) = self.place(&context.resolve("")) else { return Ok(()) };
        place.keep(BERT, folder, context)
    }

    /// Returns the issues of the params; `path` is their path below `with:`.
    pub fn check(&self, path: &str) -> Vec<ParamIssue> {
        match self {
            Self::Hashing(params) => params.check(&format!("{path}.hashing")),
            Self::Bert(params) => params.check(&format!("{path}.bert")),
        }
    }

    /// Returns the files outside the pipeline that the encoder reads; relative paths start at `directory`.
    pub fn sources(&self, directory: &Path) -> Vec<Source> {
        match self.place(directory) {
            Some(place) => place.sources(BERT),
            None => Vec::new(),
        }
    }

    /// Resolves the revision of a repository to a commit.
    ///
    /// # Errors
    /// When the Hub cannot be reached.
    pub fn fetch(&self, context: &Context) -> Result<(), OperatorError> {
        self.place(&context.resolve("")).map_or(Ok(()), |place| place.fetch(context))
    }

    /// Returns the location of the model, if there is one.
    fn place(&self, directory: &Path) -> Option<ModelPlace> {
        match self {
            Self::Hashing(_) => None,
            Self::Bert(params) => Some(bert_place(params, directory)),
        }
    }
}

fn bert_place(params: &BertParams, directory: &Path) -> ModelPlace {
    ModelPlace::without_gguf(&params.model, &params.revision, directory)
}
