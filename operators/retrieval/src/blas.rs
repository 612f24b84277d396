//! Provides Faiss's matrix product, on the processor's vector unit.
//!
//! Faiss calls BLAS through its Fortran symbol `sgemm_`. A distribution's BLAS may be years older than the processor
//! and then selects slow kernels (Debian's OpenBLAS 0.3.21 on a Sapphire Rapids: SSE, a quarter of the speed). This
//! module therefore defines the symbol with the library that the encoders multiply with. LAPACK is still the system's.
#![expect(clippy::many_single_char_names, reason = "BLAS's own names")]

use std::ffi::{c_char, c_int};

use gemm::Parallelism;

/// Products with fewer multiplications stay on one thread.
const WORTH_THREADS: usize = 1 << 22;

/// Number of calls, for the test that Faiss uses this function.
#[cfg(test)]
static CALLS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// BLAS's single-precision `c = alpha · op(a) · op(b) + beta · c`. Matrices are column-major; `op` is the matrix or its
/// transpose. Uses all threads, unless the caller runs on a thread of a pool.
///
/// # Safety
/// As in BLAS: pointers to readable flags, sizes and factors, and to matrices of those sizes; `c` overlaps neither `a`
/// nor `b`.
#[expect(unsafe_code, reason = "the interface of BLAS is made of pointers")]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sgemm_(
    transpose_a: *const c_char,
    transpose_b: *const c_char,
    m: *const c_int,
    n: *const c_int,
    k: *const c_int,
    alpha: *const f32,
    a: *const f32,
    lda: *const c_int,
    b: *const f32,
    ldb: *const c_int,
    beta: *const f32,
    c: *mut f32,
    ldc: *const c_int,
) -> c_int {
    #[cfg(test)]
    CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    // SAFETY: the caller passes readable flags, sizes and factors, as BLAS requires.
    let (m, n, k, alpha, beta) = unsafe { (size(*m), size(*n), size(*k), *alpha, *beta) };
    // SAFETY: as above.
    let ((a_rows, a_columns), (b_rows, b_columns), ldc) =
        unsafe { (strides(*transpose_a, *lda), strides(*transpose_b, *ldb), *ldc as isize) };
    // `c` is read if it counts; no matrix is conjugated.
    let (reads, no, threads) = (beta != 0.0, false, threads(m * n * k));
    // SAFETY: the caller passes matrices of these sizes and strides, and `c` overlaps neither of the others.
    unsafe {
        gemm::gemm(
            m, n, k, c, ldc, 1, reads, a, a_columns, a_rows, b, b_columns, b_rows, beta, alpha, no, no, no, threads,
        );
    }
    0
}

fn size(number: c_int) -> usize {
    usize::try_from(number).unwrap_or_default()
}

/// Returns the row and column strides of `op(x)`.
fn strides(flag: c_char, lead: c_int) -> (isize, isize) {
    match u8::try_from(flag).unwrap_or_default().to_ascii_uppercase() {
        b'N' => (1, lead as isize),
        _ => (lead as isize, 1),
    }
}

fn threads(multiplications: usize) -> Parallelism {
    // On a thread of a pool, the other threads have products of their own.
    let busy = rayon::current_thread_index().is_some();
    if busy || multiplications < WORTH_THREADS { Parallelism::None } else { Parallelism::Rayon(0) }
}

#[cfg(test)]
mod tests {
    use super::super::{FaissIndex, Metric};
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|n| ((n * 7919) % 101) as f32 / 50.0 - 1.0).collect()
    }

    /// The product by definition.
    fn expected(flags: (u8, u8), m: usize, n: usize, k: usize, a: &[f32], b: &[f32], c: &[f32]) -> Vec<f32> {
        let (lda, ldb) = (m.max(k), n.max(k));
        let at = |flag: u8, x: &[f32], lead, row, column| {
            if flag == b'N' { x[row + column * lead] } else { x[column + row * lead] }
        };
        let mut out = c.to_vec();
        for row in 0..m {
            for column in 0..n {
                let sum: f32 = (0..k).map(|i| at(flags.0, a, lda, row, i) * at(flags.1, b, ldb, i, column)).sum();
                let place = &mut out[row + column * (m + 2)];
                *place = 2.0 * sum + 0.5 * *place;
            }
        }
        out
    }

    #[test]
    fn products_of_matrices_and_their_transposes() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (20, 33, 64), (70, 1, 9), (200, 150, 180)] {
            for flags in [(b'N', b'N'), (b'T', b'N'), (b'N', b'T'), (b'T', b'T'), (b't', b'c')] {
                let (lda, ldb, ldc) = (m.max(k), n.max(k), m + 2);
                let (a, b, c) = (numbers(lda * lda), numbers(ldb * ldb), numbers(ldc * n));
                let mut found = c.clone();
                let int = |number: usize| number as c_int;
                #[expect(unsafe_code, reason = "the interface of BLAS is made of pointers")]
                // SAFETY: all sizes match the vectors.
                unsafe {
                    sgemm_(
                        (&raw const flags.0).cast(),
                        (&raw const flags.1).cast(),
                        &int(m),
                        &int(n),
                        &int(k),
                        &2.0,
                        a.as_ptr(),
                        &int(lda),
                        b.as_ptr(),
                        &int(ldb),
                        &0.5,
                        found.as_mut_ptr(),
                        &int(ldc),
                    );
                }
                let upper = (flags.0.to_ascii_uppercase(), flags.1.to_ascii_uppercase());
                for (found, expected) in found.iter().zip(expected(upper, m, n, k, &a, &b, &c)) {
                    assert!((found - expected).abs() < 1e-4, "{m} {n} {k} {flags:?}: {found} {expected}");
                }
            }
        }
    }

    #[test]
    fn faiss_multiplies_here() {
        let before = CALLS.load(std::sync::atomic::Ordering::Relaxed);
        let rows = numbers(64 * 200);
        let mut index = FaissIndex::create("IVF4,Flat", 64, Metric::InnerProduct).unwrap();
        index.train(&rows).unwrap();
        assert!(CALLS.load(std::sync::atomic::Ordering::Relaxed) > before, "Faiss took the system's BLAS");
    }
}
