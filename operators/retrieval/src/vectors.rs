//! The vectors of dense indexes compared with each other: which texts are similar.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rayon::prelude::*;
use searchmill_engine::operator::{Context, OperatorError, TreeInput};

use super::chunk_store::ChunkStore;
use super::descriptor::{Descriptor, IndexKind};
use super::flat::{Lengths, Vectors};

/// Vectors compared together.
const BLOCK: usize = 256;
/// Products of 32-bit floats differ from those of 64 bits by less than this, for vectors of length 1.
const ROUNDING: f32 = 1e-4;
/// Equal vectors have a similarity of 1 in spite of rounding.
const EPSILON: f64 = 1e-9;

/// Two rows of indexes whose vectors are similar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Row of the index that is compared.
    pub row: u32,
    /// Row of the other index.
    pub other: u32,
    /// Cosine of the two vectors.
    pub similarity: f64,
}

/// The vectors of a dense index, of length 1, with the ids of their chunks. A text without features has a vector of zeros,
/// which is similar to no other.
pub struct IndexVectors {
    vectors: Vec<f32>,
    dimensions: usize,
    lengths: Lengths,
    encoder: searchmill_models::EncoderParams,
    chunks: HashMap<String, u32>,
    /// Documents by id; `None`: it has several chunks.
    documents: HashMap<String, Option<u32>>,
}

impl IndexVectors {
    /// Reads the vectors of an index built by `index`.
    ///
    /// # Errors
    /// Fails if the folder is no dense index, or one that does not keep vectors as they are.
    pub fn open(tree: &TreeInput) -> Result<Self, OperatorError> {
        let descriptor = Descriptor::read(&tree.path)?;
        let IndexKind::Dense(params) = &descriptor.kind else {
            let message = format!("an index of the kind `{}` has no vectors of texts", descriptor.kind.name());
            return Err(OperatorError::pipeline(message).with_help("name an index with `kind: {dense: …}`"));
        };
        let (mut vectors, dimensions) = super::dense::stored(params, &tree.path)?;
        let store = ChunkStore::open(&tree.path)?;
        let (mut chunks, mut documents) = (HashMap::new(), HashMap::new());
        for row in 0..store.rows() {
            let chunk = store.chunk(row)?;
            chunks.insert(chunk.chunk_id, row);
            // A second chunk makes the document ambiguous for good.
            match documents.entry(chunk.document_id) {
                Entry::Vacant(entry) => drop(entry.insert(Some(row))),
                Entry::Occupied(mut entry) => drop(entry.insert(None)),
            }
        }
        // Of length 1: the inner product of two vectors is then their cosine.
        for vector in vectors.chunks_mut(dimensions) {
            let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
            if length > 0.0 {
                for x in vector.iter_mut() {
                    *x /= length;
                }
            }
        }
        let lengths = Lengths::of(&vectors, dimensions);
        Ok(Self { vectors, dimensions, lengths, encoder: params.encoder.clone(), chunks, documents })
    }

    /// Returns the row of a chunk, or of a document with a single chunk.
    ///
    /// # Errors
    /// Fails if the index does not hold it.
    pub fn row(&self, id: &str) -> Result<u32, OperatorError> {
        if let Some(row) = self.chunks.get(id) {
            return Ok(*row);
        }
        let (message, help) = match self.documents.get(id) {
            Some(Some(row)) => return Ok(*row),
            None => (format!("the row `{id}` is not in the index"), "build the index from these rows"),
            Some(None) => (
                format!("the document `{id}` has several chunks in the index"),
                "compare its chunks, or make one chunk of each document (`size`)",
            ),
        };
        Err(OperatorError::pipeline(message).with_help(help))
    }

    /// Returns the cosine of the vectors of two rows.
    pub fn similarity(&self, row: u32, other: u32) -> f64 {
        cosine(self.vector(row), self.vector(other))
    }

    /// Calls `each` with the rows of `other` whose vectors have at least this cosine with those of this index, in the
    /// order of both.
    ///
    /// # Errors
    /// Fails if the vectors are of different encoders, or the node is cancelled.
    pub fn similar(
        &self,
        other: &Self,
        threshold: f64,
        context: &Context,
        mut each: impl FnMut(Pair),
    ) -> Result<(), OperatorError> {
        if self.encoder != other.encoder || self.dimensions != other.dimensions {
            let message = "the indexes have different encoders: their vectors cannot be compared";
            return Err(OperatorError::pipeline(message).with_help("build all of them with the same `kind`"));
        }
        let (rows, dimensions, lengths) = (other.vectors.as_slice(), other.dimensions, &other.lengths);
        let all = Vectors { rows, dimensions, lengths, euclidean: false };
        for (block, vectors) in self.vectors.chunks(BLOCK * dimensions).enumerate() {
            context.check_cancelled()?;
            // The fast products find a few too many; the exact ones decide.
            let candidates = all.all_at_least(vectors, threshold as f32 - ROUNDING);
            let tasks = candidates.into_par_iter().zip(vectors.par_chunks(dimensions)).enumerate();
            let pairs = tasks.map(|(position, (candidates, vector))| {
                let row = (block * BLOCK + position) as u32;
                let mut pairs = Vec::new();
                for candidate in candidates {
                    let similarity = cosine(vector, other.vector(candidate));
                    if similarity >= threshold - EPSILON {
                        pairs.push(Pair { row, other: candidate, similarity });
                    }
                }
                pairs
            });
            pairs.collect::<Vec<_>>().into_iter().flatten().for_each(&mut each);
        }
        Ok(())
    }

    fn vector(&self, row: u32) -> &[f32] {
        &self.vectors[row as usize * self.dimensions..][..self.dimensions]
    }
}

/// Sums in a fixed order: the same on every machine.
fn cosine(left: &[f32], right: &[f32]) -> f64 {
    let (mut product, mut lengths) = (0.0, (0.0, 0.0));
    for (left, right) in left.iter().zip(right) {
        let (left, right) = (f64::from(*left), f64::from(*right));
        product += left * right;
        lengths = (lengths.0 + left * left, lengths.1 + right * right);
    }
    let length = (lengths.0 * lengths.1).sqrt();
    if length > 0.0 { (product / length).clamp(-1.0, 1.0) } else { 0.0 }
}
