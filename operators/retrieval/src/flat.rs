//! Exhaustive nearest-neighbour search: finds candidate rows fast, exact except for the last bits.
//!
//! Nearness is the inner product. For Euclidean distance it is `q·x - |x|²/2`, which orders rows like the distance.
//! Many queries form one matrix product per tile of rows. Few queries are bound by memory, so each row is read once for
//! all of them.
#![expect(clippy::inline_always, reason = "only what is inlined is compiled for the vector unit of its caller")]

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use searchmill_kernels::matrix::{View, multiply};

/// Rows per tile, so that their products with all queries fit in the processor's cache.
const TILE: usize = 2048;
/// Queries multiplied together.
const BLOCK: usize = 256;
/// Number of queries from which packing rows for the matrix product pays off.
const WORTH_PRODUCT: usize = 8;
/// Scores scanned together.
const SCANNED: usize = 64;

/// A row and its nearness to the query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Near {
    pub(super) row: u32,
    pub(super) nearness: f32,
}

/// Lengths of the vectors, computed once.
pub(super) struct Lengths {
    /// -|x|²/2 of each row.
    offsets: Vec<f32>,
    /// Length of the longest vector.
    pub(super) longest: f32,
}

impl Lengths {
    /// Runs on one thread: if this thread took other work meanwhile, tasks that wait for the lengths would deadlock.
    pub(super) fn of(rows: &[f32], dimensions: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows.len() / dimensions);
        let mut most_square = 0.0f32;
        for row in rows.chunks_exact(dimensions) {
            let mut square = [0.0];
            Arch::new().dispatch(Products { rows: row, queries: row, dimensions, out: &mut square });
            let offset = -0.5 * square[0];
            most_square = most_square.max(-2.0 * offset);
            offsets.push(offset);
        }
        Self { offsets, longest: most_square.sqrt() }
    }
}

/// Concatenated vectors.
#[derive(Clone, Copy)]
pub(super) struct Vectors<'a> {
    pub(super) rows: &'a [f32],
    pub(super) dimensions: usize,
    pub(super) lengths: &'a Lengths,
    /// Whether nearness is Euclidean.
    pub(super) euclidean: bool,
}

impl Vectors<'_> {
    pub(super) fn count(&self) -> usize {
        self.rows.len() / self.dimensions
    }

    /// Returns about the nearest `k` rows per query, nearest first. Apart from rounding, no omitted row is nearer than
    /// the last.
    pub(super) fn nearest(&self, queries: &[f32], k: usize) -> Vec<Vec<Near>> {
        let ranges = self.ranges();
        let mut tasks: Vec<(&[f32], Range<usize>)> = Vec::new();
        for block in queries.chunks(BLOCK * self.dimensions) {
            for range in &ranges {
                tasks.push((block, range.clone()));
            }
        }
        let parts = tasks.into_par_iter().map(|(block, range)| self.best_of(block, range, &Best::new(k)));
        let mut parts = parts.collect::<Vec<_>>().into_iter();
        let mut found = Vec::with_capacity(queries.len() / self.dimensions);
        for block in queries.chunks(BLOCK * self.dimensions) {
            let mut merged: Vec<Best> = vec![Best::new(k); block.len() / self.dimensions];
            // The parts are in the order of the tasks: all ranges of a block follow each other.
            for part in parts.by_ref().take(ranges.len()) {
                for (best, part) in merged.iter_mut().zip(part) {
                    best.found.extend(part.found);
                }
            }
            found.extend(merged.into_iter().map(Best::ranked));
        }
        found
    }

    /// Returns all rows with at least that nearness to the query, apart from rounding.
    pub(super) fn at_least(&self, query: &[f32], least: f32) -> Vec<u32> {
        self.all_at_least(query, least).pop().unwrap_or_default()
    }

    /// Returns all rows with at least that nearness to each query, in order, apart from rounding.
    pub(super) fn all_at_least(&self, queries: &[f32], least: f32) -> Vec<Vec<u32>> {
        // So many are wanted that none is dropped; half of the range, since twice as many are compared with.
        let all = Best { k: usize::MAX / 2, floor: least.next_down(), found: Vec::new() };
        let parts: Vec<_> = self.ranges().into_par_iter().map(|range| self.best_of(queries, range, &all)).collect();
        let mut found = vec![Vec::new(); queries.len() / self.dimensions];
        for part in parts {
            for (rows, best) in found.iter_mut().zip(part) {
                rows.extend(best.found.iter().map(|near| near.row));
            }
        }
        found
    }

    /// Returns equal ranges of rows in whole tiles, two per thread.
    fn ranges(&self) -> Vec<Range<usize>> {
        let rows = self.count();
        let share = rows.div_ceil(2 * rayon::current_num_threads()).next_multiple_of(TILE).max(TILE);
        (0..rows).step_by(share).map(|start| start..(start + share).min(rows)).collect()
    }

    fn best_of(&self, queries: &[f32], range: Range<usize>, none: &Best) -> Vec<Best> {
        let mut best = vec![none.clone(); queries.len() / self.dimensions];
        let mut scores = vec![0.0f32; best.len() * TILE.min(range.len())];
        let few = best.len() < WORTH_PRODUCT;
        for first in range.clone().step_by(TILE) {
            // The last tile of a range may be shorter.
            let last = (first + TILE).min(range.end);
            let rows = &self.rows[first * self.dimensions..last * self.dimensions];
            let offsets = if self.euclidean { &self.lengths.offsets[first..last] } else { &[] };
            let tile = Tile { rows, dimensions: self.dimensions, offsets, first: first as u32 };
            let scores = &mut scores[..best.len() * (last - first)];
            if few { tile.by_query(queries, scores, &mut best) } else { tile.by_row(queries, scores, &mut best) }
        }
        best
    }
}

/// A range of rows.
struct Tile<'a> {
    rows: &'a [f32],
    dimensions: usize,
    /// Added to the product of each row (empty if nearness is the product).
    offsets: &'a [f32],
    first: u32,
}

impl Tile<'_> {
    /// Multiplies row by row and scans the scores query by query.
    fn by_query(&self, queries: &[f32], scores: &mut [f32], best: &mut [Best]) {
        let (rows, dimensions) = (self.rows, self.dimensions);
        Arch::new().dispatch(Products { rows, queries, dimensions, out: scores });
        Arch::new().dispatch(|| {
            for (best, scores) in best.iter_mut().zip(scores.chunks_exact_mut(rows.len() / dimensions)) {
                for (offset, score) in self.offsets.iter().zip(scores.iter_mut()) {
                    *score += offset;
                }
                best.take(scores, self.first);
            }
        });
    }

    /// Multiplies all at once. The row-major product saves the library from transposing the rows.
    fn by_row(&self, queries: &[f32], scores: &mut [f32], best: &mut [Best]) {
        let (asked, count) = (best.len(), self.rows.len() / self.dimensions);
        let (left, right) = (View::new(self.rows, count, self.dimensions), View::new(queries, asked, self.dimensions));
        multiply(scores, asked, &left, &right.transposed(), 1.0, false);
        let mut floors: Vec<f32> = best.iter().map(|best| best.floor).collect();
        Arch::new().dispatch(|| {
            for (index, scores) in scores.chunks_exact(asked).enumerate() {
                let offset = self.offsets.get(index).copied().unwrap_or_default();
                // Counts instead of comparing one by one: counting runs on the vector unit.
                let above = scores.iter().zip(&floors).map(|(score, floor)| u32::from(score + offset > *floor));
                if above.sum::<u32>() == 0 {
                    continue;
                }
                let row = self.first + index as u32;
                for ((score, floor), best) in scores.iter().zip(&mut floors).zip(best.iter_mut()) {
                    if score + offset > *floor {
                        *floor = best.push(Near { row, nearness: score + offset });
                    }
                }
            }
        });
    }
}

/// The best rows of a query so far.
#[derive(Clone)]
struct Best {
    k: usize,
    /// Rows no nearer than this are not among the best.
    floor: f32,
    /// At least the best `k` rows, fewer than `2 * k`.
    found: Vec<Near>,
}

impl Best {
    fn new(k: usize) -> Self {
        Self { k, floor: f32::NEG_INFINITY, found: Vec::new() }
    }

    #[inline(always)]
    fn take(&mut self, scores: &[f32], first: u32) {
        for (block, first) in scores.chunks(SCANNED).zip((first..).step_by(SCANNED)) {
            // Counts instead of comparing one by one: counting runs on the vector unit.
            if block.iter().map(|score| u32::from(*score > self.floor)).sum::<u32>() == 0 {
                continue;
            }
            for (nearness, row) in block.iter().zip(first..) {
                if *nearness > self.floor {
                    self.push(Near { row, nearness: *nearness });
                }
            }
        }
    }

    /// Adds a row and returns the new floor.
    #[inline(never)]
    fn push(&mut self, near: Near) -> f32 {
        self.found.push(near);
        // Cut only when twice as many have gathered: selecting then costs a constant time per row.
        if self.found.len() >= 2 * self.k {
            self.found.select_nth_unstable_by(self.k - 1, |a, b| b.nearness.total_cmp(&a.nearness));
            self.found.truncate(self.k);
            self.floor = self.found[self.k - 1].nearness;
        }
        self.floor
    }

    /// Returns the best rows, nearest first.
    fn ranked(mut self) -> Vec<Near> {
        self.found.sort_unstable_by(|a, b| b.nearness.total_cmp(&a.nearness).then(a.row.cmp(&b.row)));
        self.found.truncate(self.k);
        self.found
    }
}

/// Inner products of a few queries with a tile of rows; one line of `out` per query.
struct Products<'a> {
    rows: &'a [f32],
    queries: &'a [f32],
    dimensions: usize,
    out: &'a mut [f32],
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let tile = self.rows.len() / self.dimensions;
        for (index, row) in self.rows.chunks_exact(self.dimensions).enumerate() {
            for (number, query) in self.queries.chunks_exact(self.dimensions).enumerate() {
                self.out[number * tile + index] = dot(simd, row, query);
            }
        }
    }
}

/// Keeps four independent sums: a single one would wait for each of its additions.
#[inline(always)]
fn dot<S: Simd>(simd: S, left: &[f32], right: &[f32]) -> f32 {
    let ((left, left_rest), (right, right_rest)) = (S::as_simd_f32s(left), S::as_simd_f32s(right));
    let ((left, left_last), (right, right_last)) = (left.as_chunks::<4>(), right.as_chunks::<4>());
    let mut sums = [simd.splat_f32s(0.0); 4];
    for (left, right) in left.iter().zip(right) {
        for lane in 0..4 {
            sums[lane] = simd.mul_add_e_f32s(left[lane], right[lane], sums[lane]);
        }
    }
    for (left, right) in left_last.iter().zip(right_last) {
        sums[0] = simd.mul_add_e_f32s(*left, *right, sums[0]);
    }
    let sum = simd.add_f32s(simd.add_f32s(sums[0], sums[1]), simd.add_f32s(sums[2], sums[3]));
    simd.reduce_sum_f32s(sum) + left_rest.iter().zip(right_rest).map(|(a, b)| a * b).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    fn vectors(count: usize, dimensions: usize, seed: u64) -> Vec<f32> {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        (0..count * dimensions).map(|_| random.random_range(-1.0..1.0)).collect()
    }

    /// Nearness by definition in 64-bit arithmetic, nearest first.
    fn ranking(rows: &[f32], query: &[f32], euclidean: bool) -> Vec<(u32, f64)> {
        let nearness = |row: &[f32]| {
            let pairs = || row.iter().zip(query).map(|(x, q)| (f64::from(*x), f64::from(*q)));
            let product: f64 = pairs().map(|(x, q)| x * q).sum();
            if euclidean { product - 0.5 * pairs().map(|(x, _)| x * x).sum::<f64>() } else { product }
        };
        let mut all: Vec<_> = (0u32..).zip(rows.chunks(query.len()).map(nearness)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all
    }

    #[test]
    fn the_nearest_rows_whatever_the_number_of_queries_and_dimensions() {
        for (dimensions, count, asked) in [(3, 10, 1), (64, 5000, 3), (100, 2500, 40), (768, 1500, 300)] {
            let (rows, queries) = (vectors(count, dimensions, 1), vectors(asked, dimensions, 2));
            let lengths = Lengths::of(&rows, dimensions);
            for euclidean in [false, true] {
                let all = Vectors { rows: &rows, dimensions, lengths: &lengths, euclidean };
                let found = all.nearest(&queries, 7);
                assert_eq!(found.len(), asked);
                for (query, found) in queries.chunks(dimensions).zip(&found).take(5) {
                    let truth = ranking(&rows, query, euclidean);
                    assert_eq!(found.len(), 7);
                    for (found, truth) in found.iter().zip(&truth) {
                        assert!((f64::from(found.nearness) - truth.1).abs() < 1e-3, "{found:?} {truth:?}");
                    }
                    let mut above = all.at_least(query, truth[4].1 as f32 - 1e-4);
                    above.sort_unstable();
                    let mut expected: Vec<u32> =
                        truth.iter().take_while(|t| t.1 >= truth[4].1 - 1e-4).map(|t| t.0).collect();
                    expected.sort_unstable();
                    assert_eq!(above, expected);
                }
            }
        }
    }

    #[test]
    fn rows_that_are_no_numbers_are_never_found() {
        let rows = [1.0, f32::NAN, 2.0, 0.5];
        let lengths = Lengths::of(&rows, 1);
        let all = Vectors { rows: &rows, dimensions: 1, lengths: &lengths, euclidean: false };
        let found: Vec<u32> = all.nearest(&[1.0], 4).remove(0).iter().map(|near| near.row).collect();
        assert_eq!(found, [2, 0, 3]);
    }
}
