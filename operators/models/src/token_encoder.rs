//! The param that chooses an encoder of tokens, and the files of its model.

use std::path::Path;

use schemars::JsonSchema;
use searchmill_engine::operator::{Context, OperatorError, ParamIssue, Source};
use serde::{Deserialize, Serialize};

use super::colbert::{ColbertEncoder, ColbertParams};
use super::device::Compute;
use super::location::{ModelPlace, Needs};
use super::{bert_engine, colbert_checkpoint};

/// A checkpoint consists of a BERT model's files and those of its layout; others in its folder are ignored.
const COLBERT: Needs = Needs { files: bert_engine::FILES, whole_folder: false, beside: colbert_checkpoint::BESIDE };

/// The encoder that turns text into one vector per token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum TokenEncoderParams {
    /// A ColBERT checkpoint from a local folder or the Hugging Face hub.
    Colbert(ColbertParams),
}

impl TokenEncoderParams {
    /// Opens the encoder from the folder to which [`Self::keep`] copied its files.
    ///
    /// # Errors
    /// When a file is missing or does not belong to such a model.
    pub fn open(&self, stored: &Path, context: &Context) -> Result<ColbertEncoder, OperatorError> {
        let Self::Colbert(params) = self;
        ColbertEncoder::open(stored, params, &Compute::leased(context, params.dtype)?)
    }

    /// Copies the encoder's files into `folder`, so that an index is self-contained.
    ///
    /// # Errors
    /// When the model cannot be found, downloaded or copied.
    pub fn keep(&self, folder: &Path, context: &Context) -> Result<(), OperatorError> {
        self.place(&context.resolve("")).keep(COLBERT, folder, context)
    }

    /// Returns the issues of the params; `path` is their path below `with:`.
    pub fn check(&self, path: &str) -> Vec<ParamIssue> {
        let Self::Colbert(params) = self;
        params.check(&format!("{path}.colbert"))
    }

    /// Returns the files outside the pipeline that the encoder reads; relative paths start at `directory`.
    pub fn sources(&self, directory: &Path) -> Vec<Source> {
        self.place(directory).sources(COLBERT)
    }

    /// Resolves the revision of a repository to a commit.
    ///
    /// # Errors
    /// When the Hub cannot be reached.
    pub fn fetch(&self, context: &Context) -> Result<(), OperatorError> {
        self.place(&context.resolve("")).fetch(context)
    }

    fn place(&self, directory: &Path) -> ModelPlace {
        let Self::Colbert(params) = self;
        ModelPlace::without_gguf(&params.model, &params.revision, directory)
    }
}
