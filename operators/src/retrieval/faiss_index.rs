//! Faiss behind safe Rust: factory strings, training, adding, files, and searches that give the same result however
//! queries are batched and however many threads there are.
//!
//! Faiss's own threads are off (one OpenMP thread; BLAS too where it is OpenBLAS): they spin, and they change the order
//! of additions. Rayon spreads the work instead: over queries, and over row ranges of a flat index. A flat index is
//! searched through BLAS, whose last bits depend on the batch, so candidates are scored again one by one, and more are
//! taken until those left out could not come among the best whatever their last bits are.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Once;

use faiss::MetricType;
use faiss::index::autotune::ParameterSpace;
use faiss::index::io::{read_index, write_index};
use faiss::index::{Index, IndexImpl, index_factory};
use faiss_sys as sys;
use rayon::prelude::*;
use searchmill_engine::operator::OperatorError;

use super::dense::Metric;

/// Rows of a flat index searched at a time.
const RANGE: usize = 32_768;
/// Queries searched at a time in a flat index.
const BLOCK: usize = 256;
/// Candidates taken beyond those asked for, before they are scored again.
const SPARE: usize = 16;
/// Two ways to compute a score differ by less than this, relative to its size (or 1, if that is larger).
const ROUNDING: f32 = 1e-5;

/// Rows and scores of one query, best first, ties by row.
pub(crate) type Neighbours = Vec<(u32, f32)>;

#[expect(unsafe_code, reason = "OpenMP and the dynamic linker have C interfaces only")]
unsafe extern "C" {
    fn omp_set_num_threads(threads: c_int);
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// One thread for OpenMP (a setting of the calling thread) and, once, for OpenBLAS (a setting of the process).
fn single_threaded() {
    static BLAS: Once = Once::new();
    #[expect(unsafe_code, reason = "OpenMP and OpenBLAS have C interfaces only")]
    // SAFETY: omp_set_num_threads takes any positive number. dlsym with a null handle (RTLD_DEFAULT) looks a symbol up
    // among the loaded libraries; where it is found it is OpenBLAS's `void openblas_set_num_threads(int)`.
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

/// Turns a status of Faiss's C interface into an error with its own text.
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

/// Product quantizers without polysemous training: `PQ48` becomes `PQ48np`, `IVF64,PQ48x4fs` stays.
fn without_polysemous_training(factory: &str) -> String {
    let plain = |part: &str| {
        let digits = part.strip_prefix("PQ");
        digits.is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit() || c == 'x'))
    };
    let parts = factory.split(',').map(str::trim);
    parts.map(|part| if plain(part) { format!("{part}np") } else { part.to_owned() }).collect::<Vec<_>>().join(",")
}

/// Does Faiss understand the factory string for vectors of that length?
pub(crate) fn probe(factory: &str, dimensions: usize, metric: Metric) -> Result<(), OperatorError> {
    FaissIndex::create(factory, dimensions, metric).map(drop)
}

/// A Faiss index.
pub(crate) struct FaissIndex {
    inner: IndexImpl,
    /// All vectors are kept as they are, in row order.
    flat: bool,
}

// `IndexImpl` is Send and Sync. Searching takes a const index in Faiss, and CPU indexes support concurrent searches;
// everything that changes the index takes `&mut self`.
impl FaissIndex {
    /// An empty index.
    pub(crate) fn create(factory: &str, dimensions: usize, metric: Metric) -> Result<Self, OperatorError> {
        single_threaded();
        let metric = match metric {
            Metric::InnerProduct => MetricType::InnerProduct,
            Metric::L2 => MetricType::L2,
        };
        let inner = index_factory(dimensions as u32, without_polysemous_training(factory), metric)
            .map_err(|error| OperatorError::pipeline(format!("the index factory `{factory}`: {error}")))?;
        Ok(Self { flat: is_flat(&inner), inner })
    }

    /// Reads an index from a file.
    pub(crate) fn read(path: &Path, factory: &str, nprobe: u32, ef_search: u32) -> Result<Self, OperatorError> {
        single_threaded();
        let inner = read_index(path.to_string_lossy()).map_err(failed)?;
        let space = ParameterSpace::new().map_err(failed)?;
        if factory.contains("IVF") {
            space.set_index_parameter(&inner, "nprobe", f64::from(nprobe)).map_err(failed)?;
        } else if factory.starts_with("HNSW") {
            space.set_index_parameter(&inner, "efSearch", f64::from(ef_search)).map_err(failed)?;
        }
        Ok(Self { flat: is_flat(&inner), inner })
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), OperatorError> {
        write_index(&self.inner, path.to_string_lossy()).map_err(failed)
    }

    pub(crate) fn dimensions(&self) -> usize {
        self.inner.d() as usize
    }

    pub(crate) fn is_trained(&self) -> bool {
        self.inner.is_trained()
    }

    pub(crate) fn train(&mut self, vectors: &[f32]) -> Result<(), OperatorError> {
        single_threaded();
        self.inner.train(vectors).map_err(|error| {
            failed(error).with_help(
                "an IVF or PQ index wants at least as many chunks as it has cells or codes (256 a code book)",
            )
        })
    }

    pub(crate) fn add(&mut self, vectors: &[f32]) -> Result<(), OperatorError> {
        if vectors.is_empty() {
            return Ok(());
        }
        single_threaded();
        self.inner.add(vectors).map_err(failed)
    }

    /// The nearest `k` rows of each query.
    pub(crate) fn search(&self, queries: &[f32], k: usize, metric: Metric) -> Result<Vec<Neighbours>, OperatorError> {
        let k = k.min(self.inner.ntotal() as usize);
        let dimensions = self.dimensions();
        if k == 0 {
            return Ok(vec![Vec::new(); queries.len() / dimensions]);
        }
        if self.flat {
            return self.search_flat(queries, k, metric);
        }
        let one = |query: &[f32]| {
            let mut found = self.raw(query, k, None)?.pop().unwrap_or_default();
            sort(&mut found, metric);
            Ok(found)
        };
        queries.par_chunks(dimensions).map(one).collect()
    }

    fn search_flat(&self, queries: &[f32], k: usize, metric: Metric) -> Result<Vec<Neighbours>, OperatorError> {
        let dimensions = self.dimensions();
        let candidates = self.candidates(queries, k + SPARE)?;
        let pairs = queries.par_chunks(dimensions).zip(candidates);
        pairs.map(|(query, candidates)| self.settle(query, candidates, k, metric)).collect()
    }

    /// About the nearest `k` rows of each query and of each row range, with scores that may differ in the last bits.
    fn candidates(&self, queries: &[f32], k: usize) -> Result<Vec<Neighbours>, OperatorError> {
        let rows = self.inner.ntotal() as usize;
        let blocks: Vec<&[f32]> = queries.chunks(BLOCK * self.dimensions()).collect();
        let ranges: Vec<(usize, usize)> =
            (0..rows).step_by(RANGE).map(|start| (start, (start + RANGE).min(rows))).collect();
        let tasks: Vec<_> = blocks.iter().flat_map(|block| ranges.iter().map(move |range| (*block, *range))).collect();
        let parts: Vec<Vec<Neighbours>> = tasks
            .par_iter()
            .map(|(block, (start, end))| self.raw(block, k.min(end - start), Some((*start, *end))))
            .collect::<Result<_, _>>()?;
        let merged = parts.chunks(ranges.len()).flat_map(|parts| {
            let queries = parts.first().map_or(0, Vec::len);
            (0..queries).map(|query| parts.iter().flat_map(|part| part[query].iter().copied()).collect())
        });
        Ok(merged.collect())
    }

    /// Scores the candidates one by one and keeps the best `k`, taking more candidates where ties are too many to tell.
    fn settle(
        &self,
        query: &[f32],
        candidates: Neighbours,
        k: usize,
        metric: Metric,
    ) -> Result<Neighbours, OperatorError> {
        let rows = self.inner.ntotal() as usize;
        let mut candidates = candidates;
        let mut taken = k + SPARE;
        loop {
            sort(&mut candidates, metric);
            candidates.truncate(taken);
            let worst = candidates.last().map_or(0.0, |found| found.1);
            let mut exact = self.score(query, &candidates)?;
            sort(&mut exact, metric);
            let kth = exact[k.min(exact.len()) - 1].1;
            let margin = 2.0 * ROUNDING * worst.abs().max(1.0);
            let settled = if metric == Metric::L2 { worst - kth > margin } else { kth - worst > margin };
            if settled || taken >= rows {
                exact.truncate(k);
                return Ok(exact);
            }
            taken *= 4;
            candidates = self.candidates(query, taken)?.pop().unwrap_or_default();
        }
    }

    /// Scores of those rows, each computed by itself.
    fn score(&self, query: &[f32], rows: &Neighbours) -> Result<Neighbours, OperatorError> {
        single_threaded();
        let labels: Vec<i64> = rows.iter().map(|found| i64::from(found.0)).collect();
        let mut scores = vec![0.0f32; rows.len()];
        let count = rows.len() as i64;
        #[expect(unsafe_code, reason = "the safe interface lacks it")]
        // SAFETY: the index is flat (checked when it was opened); the buffers hold one query and `count` labels and
        // scores; the labels are rows of the index; Faiss does not change the index.
        let status = unsafe {
            sys::faiss_IndexFlat_compute_distance_subset(
                self.inner.inner_ptr(),
                1,
                query.as_ptr(),
                count,
                scores.as_mut_ptr(),
                labels.as_ptr(),
            )
        };
        checked(status)?;
        Ok(rows.iter().zip(scores).map(|(found, score)| (found.0, score)).collect())
    }

    /// One call of Faiss's search, over all rows or a range of them.
    fn raw(&self, queries: &[f32], k: usize, range: Option<(usize, usize)>) -> Result<Vec<Neighbours>, OperatorError> {
        single_threaded();
        let count = queries.len() / self.dimensions();
        let mut scores = vec![0.0f32; count * k];
        let mut labels = vec![-1i64; count * k];
        let range = range.map(RangeParameters::new).transpose()?;
        let parameters = range.as_ref().map_or(ptr::null(), |range| range.parameters.cast_const());
        #[expect(unsafe_code, reason = "the safe interface wants the index for itself")]
        // SAFETY: the buffers hold `count` queries and `count * k` results; the parameters outlive the call; Faiss does
        // not change the index during a search.
        let status = unsafe {
            sys::faiss_Index_search_with_params(
                self.inner.inner_ptr(),
                count as i64,
                queries.as_ptr(),
                k as i64,
                parameters,
                scores.as_mut_ptr(),
                labels.as_mut_ptr(),
            )
        };
        checked(status)?;
        let query = |(labels, scores): (&[i64], &[f32])| {
            // Label -1 stands for "no more".
            labels.iter().zip(scores).filter_map(|(row, score)| Some((u32::try_from(*row).ok()?, *score))).collect()
        };
        Ok(labels.chunks(k).zip(scores.chunks(k)).map(query).collect())
    }
}

fn is_flat(index: &IndexImpl) -> bool {
    #[expect(unsafe_code, reason = "the kind of an index is known to Faiss only")]
    // SAFETY: a dynamic cast of a valid index: null where it is no flat index, the same pointer otherwise.
    let flat = unsafe { sys::faiss_IndexFlat_cast(index.inner_ptr()) };
    !flat.is_null()
}

/// Best first, ties by row.
fn sort(found: &mut Neighbours, metric: Metric) {
    found.sort_unstable_by(|a, b| match metric {
        Metric::InnerProduct => b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)),
        Metric::L2 => a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)),
    });
}

/// Search parameters that restrict a search to a range of rows.
struct RangeParameters {
    selector: *mut sys::FaissIDSelectorRange,
    parameters: *mut sys::FaissSearchParameters,
}

impl RangeParameters {
    #[expect(unsafe_code, reason = "the safe interface leaks the selector")]
    fn new((start, end): (usize, usize)) -> Result<Self, OperatorError> {
        let mut range = Self { selector: ptr::null_mut(), parameters: ptr::null_mut() };
        // SAFETY: both calls write a new object to the pointer given; `drop` frees each once, and the parameters only
        // refer to the selector.
        unsafe {
            checked(sys::faiss_IDSelectorRange_new(&raw mut range.selector, start as i64, end as i64))?;
            checked(sys::faiss_SearchParameters_new(&raw mut range.parameters, range.selector.cast()))?;
        }
        Ok(range)
    }
}

impl Drop for RangeParameters {
    #[expect(unsafe_code, reason = "what Faiss made, Faiss frees")]
    fn drop(&mut self) {
        // SAFETY: each pointer is null or an object made in `new`; nothing uses them afterwards.
        unsafe {
            if !self.parameters.is_null() {
                sys::faiss_SearchParameters_free(self.parameters);
            }
            if !self.selector.is_null() {
                sys::faiss_IDSelector_free(self.selector.cast());
            }
        }
    }
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

    /// The nearest rows by the definition, in 64-bit arithmetic.
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
