//! A safe interface to Faiss: factory strings, training, adding, files, and searches with repeatable results.
//!
//! Results do not depend on how queries are batched or on the number of threads. Faiss's own threads are disabled (one
//! OpenMP thread): they spin and change the order of additions. Rayon parallelises over queries, and over row ranges of
//! a flat index.
//!
//! This crate scans the vectors of a flat index and the cells of an `IVF…` index itself ([`super::flat`]). The last
//! bits of those products depend on the batch. Faiss therefore scores the candidates again one by one, and with them
//! every row that could be among the best.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::{Once, OnceLock};

use faiss::MetricType;
use faiss::index::io::{read_index, write_index};
use faiss::index::{Index, IndexImpl, index_factory};
use faiss_sys as sys;
use rayon::prelude::*;
use schemars::JsonSchema;
use searchmill_engine::operator::OperatorError;
use serde::{Deserialize, Serialize};

use super::flat::{Lengths, Vectors};

/// Extra candidates that are scored again.
const SPARE: usize = 16;
/// Two ways to compute a score differ by less than this, relative to the lengths of both vectors.
const ROUNDING: f32 = 1e-5;

/// The similarity measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Inner product. Equals cosine for vectors of length 1, the encoders' default.
    #[default]
    InnerProduct,
    /// Euclidean distance. Scores are the negated square, so higher is nearer.
    L2,
}

/// Rows and scores of one query, best first, ties by row.
pub type Neighbours = Vec<(u32, f32)>;

#[expect(unsafe_code, reason = "OpenMP and the dynamic linker have C interfaces only")]
unsafe extern "C" {
    fn omp_set_num_threads(threads: c_int);
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// Limits OpenMP to one thread (per calling thread) and, once, OpenBLAS (per process).
fn single_threaded() {
    static BLAS: Once = Once::new();
    #[expect(unsafe_code, reason = "OpenMP and OpenBLAS have C interfaces only")]
    // SAFETY: omp_set_num_threads accepts any positive number. dlsym with a null handle (RTLD_DEFAULT) looks up a
    // symbol in the loaded libraries; if found, it is OpenBLAS's `void openblas_set_num_threads(int)`.
    unsafe {
        omp_set_num_threads(1);
        BLAS.call_once(|| {
            let found = dlsym(ptr::null_mut(), c"openblas_set_num_threads".as_ptr());
            if !found.is_null() {
                std::mem::transmute::<*mut c_void, extern "C" fn(c_int)>(found)(1);
            }
        });
    }
}

fn failed(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::data(format!("faiss: {error}"))
}

/// Converts a status of Faiss's C interface to an error with Faiss's message.
fn checked(status: c_int) -> Result<(), OperatorError> {
    if status == 0 {
        return Ok(());
    }
    #[expect(unsafe_code, reason = "Faiss keeps its last error behind a C function")]
    // SAFETY: the pointer is null or a C string that lives until this thread's next failing call.
    let text = unsafe {
        let error = sys::faiss_get_last_error();
        if error.is_null() { "unknown error".into() } else { CStr::from_ptr(error).to_string_lossy().into_owned() }
    };
    Err(failed(text))
}

/// Disables polysemous training of product quantizers: `PQ48` becomes `PQ48np`, `IVF64,PQ48x4fs` stays.
fn without_polysemous_training(factory: &str) -> String {
    let mut parts = Vec::new();
    for part in factory.split(',') {
        let part = part.trim();
        let code = part.strip_prefix("PQ").unwrap_or_default();
        let is_plain = !code.is_empty() && code.chars().all(|c| c.is_ascii_digit() || c == 'x');
        parts.push(if is_plain { format!("{part}np") } else { part.to_owned() });
    }
    parts.join(",")
}

/// Checks that Faiss accepts a factory string for vectors of this length.
pub(crate) fn check_factory(factory: &str, dimensions: usize, metric: Metric) -> Result<(), OperatorError> {
    FaissIndex::create(factory, dimensions, metric).map(drop)
}

/// A Faiss index.
pub struct FaissIndex {
    inner: IndexImpl,
    kind: Kind,
    /// Lengths of the vectors of a flat index or quantizer, computed on first use.
    lengths: OnceLock<Lengths>,
}

// `IndexImpl` is Send and Sync. Faiss searches take a const index, and CPU indexes support concurrent searches.
// Everything that changes the index takes `&mut self`.
impl FaissIndex {
    /// Creates an empty index.
    ///
    /// # Errors
    /// With Faiss's message.
    pub fn create(factory: &str, dimensions: usize, metric: Metric) -> Result<Self, OperatorError> {
        single_threaded();
        let metric = match metric {
            Metric::InnerProduct => MetricType::InnerProduct,
            Metric::L2 => MetricType::L2,
        };
        let inner = index_factory(dimensions as u32, without_polysemous_training(factory), metric)
            .map_err(|error| OperatorError::pipeline(format!("index factory `{factory}`: {error}")))?;
        Ok(Self { kind: Kind::of(&inner, factory), inner, lengths: OnceLock::new() })
    }

    /// Reads an index from a file. `nprobe` applies to `IVF…` factories, `ef_search` to `HNSW…`.
    ///
    /// # Errors
    /// With Faiss's message.
    pub fn read(path: &Path, factory: &str, nprobe: u32, ef_search: u32) -> Result<Self, OperatorError> {
        single_threaded();
        let inner = read_index(path.to_string_lossy()).map_err(failed)?;
        let space = faiss::index::autotune::ParameterSpace::new().map_err(failed)?;
        if factory.contains("IVF") {
            space.set_index_parameter(&inner, "nprobe", f64::from(nprobe)).map_err(failed)?;
        } else if factory.starts_with("HNSW") {
            space.set_index_parameter(&inner, "efSearch", f64::from(ef_search)).map_err(failed)?;
        }
        Ok(Self { kind: Kind::of(&inner, factory), inner, lengths: OnceLock::new() })
    }

    /// Writes the index to a file.
    ///
    /// # Errors
    /// With Faiss's message.
    pub fn write(&self, path: &Path) -> Result<(), OperatorError> {
        write_index(&self.inner, path.to_string_lossy()).map_err(failed)
    }

    /// Returns the length of a vector.
    pub fn dimensions(&self) -> usize {
        self.inner.d() as usize
    }

    /// Whether vectors can be added.
    pub fn is_trained(&self) -> bool {
        self.inner.is_trained()
    }

    /// Trains cells and code books on concatenated vectors.
    ///
    /// # Errors
    /// With Faiss's message.
    pub fn train(&mut self, vectors: &[f32]) -> Result<(), OperatorError> {
        single_threaded();
        // They are those of the quantizer, which training changes.
        self.lengths = OnceLock::new();
        self.inner.train(vectors).map_err(|error| {
            failed(error)
                .with_help("an IVF or PQ index needs at least as many chunks as cells or codes (256 per code book)")
        })
    }

    /// Adds concatenated vectors.
    ///
    /// # Errors
    /// With Faiss's message.
    pub fn add(&mut self, vectors: &[f32]) -> Result<(), OperatorError> {
        if vectors.is_empty() {
            return Ok(());
        }
        single_threaded();
        self.lengths = OnceLock::new();
        self.inner.add(vectors).map_err(failed)
    }

    /// Finds the nearest `k` rows of each of the concatenated queries.
    ///
    /// # Errors
    /// With Faiss's message.
    pub fn search(&self, queries: &[f32], k: usize, metric: Metric) -> Result<Vec<Neighbours>, OperatorError> {
        let k = k.min(self.inner.ntotal() as usize);
        let dimensions = self.dimensions();
        if k == 0 {
            return Ok(vec![Vec::new(); queries.len() / dimensions]);
        }
        let mut found = match &self.kind {
            Kind::Flat => return self.stored(self.inner.inner_ptr()).search(queries, k, metric),
            Kind::Cells { quantizer } => {
                // The cells of all queries are determined exactly; Faiss searches those cells.
                let quantizer = self.stored(*quantizer);
                let cells = quantizer.search(queries, self.probes().min(quantizer.vectors.count()), metric)?;
                self.search_in_groups(queries, k, group_size(cells.len()), Some(&cells))?
            }
            Kind::Graph => self.search_in_groups(queries, k, group_size(queries.len() / dimensions), None)?,
            Kind::Other => self.search_in_groups(queries, k, 1, None)?,
        };
        found.par_iter_mut().for_each(|found| sort(found, metric));
        Ok(found)
    }

    /// Searches with Faiss, in groups of queries, restricted to the given cells of each query if any.
    fn search_in_groups(
        &self,
        queries: &[f32],
        k: usize,
        group: usize,
        cells: Option<&[Neighbours]>,
    ) -> Result<Vec<Neighbours>, OperatorError> {
        let groups = queries.par_chunks(group * self.dimensions()).enumerate();
        let found = groups.map(|(number, queries)| {
            let count = queries.len() / self.dimensions();
            self.raw(queries, k, cells.map(|cells| &cells[number * group..][..count]))
        });
        Ok(found.collect::<Result<Vec<_>, OperatorError>>()?.into_iter().flatten().collect())
    }

    /// Returns the number of cells searched per query.
    fn probes(&self) -> usize {
        #[expect(unsafe_code, reason = "the safe interface lacks it")]
        // SAFETY: the cast returns null if the index has no cells; otherwise the pointer is valid as long as the index.
        unsafe {
            let cells = sys::faiss_IndexIVF_cast(self.inner.inner_ptr());
            if cells.is_null() { 0 } else { sys::faiss_IndexIVF_nprobe(cells) }
        }
    }

    /// Returns the vectors of a flat index, concatenated.
    pub(crate) fn vectors(&self) -> Option<&[f32]> {
        matches!(self.kind, Kind::Flat).then(|| self.stored(self.inner.inner_ptr()).vectors.rows)
    }

    /// Returns the vectors of a flat index: this index or its quantizer.
    fn stored(&self, index: *mut sys::FaissIndex) -> Stored<'_> {
        let (dimensions, mut start, mut length) = (self.dimensions(), ptr::null_mut(), 0);
        #[expect(unsafe_code, reason = "the safe interface lacks it")]
        // SAFETY: `index` is flat (checked when this index was opened), and Faiss returns the start and number of its
        // values. They stay in place until the index changes, which takes `&mut self`. A null pointer (of an empty
        // vector) is never read.
        let rows = unsafe {
            sys::faiss_IndexFlat_xb(index, &raw mut start, &raw mut length);
            if start.is_null() { &[] } else { std::slice::from_raw_parts(start.cast_const(), length) }
        };
        let lengths = self.lengths.get_or_init(|| Lengths::of(rows, dimensions));
        #[expect(unsafe_code, reason = "the metric of a quantizer is known to Faiss only")]
        // SAFETY: as above, `index` is valid.
        let euclidean = unsafe { sys::faiss_Index_metric_type(index) } == sys::FaissMetricType_METRIC_L2;
        Stored { index, vectors: Vectors { rows, dimensions, lengths, euclidean } }
    }

    /// Calls Faiss's search once, restricted to the given cells of each query if any.
    fn raw(&self, queries: &[f32], k: usize, cells: Option<&[Neighbours]>) -> Result<Vec<Neighbours>, OperatorError> {
        single_threaded();
        let count = queries.len() / self.dimensions();
        let mut scores = vec![0.0f32; count * k];
        let mut labels = vec![-1i64; count * k];
        let (index, asked, number, most) = (self.inner.inner_ptr(), queries.as_ptr(), count as i64, k as i64);
        let (found, rows) = (scores.as_mut_ptr(), labels.as_mut_ptr());
        let cells_of_all = cells.unwrap_or_default().iter().flatten();
        let (numbers, nearness): (Vec<i64>, Vec<f32>) = cells_of_all.map(|cell| (i64::from(cell.0), cell.1)).unzip();
        #[expect(unsafe_code, reason = "the safe interface wants the index for itself")]
        // SAFETY: the buffers hold `count` queries, `count * k` results and, per query, as many cells as the index
        // searches (only an index with cells gets any). Faiss does not change the index during a search.
        let status = unsafe {
            if cells.is_some() {
                let (cells, near) = (numbers.as_ptr(), nearness.as_ptr());
                let index = sys::faiss_IndexIVF_cast(index);
                sys::faiss_IndexIVF_search_preassigned(index, number, asked, most, cells, near, found, rows, 0)
            } else {
                sys::faiss_Index_search(index, number, asked, most, found, rows)
            }
        };
        checked(status)?;
        let mut neighbours = Vec::with_capacity(count);
        for (labels, scores) in labels.chunks(k).zip(scores.chunks(k)) {
            let mut rows = Neighbours::new();
            for (label, score) in labels.iter().zip(scores) {
                // Label -1 means "no more".
                if let Ok(row) = u32::try_from(*label) {
                    rows.push((row, *score));
                }
            }
            neighbours.push(rows);
        }
        Ok(neighbours)
    }
}

/// Returns the number of queries per task: Faiss allocates memory for all rows on every call.
fn group_size(queries: usize) -> usize {
    queries.div_ceil(4 * rayon::current_num_threads()).clamp(1, 64)
}

/// The vectors of a flat index.
struct Stored<'a> {
    index: *mut sys::FaissIndex,
    vectors: Vectors<'a>,
}

// SAFETY: the pointer belongs to an index borrowed for this lifetime, and Faiss's searches do not change it.
#[expect(unsafe_code, reason = "a pointer of Faiss's, read only")]
unsafe impl Sync for Stored<'_> {}

impl Stored<'_> {
    /// Finds the nearest `k` rows of each query, with Faiss's own scores.
    fn search(&self, queries: &[f32], k: usize, metric: Metric) -> Result<Vec<Neighbours>, OperatorError> {
        let candidates = self.vectors.nearest(queries, k + SPARE);
        let pairs = queries.par_chunks(self.vectors.dimensions).zip(candidates);
        let found = pairs.map(|(query, candidates)| {
            let rows: Vec<u32> = candidates.iter().map(|near| near.row).collect();
            let mut exact = self.score(query, &rows, metric)?;
            // A row outside the candidates could be among the best: then every such row is scored too.
            if let (Some(kth), Some(last)) = (exact.get(k - 1), candidates.last())
                && rows.len() < self.vectors.count()
            {
                let length = query.iter().map(|x| x * x).sum::<f32>().sqrt();
                let longest = self.vectors.lengths.longest;
                // As nearness, which for Euclidean distance is `q·x - |x|²/2`: half of `|q|² - |q - x|²`.
                let (kth, size) = match metric {
                    Metric::InnerProduct => (kth.1, length * longest),
                    Metric::L2 => (0.5 * (length * length - kth.1), (length + longest).powi(2)),
                };
                let margin = 2.0 * ROUNDING * size;
                if last.nearness >= kth - margin {
                    exact = self.score(query, &self.vectors.at_least(query, kth - margin), metric)?;
                }
            }
            exact.truncate(k);
            Ok(exact)
        });
        found.collect()
    }

    /// Scores rows one by one, best first.
    fn score(&self, query: &[f32], rows: &[u32], metric: Metric) -> Result<Neighbours, OperatorError> {
        single_threaded();
        let labels: Vec<i64> = rows.iter().map(|row| i64::from(*row)).collect();
        let mut scores = vec![0.0f32; rows.len()];
        let (query, found, asked, count) = (query.as_ptr(), scores.as_mut_ptr(), labels.as_ptr(), rows.len() as i64);
        #[expect(unsafe_code, reason = "the safe interface lacks it")]
        // SAFETY: the index is flat (checked when it was opened). The buffers hold one query and `count` labels and
        // scores. The labels are rows of the index. Faiss does not change the index.
        let status = unsafe { sys::faiss_IndexFlat_compute_distance_subset(self.index, 1, query, count, found, asked) };
        checked(status)?;
        let mut scored = rows.iter().copied().zip(scores).collect();
        sort(&mut scored, metric);
        Ok(scored)
    }
}

/// How an index is searched.
enum Kind {
    /// Stores all vectors unchanged, in row order.
    Flat,
    /// Stores vectors in cells; the cell centres are the vectors of a flat index.
    Cells { quantizer: *mut sys::FaissIndex },
    /// A graph. Faiss searches it query by query.
    Graph,
    /// Any other index; its results may depend on the batch.
    Other,
}

// SAFETY: the pointer is the quantizer's, which the index owns and frees.
#[expect(unsafe_code, reason = "a pointer of Faiss's")]
unsafe impl Send for Kind {}
// SAFETY: as above; searches do not change it.
#[expect(unsafe_code, reason = "a pointer of Faiss's")]
unsafe impl Sync for Kind {}

impl Kind {
    fn of(index: &IndexImpl, factory: &str) -> Self {
        #[expect(unsafe_code, reason = "the kind of an index is known to Faiss only")]
        // SAFETY: dynamic casts of a valid index and its quantizer; they return null for other kinds.
        unsafe {
            let index = index.inner_ptr();
            if !sys::faiss_IndexFlat_cast(index).is_null() {
                return Self::Flat;
            }
            let cells = sys::faiss_IndexIVF_cast(index);
            if !cells.is_null() {
                let quantizer = sys::faiss_IndexIVF_quantizer(cells);
                // Cells are chosen by the metric of the index: a quantizer with another one would choose others.
                let same = sys::faiss_Index_metric_type(quantizer) == sys::faiss_Index_metric_type(index);
                if same && !sys::faiss_IndexFlat_cast(quantizer).is_null() {
                    return Self::Cells { quantizer };
                }
            }
        }
        if factory.starts_with("HNSW") { Self::Graph } else { Self::Other }
    }
}

/// Sorts best first, ties by row.
fn sort(found: &mut Neighbours, metric: Metric) {
    found.sort_unstable_by(|a, b| match metric {
        Metric::InnerProduct => b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)),
        Metric::L2 => a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    const DIMENSIONS: usize = 64;

    fn vectors(count: usize, seed: u64) -> Vec<f32> {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        (0..count * DIMENSIONS).map(|_| random.random_range(-1.0..1.0)).collect()
    }

    fn built(factory: &str, rows: &[f32], metric: Metric) -> FaissIndex {
        let mut index = FaissIndex::create(factory, DIMENSIONS, metric).unwrap();
        if !index.is_trained() {
            index.train(rows).unwrap();
        }
        index.add(rows).unwrap();
        index
    }

    /// The nearest rows by definition, in 64-bit arithmetic.
    fn by_definition(rows: &[f32], query: &[f32], k: usize, metric: Metric) -> Vec<u32> {
        let score = |row: &[f32]| -> f64 {
            let pairs = row.iter().zip(query).map(|(a, b)| (f64::from(*a), f64::from(*b)));
            match metric {
                Metric::InnerProduct => -pairs.map(|(a, b)| a * b).sum::<f64>(),
                Metric::L2 => pairs.map(|(a, b)| (a - b) * (a - b)).sum::<f64>(),
            }
        };
        let mut all: Vec<_> = rows.chunks(DIMENSIONS).map(score).zip(0u32..).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        all.into_iter().take(k).map(|(_, row)| row).collect()
    }

    #[test]
    fn flat_search_is_exact_and_the_same_in_any_batch() {
        let (rows, queries) = (vectors(40_000, 1), vectors(50, 2));
        for metric in [Metric::InnerProduct, Metric::L2] {
            let index = built("Flat", &rows, metric);
            let together = index.search(&queries, 10, metric).unwrap();
            for (place, query) in queries.chunks(DIMENSIONS).enumerate() {
                let alone = index.search(query, 10, metric).unwrap().remove(0);
                assert_eq!(alone, together[place]);
                if place < 5 {
                    let found: Vec<_> = alone.iter().map(|found| found.0).collect();
                    assert_eq!(found, by_definition(&rows, query, 10, metric));
                }
            }
        }
    }

    /// Searches split their work, so a thread may start another search in the middle of its own.
    #[test]
    fn many_threads_search_a_fresh_index_at_once() {
        let (rows, queries) = (vectors(5000, 8), vectors(64, 9));
        for factory in ["Flat", "IVF16,Flat", "HNSW8"] {
            let index = built(factory, &rows, Metric::InnerProduct);
            let one = |query| index.search(query, 5, Metric::InnerProduct).unwrap().remove(0);
            let found: Vec<_> = queries.par_chunks(DIMENSIONS).map(one).collect();
            assert_eq!(found, index.search(&queries, 5, Metric::InnerProduct).unwrap(), "{factory}");
        }
    }

    #[test]
    fn equal_vectors_come_in_row_order() {
        let one = vectors(1, 3);
        let rows: Vec<f32> = one.iter().copied().cycle().take(500 * DIMENSIONS).collect();
        let index = built("Flat", &rows, Metric::InnerProduct);
        let many: Vec<f32> = one.iter().copied().cycle().take(30 * DIMENSIONS).collect();
        for found in index.search(&many, 7, Metric::InnerProduct).unwrap() {
            assert_eq!(found.iter().map(|found| found.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
        }
    }

    #[test]
    fn every_kind_of_index_is_written_and_read_back() {
        let (rows, queries) = (vectors(2000, 4), vectors(20, 5));
        let folder = tempfile::tempdir().unwrap();
        let truth = built("Flat", &rows, Metric::InnerProduct).search(&queries, 10, Metric::InnerProduct).unwrap();
        for (factory, least) in [("Flat", 1.0), ("HNSW16", 0.8), ("IVF16,Flat", 0.99), ("SQ8", 0.9), ("IVF8,PQ16", 0.1)]
        {
            let path = folder.path().join("index");
            let index = built(factory, &rows, Metric::InnerProduct);
            index.write(&path).unwrap();
            let read = FaissIndex::read(&path, factory, 16, 64).unwrap();
            let found = read.search(&queries, 10, Metric::InnerProduct).unwrap();
            let same = found.iter().zip(&truth).map(|(found, truth)| {
                found.iter().filter(|(row, _)| truth.iter().any(|(other, _)| other == row)).count()
            });
            let recall = same.sum::<usize>() as f64 / 200.0;
            println!("{factory}: recall@10 {recall}");
            assert!(recall >= least, "{factory}: {recall}");
        }
    }

    #[test]
    fn an_index_is_the_same_and_finds_the_same_whatever_the_threads() {
        let (rows, queries) = (vectors(20_000, 6), vectors(40, 7));
        let folder = tempfile::tempdir().unwrap();
        let work = |name: &str| {
            let (path, index) = (folder.path().join(name), built("IVF64,Flat", &rows, Metric::L2));
            index.write(&path).unwrap();
            (std::fs::read(&path).unwrap(), index.search(&queries, 10, Metric::L2).unwrap())
        };
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let (alone, together) = (one.install(|| work("one")), work("many"));
        assert!(alone.0 == together.0, "other bytes");
        assert_eq!(alone.1, together.1);
        let index = built("IVF64,Flat", &rows, Metric::L2);
        for (query, found) in queries.chunks(DIMENSIONS).zip(&alone.1) {
            assert_eq!(index.search(query, 10, Metric::L2).unwrap()[0], *found);
        }
    }

    #[test]
    fn product_quantizers_are_trained_without_polysemy() {
        assert_eq!(without_polysemous_training("IVF64,PQ48"), "IVF64,PQ48np");
        assert_eq!(without_polysemous_training("OPQ16,IVF64,PQ16x8"), "OPQ16,IVF64,PQ16x8np");
        assert_eq!(without_polysemous_training("PQ48np"), "PQ48np");
        assert_eq!(without_polysemous_training("HNSW32"), "HNSW32");
    }

    #[test]
    fn a_wrong_factory_is_an_error_with_its_name() {
        let error = FaissIndex::create("Flatt", 8, Metric::L2).err().unwrap();
        assert!(error.message.contains("`Flatt`"), "{error}");
    }
}
