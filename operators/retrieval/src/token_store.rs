//! The token vectors of an index by row, read by position.
//!
//! `late/tokens.bin` has one record of fixed length per token: 2 bytes per dimension (16-bit floats), or a code of the
//! residual compression ([`Codec`]). `late/tokens.offsets` has the number of the first token of each row and finally the
//! number of all tokens, as little-endian `u64`s. `late/codec.json` has the dimensions and the buckets,
//! `late/centroids.f32` the centroids. In memory are 8 bytes per row and the centroids.

use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use fs_err::File;
use fs_err::os::unix::fs::FileExt;
use schemars::JsonSchema;
use searchmill_engine::operator::{Context, OperatorError, spread};
use searchmill_kernels::clusters::spherical;
use searchmill_kernels::halves::{narrow, widen};
use searchmill_kernels::residual::Codec;
use serde::{Deserialize, Serialize};

use super::chunk_store::{no_index, open_file};
use super::passages::read as read_numbers;

const FOLDER: &str = "late";
const TOKENS: &str = "tokens.bin";
const OFFSETS: &str = "tokens.offsets";
const CODEC: &str = "codec.json";
const CENTROIDS: &str = "centroids.f32";
/// The vectors in 16-bit floats, until they are compressed.
const WHOLE: &str = "tokens.whole";
/// Tokens compressed at a time.
const PART: u64 = 1 << 16;
/// Vectors per centroid that the centroids are learned from, at most. Faiss warns below 39.
const SAMPLED: u64 = 40;
/// Rounds of k-means, as in ColBERTv2's code (`kmeans_niters`).
const ROUNDS: usize = 4;
/// One vector in so many is held back from the clusters, to learn the buckets from (5 %), at most [`MOST_HELD`].
const HELD: usize = 20;
const MOST_HELD: usize = 50_000;

/// How token vectors are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Storage {
    /// 16-bit floats: 2 bytes per dimension, 256 bytes per token of ColBERTv2.
    #[default]
    Fp16,
    /// ColBERTv2's compression: the nearest of many centroids and a few bits per dimension for the rest. 36 bytes per
    /// token of ColBERTv2 with 2 bits, 20 with 1, 68 with 4. Building needs as much disk as `fp16` meanwhile.
    Residual {
        /// Bits per dimension: 1, 2 or 4.
        #[serde(default = "two")]
        bits: u32,
    },
}

fn two() -> u32 {
    2
}

/// Content of `codec.json`.
#[derive(Serialize, Deserialize)]
struct Described {
    dimensions: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    limits: Vec<f32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    values: Vec<f32>,
}

fn damaged() -> OperatorError {
    OperatorError::data("the token vectors of this index are damaged").with_help("rerun the `index` node with --force")
}

/// Writes token vectors in row order.
pub(super) struct TokenWriter {
    folder: PathBuf,
    dimensions: usize,
    tokens: BufWriter<File>,
    offsets: BufWriter<File>,
    end: u64,
}

impl TokenWriter {
    pub(super) fn create(folder: &Path, dimensions: usize) -> Result<Self, OperatorError> {
        let folder = folder.join(FOLDER);
        fs_err::create_dir_all(&folder)?;
        let mut offsets = BufWriter::new(File::create(folder.join(OFFSETS))?);
        offsets.write_all(&0u64.to_le_bytes())?;
        let tokens = BufWriter::with_capacity(1 << 20, File::create(folder.join(WHOLE))?);
        Ok(Self { folder, dimensions, tokens, offsets, end: 0 })
    }

    /// Appends a row: its vectors in 16-bit floats.
    pub(super) fn write(&mut self, vectors: &[u8]) -> Result<(), OperatorError> {
        self.end += (vectors.len() / (2 * self.dimensions)) as u64;
        self.tokens.write_all(vectors)?;
        Ok(self.offsets.write_all(&self.end.to_le_bytes())?)
    }

    /// Completes the files; compresses the vectors if that is their storage.
    pub(super) fn finish(mut self, storage: Storage, context: &Context) -> Result<u64, OperatorError> {
        // The files are read again below, and a dropped `BufWriter` hides errors.
        self.tokens.flush()?;
        self.offsets.flush()?;
        let (whole, compressed) = (self.folder.join(WHOLE), self.folder.join(TOKENS));
        let mut described = Described { dimensions: self.dimensions, limits: Vec::new(), values: Vec::new() };
        match storage {
            Storage::Fp16 => fs_err::rename(whole, compressed)?,
            Storage::Residual { bits } => {
                let codec = self.compress(&File::open(&whole)?, &compressed, bits, context)?;
                fs_err::remove_file(whole)?;
                let centroids: Vec<u8> = codec.centroids().iter().flat_map(|number| number.to_le_bytes()).collect();
                fs_err::write(self.folder.join(CENTROIDS), centroids)?;
                described.limits = codec.limits().to_vec();
                described.values = codec.values().to_vec();
            }
        }
        let text = serde_json::to_vec_pretty(&described).map_err(|error| OperatorError::engine(error.to_string()))?;
        fs_err::write(self.folder.join(CODEC), text)?;
        Ok(self.end)
    }

    /// Learns centroids and buckets, and writes the codes of all vectors.
    fn compress(&self, whole: &File, compressed: &Path, bits: u32, context: &Context) -> Result<Codec, OperatorError> {
        let tokens = self.end;
        // ColBERTv2's rule for the number of centroids (`collection_indexer.py`).
        let centroids = if tokens == 0 { 0 } else { 1u64 << (16.0 * (tokens as f64).sqrt()).log2().floor() as u32 };
        let share = (SAMPLED * centroids) as f64 / tokens.max(1) as f64;
        let (mut sample, mut held_out) = (Vec::new(), Vec::new());
        let (mut part, mut sampled) = (Scratch::default(), 0);
        for first in (0..tokens).step_by(PART as usize) {
            self.read_part(whole, first, &mut part, context)?;
            for (vector, token) in part.vectors.chunks_exact(self.dimensions).zip(first..) {
                // Chosen by the number of the token alone, so that equal vectors give equal files. SplitMix64 spreads
                // the numbers evenly over 0…1.
                let scattered = spread(token.wrapping_add(0x9e37_79b9_7f4a_7c15)) as f64 / 2f64.powi(64);
                if share < 1.0 && scattered >= share {
                    continue;
                }
                sampled += 1;
                let is_held_out = sampled % HELD == 0 && held_out.len() < MOST_HELD * self.dimensions;
                if is_held_out { &mut held_out } else { &mut sample }.extend_from_slice(vector);
            }
        }
        let count = (centroids as usize).min(sample.len() / self.dimensions);
        context.progress().log(&format!("learning {count} centroids of {tokens} token vectors"));
        let centroids = if count == 0 { Vec::new() } else { spherical(&sample, self.dimensions, count, ROUNDS) };
        // Vectors that the centroids were learned from lie nearer to them than others: buckets would be too narrow.
        let learned_from = if held_out.is_empty() { &sample } else { &held_out };
        let Some(codec) = Codec::learn(learned_from, centroids, self.dimensions, bits) else {
            return Err(OperatorError::engine("the parts of a codec do not fit together"));
        };
        let (mut out, mut codes) = (BufWriter::with_capacity(1 << 20, File::create(compressed)?), Vec::new());
        for first in (0..tokens).step_by(PART as usize) {
            self.read_part(whole, first, &mut part, context)?;
            codes.clear();
            codec.compress(&part.vectors, &mut codes);
            out.write_all(&codes)?;
            context.progress().set(first, tokens, "tokens compressed");
        }
        out.flush()?;
        Ok(codec)
    }

    /// Reads the vectors of [`PART`] tokens, or of those that are left.
    fn read_part(&self, whole: &File, first: u64, part: &mut Scratch, context: &Context) -> Result<(), OperatorError> {
        context.check_cancelled()?;
        let size = 2 * self.dimensions as u64;
        part.bytes.resize((PART.min(self.end - first) * size) as usize, 0);
        whole.read_exact_at(&mut part.bytes, first * size)?;
        widen(&part.bytes, &mut part.vectors);
        Ok(())
    }
}

/// Buffers of a thread, reused between rows.
#[derive(Default)]
pub(super) struct Scratch {
    bytes: Vec<u8>,
    vectors: Vec<f32>,
}

/// Reads token vectors by row, from any number of threads.
pub(super) struct TokenStore {
    tokens: File,
    offsets: Vec<u64>,
    dimensions: usize,
    codec: Option<Codec>,
}

impl TokenStore {
    pub(super) fn open(folder: &Path, storage: Storage) -> Result<Self, OperatorError> {
        let folder = folder.join(FOLDER);
        let Ok(described) = serde_json::from_slice::<Described>(&read_whole(&folder.join(CODEC))?) else {
            return Err(damaged());
        };
        let codec = match storage {
            Storage::Fp16 => None,
            Storage::Residual { .. } => {
                let centroids = read_numbers(&read_whole(&folder.join(CENTROIDS))?);
                let codec = Codec::new(described.dimensions, centroids, described.limits, described.values);
                Some(codec.ok_or_else(damaged)?)
            }
        };
        let tokens = open_file(&folder.join(TOKENS))?;
        let offsets = read_whole(&folder.join(OFFSETS))?;
        let offsets: Vec<u64> = offsets.as_chunks::<8>().0.iter().map(|offset| u64::from_le_bytes(*offset)).collect();
        let store = Self { tokens, offsets, dimensions: described.dimensions, codec };
        // Checked once here: reads slice by these offsets, and divide by the dimensions.
        let is_sorted = store.offsets.is_sorted() && store.dimensions > 0;
        let bytes = store.offsets.last().and_then(|all| all.checked_mul(store.record() as u64));
        if !is_sorted || bytes != Some(store.tokens.metadata()?.len()) {
            return Err(damaged());
        }
        Ok(store)
    }

    /// Returns the bytes of a token.
    fn record(&self) -> usize {
        self.codec.as_ref().map_or(2 * self.dimensions, Codec::code_bytes)
    }

    pub(super) fn dimensions(&self) -> usize {
        self.dimensions
    }

    pub(super) fn rows(&self) -> u32 {
        self.offsets.len().saturating_sub(1) as u32
    }

    /// Passes each row of a range with tokens, and its vectors, to `take`.
    pub(super) fn each(
        &self,
        rows: Range<u32>,
        scratch: &mut Scratch,
        mut take: impl FnMut(u32, &[f32]),
    ) -> Result<(), OperatorError> {
        let offsets = self.offsets.get(rows.start as usize..=rows.end as usize).ok_or_else(damaged)?;
        let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
        let record = self.record();
        scratch.bytes.resize((last - first) as usize * record, 0);
        self.tokens.read_exact_at(&mut scratch.bytes, first * record as u64)?;
        for (row, bounds) in rows.zip(offsets.windows(2)) {
            let start = (bounds[0] - first) as usize * record;
            let end = (bounds[1] - first) as usize * record;
            // A passage without tokens has no score: it is never found.
            if start == end {
                continue;
            }
            let bytes = &scratch.bytes[start..end];
            match &self.codec {
                None => widen(bytes, &mut scratch.vectors),
                Some(codec) => codec.restore(bytes, &mut scratch.vectors).ok_or_else(damaged)?,
            }
            take(row, &scratch.vectors);
        }
        Ok(())
    }
}

fn read_whole(path: &Path) -> Result<Vec<u8>, OperatorError> {
    std::fs::read(path).map_err(|error| no_index(path, &error))
}

/// Rounds a record's vectors to 16 bits, preceded by their number.
pub(super) fn push_record(vectors: &[f32], dimensions: usize, records: &mut Vec<u8>) {
    records.extend(((vectors.len() / dimensions) as u32).to_le_bytes());
    narrow(vectors, records);
}

/// Splits the first record off, as its vectors and the rest.
pub(super) fn split_record(records: &[u8], dimensions: usize) -> Option<(&[u8], &[u8])> {
    let (count, rest) = records.split_first_chunk::<4>()?;
    rest.split_at_checked((u32::from_le_bytes(*count) as usize).checked_mul(2 * dimensions)?)
}
