//! Reads and writes `index.json`, which describes an index folder completely.

use std::path::Path;

use schemars::JsonSchema;
use searchmill_engine::operator::{Computed, Context, OperatorError, ParamIssue, Repeatability, RowsInput, Source};
use searchmill_models::EncoderParams;
use searchmill_text::analysis;
use serde::{Deserialize, Serialize};

use super::bm25::{self, Bm25Index, Bm25Params};
use super::chunk_store::{ChunkWriter, no_index};
use super::dense::{self, DenseIndex, DenseParams};
use super::late::{self, LateIndex, LateParams};
use super::{LATE, Retriever, is_zero};

const FILE: &str = "index.json";
/// Version of the folder's layout; increased with each change.
const FORMAT: u32 = 1;

/// The kind of an index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum IndexKind {
    /// Lexical: BM25 over an inverted index (Tantivy).
    Bm25(Bm25Params),
    /// Dense: vectors of an encoder in a nearest-neighbour index (Faiss).
    Dense(DenseParams),
    /// Late interaction: a ColBERT's vectors of all tokens, compared exactly (MaxSim). On its own it compares a query
    /// with every chunk; with `candidates` it ranks what other indexes find.
    Late(LateParams),
}

impl IndexKind {
    /// Validates the params; `path` is their position below `with:`.
    pub fn check(&self, path: &str) -> Vec<ParamIssue> {
        match self {
            Self::Bm25(params) => params.check(&format!("{path}.bm25")),
            Self::Dense(params) => params.check(&format!("{path}.dense")),
            Self::Late(params) => params.check(&format!("{path}.late")),
        }
    }

    /// Returns where the index can be rebuilt and searched with equal bytes.
    pub fn repeatability(&self) -> Repeatability {
        match self {
            Self::Bm25(_) => Repeatability::Everywhere,
            Self::Dense(params) => params.repeatability(),
            // Sums of an encoder and of its clusters depend on the processor.
            Self::Late(_) => Repeatability::Processor,
        }
    }

    /// Whether it consists of words, as [`searchmill_text::analysis`] finds them in texts.
    pub fn has_words(&self) -> bool {
        match self {
            Self::Bm25(_) => true,
            Self::Dense(params) => matches!(params.encoder, EncoderParams::Hashing(_)),
            Self::Late(_) => false,
        }
    }

    /// Returns the external files that it reads.
    pub fn sources(&self, directory: &Path) -> Vec<Source> {
        match self {
            Self::Bm25(_) => Vec::new(),
            Self::Dense(params) => params.encoder.sources(directory),
            Self::Late(params) => params.encoder.sources(directory),
        }
    }

    /// Resolves its sources if they are unknown.
    ///
    /// # Errors
    /// Fails if the Hub cannot be reached.
    pub fn fetch(&self, context: &Context) -> Result<(), OperatorError> {
        match self {
            Self::Bm25(_) => Ok(()),
            Self::Dense(params) => params.encoder.fetch(context),
            Self::Late(params) => params.encoder.fetch(context),
        }
    }

    /// Whether a model computes its vectors.
    pub fn has_model(&self) -> bool {
        match self {
            Self::Bm25(_) => false,
            Self::Dense(params) => matches!(params.encoder, EncoderParams::Bert(_)),
            Self::Late(_) => true,
        }
    }

    /// Version of the rules by which texts become words; 0 for kinds with a tokenizer of their own.
    fn analysis(&self) -> usize {
        if self.has_words() { analysis::VERSION } else { 0 }
    }

    /// Returns the kind's name, as in [`searchmill_schemas::HitSource::index`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bm25(_) => "bm25",
            Self::Dense(_) => "dense",
            Self::Late(_) => LATE,
        }
    }
}

/// The content of `index.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Descriptor {
    pub format: u32,
    pub kind: IndexKind,
    pub rows: u64,
    /// Content digest of the chunks, empty if unknown. Indexes with the same digest share their chunks.
    pub chunks: String,
    /// Version of the rules by which its texts became words; 0 if it has none, or is older than this number.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub analysis: usize,
}

impl Descriptor {
    pub(crate) fn read(folder: &Path) -> Result<Self, OperatorError> {
        let path = folder.join(FILE);
        let text = std::fs::read(&path).map_err(|error| no_index(&path, &error))?;
        let found: Self = serde_json::from_slice(&text)
            .map_err(|error| OperatorError::data(format!("{} cannot be read: {error}", path.display())))?;
        if found.format != FORMAT {
            let message = format!("the index has format {}, this searchmill version reads {FORMAT}", found.format);
            return Err(OperatorError::data(message).with_help("rerun the `index` node"));
        }
        // Terms of a query that other rules made find other passages, or none.
        if found.analysis != found.kind.analysis() {
            let message = format!(
                "the index was built by version {} of the rules for words, this searchmill version searches by version {}",
                found.analysis.max(1),
                found.kind.analysis()
            );
            return Err(OperatorError::data(message).with_help("rerun the `index` node"));
        }
        Ok(found)
    }

    pub(crate) fn open(&self, folder: &Path, context: &Context) -> Result<Box<dyn Retriever>, OperatorError> {
        context.computed_on(Computed::declared(self.kind.repeatability()));
        Ok(match &self.kind {
            IndexKind::Bm25(params) => Box::new(Bm25Index::open(params, folder)?),
            IndexKind::Dense(params) => Box::new(DenseIndex::open(params, folder, context)?),
            IndexKind::Late(params) => Box::new(LateIndex::open(params, folder, context)?),
        })
    }
}

/// Builds an index of the chunks in `folder`.
pub fn build(kind: &IndexKind, rows: &RowsInput, folder: &Path, context: &Context) -> Result<(), OperatorError> {
    let mut chunks = ChunkWriter::create(folder)?;
    match kind {
        IndexKind::Bm25(params) => bm25::build(params, rows, folder, &mut chunks, context)?,
        IndexKind::Dense(params) => dense::build(params, rows, folder, &mut chunks, context)?,
        IndexKind::Late(params) => late::build(params, rows, folder, &mut chunks, context)?,
    }
    // Before the descriptor: errors of buffered writes appear here.
    chunks.finish()?;
    let (kind, analysis) = (kind.clone(), kind.analysis());
    let descriptor = Descriptor { format: FORMAT, kind, rows: rows.rows, chunks: rows.digest.clone(), analysis };
    let text = serde_json::to_vec_pretty(&descriptor).map_err(|error| OperatorError::engine(error.to_string()))?;
    // Written last: a folder without it is no index.
    Ok(fs_err::write(folder.join(FILE), text)?)
}
