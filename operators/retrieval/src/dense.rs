//! Dense retrieval: an encoder's vectors in a Faiss index.

use std::path::Path;

use schemars::JsonSchema;
use searchmill_engine::operator::{Context, OperatorError, ParamIssue, Repeatability, RowsInput};
use searchmill_engine::operator::{allow_names, named_or_tagged};
use searchmill_models::{Encoder, EncoderParams};
use serde::{Deserialize, Serialize};

use super::chunk_store::ChunkWriter;
use super::faiss_index::{FaissIndex, Metric, check_factory};
use super::passages::{encode_all, read};
use super::query_cache::QueryCache;
use super::{Lists, Retriever, Row};

const VECTORS: &str = "vectors.faiss";
const ENCODER: &str = "encoder";

/// Options of a dense index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct DenseParams {
    /// The encoder of texts: `hashing` (no weights) or `bert: {model: …}`.
    #[serde(deserialize_with = "named_or_tagged")]
    #[schemars(transform = allow_names)]
    pub encoder: EncoderParams,
    /// The index, as a Faiss factory string: `Flat` (exact), `HNSW32`, `IVF1024,Flat`, `IVF1024,PQ48`, `SQ8`, …. `PQ48`
    /// means `PQ48np`: without `np`, Faiss trains for minutes for an optimisation that is not used here.
    #[schemars(extend("x-searchmill-row-key" = false))]
    pub factory: String,
    /// The similarity measure.
    #[schemars(extend("x-searchmill-row-key" = false))]
    pub metric: Metric,
    /// Cells of an `IVF…` index searched per query. More cells are slower and find more.
    #[schemars(extend("x-searchmill-row-key" = false))]
    pub(crate) nprobe: u32,
    /// Candidates of an `HNSW…` index per search. More candidates are slower and find more.
    #[schemars(extend("x-searchmill-row-key" = false))]
    pub(crate) ef_search: u32,
}

impl Default for DenseParams {
    fn default() -> Self {
        let (encoder, metric) = (EncoderParams::default(), Metric::default());
        Self { encoder, factory: "Flat".to_owned(), metric, nprobe: 16, ef_search: 64 }
    }
}

impl DenseParams {
    /// Flat vectors of the hashing encoder are equal on every machine. Sums of an encoder, and what Faiss trains or
    /// links by distance, depend on the processor.
    pub fn repeatability(&self) -> Repeatability {
        match &self.encoder {
            EncoderParams::Hashing(_) if self.factory == "Flat" => Repeatability::Everywhere,
            _ => Repeatability::Processor,
        }
    }

    /// Validates the params; `path` is their position below `with:`.
    pub fn check(&self, path: &str) -> Vec<ParamIssue> {
        let mut issues = self.encoder.check(&format!("{path}.encoder"));
        for (name, value) in [("nprobe", self.nprobe), ("ef_search", self.ef_search)] {
            if value == 0 {
                issues.push(ParamIssue::new(format!("{path}.{name}"), format!("{name} must be at least 1")));
            }
        }
        if let (true, EncoderParams::Hashing(hashing)) = (issues.is_empty(), &self.encoder)
            && let Err(error) = check_factory(&self.factory, hashing.dimensions, self.metric)
        {
            let help =
                "see github.com/facebookresearch/faiss/wiki/The-index-factory; `PQn` needs dimensions that n divides";
            issues.push(ParamIssue::new(format!("{path}.factory"), error.message).with_help(help));
        }
        issues
    }
}

/// Encodes and indexes the chunks into `folder` and stores them in `chunks`.
pub(crate) fn build(
    params: &DenseParams,
    rows: &RowsInput,
    folder: &Path,
    chunks: &mut ChunkWriter,
    context: &Context,
) -> Result<(), OperatorError> {
    let encoder_folder = folder.join(ENCODER);
    // The index holds its encoder: it can be searched when the model's folder is gone.
    params.encoder.keep(&encoder_folder, context)?;
    let encoder = params.encoder.open(Some(&encoder_folder), context)?;
    let mut index = FaissIndex::create(&params.factory, encoder.dimensions(), params.metric)?;
    let mut untrained: Vec<f32> = Vec::new();
    encode_all(encoder.as_ref(), rows, chunks, context, |records| {
        let vectors = read(&records);
        if index.is_trained() {
            return index.add(&vectors);
        }
        untrained.extend(vectors);
        Ok(())
    })?;
    // Some factories learn cells or codes from all vectors before the first one is added.
    if !untrained.is_empty() {
        index.train(&untrained)?;
        index.add(&untrained)?;
    }
    index.write(&folder.join(VECTORS))
}

/// Returns the vectors of an index written by [`build`], concatenated, and their length.
pub(crate) fn stored(params: &DenseParams, folder: &Path) -> Result<(Vec<f32>, usize), OperatorError> {
    let index = FaissIndex::read(&folder.join(VECTORS), &params.factory, params.nprobe, params.ef_search)?;
    let vectors = index.vectors().ok_or_else(|| {
        let message = format!("an index with `factory: {}` does not keep its vectors as they are", params.factory);
        OperatorError::pipeline(message).with_help("name one with `factory: Flat`")
    })?;
    Ok((vectors.to_vec(), index.dimensions()))
}

/// An opened dense index.
pub(crate) struct DenseIndex {
    encoder: Box<dyn Encoder>,
    index: FaissIndex,
    metric: Metric,
    queries: QueryCache,
}

impl DenseIndex {
    /// Opens an index written by [`build`].
    pub(crate) fn open(params: &DenseParams, folder: &Path, context: &Context) -> Result<Self, OperatorError> {
        let encoder = params.encoder.open(Some(&folder.join(ENCODER)), context)?;
        let index = FaissIndex::read(&folder.join(VECTORS), &params.factory, params.nprobe, params.ef_search)?;
        if index.dimensions() != encoder.dimensions() {
            let message =
                format!("the index has {} dimensions, the encoder has {}", index.dimensions(), encoder.dimensions());
            return Err(OperatorError::data(message).with_help("rerun the `index` node"));
        }
        Ok(Self { encoder, index, metric: params.metric, queries: QueryCache::default() })
    }
}

impl Retriever for DenseIndex {
    fn search_batch(&self, queries: &[&str], pool: usize) -> Result<Lists, OperatorError> {
        let dimensions = self.encoder.dimensions();
        let vectors = self.queries.encode(self.encoder.as_ref(), queries)?;
        let mut asked: Vec<usize> = Vec::new();
        let mut wanted = Vec::with_capacity(vectors.len());
        for (query, vector) in vectors.chunks(dimensions).enumerate() {
            // The vector of a query without words is zero: it finds nothing.
            if vector.iter().any(|x| *x != 0.0) {
                asked.push(query);
                wanted.extend_from_slice(vector);
            }
        }
        let found = self.index.search(&wanted, pool, self.metric)?;
        // Faiss returns distances for L2; higher scores are nearer.
        let sign = if self.metric == Metric::L2 { -1.0 } else { 1.0 };
        let mut lists = vec![Vec::new(); queries.len()];
        for (query, neighbours) in asked.into_iter().zip(&found) {
            for (row, score) in neighbours {
                lists[query].push(Row { row: *row, score: sign * f64::from(*score) });
            }
        }
        Ok(lists)
    }
}
