//! MaxSim, the score of late interaction: for every token of the query the best inner product with a token of the
//! document, summed (Khattab and Zaharia 2020, arXiv:2004.12832).
//!
//! The tokens of the query lie in the lanes of the vector unit, so the best products are found lane by lane and no
//! product is summed across lanes. Every product is one chain of fused additions in the order of the dimensions: a score
//! is the same, to the last bit, on every processor with fused additions, and whatever else is scored.
#![expect(clippy::inline_always, reason = "only what is inlined is compiled for the vector unit of the loop it is in")]

use pulp::{Arch, Simd, WithSimd};

/// Lanes of the widest vector unit.
const WIDEST: usize = 16;
/// Most registers of query tokens multiplied at a time.
const REGISTERS: usize = 4;

/// The token vectors of a query.
pub struct Query {
    /// Block by block of as many tokens as fit in [`REGISTERS`] registers (the last one in fewer): the numbers of the
    /// block's tokens, dimension by dimension, with zeros for tokens that are not there.
    columns: Vec<f32>,
    tokens: usize,
    dimensions: usize,
    /// Lanes of this processor's vector unit.
    lanes: usize,
}

impl Query {
    /// Takes the concatenated vectors of the tokens.
    pub fn new(vectors: &[f32], dimensions: usize) -> Self {
        let lanes = Arch::new().dispatch(Lanes);
        let tokens = vectors.len() / dimensions.max(1);
        let mut columns = Vec::with_capacity(tokens.next_multiple_of(lanes) * dimensions);
        for block in vectors.chunks(REGISTERS * lanes * dimensions.max(1)) {
            let (start, width) = (columns.len(), (block.len() / dimensions).next_multiple_of(lanes));
            columns.resize(start + width * dimensions, 0.0);
            for (token, vector) in block.chunks_exact(dimensions).enumerate() {
                for (dimension, number) in vector.iter().enumerate() {
                    columns[start + dimension * width + token] = *number;
                }
            }
        }
        Self { columns, tokens, dimensions, lanes }
    }

    /// Whether the query has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// Returns the score of a document with these concatenated token vectors; negative infinity without tokens.
    pub fn score(&self, document: &[f32]) -> f64 {
        if document.len() < self.dimensions || self.is_empty() {
            return f64::NEG_INFINITY;
        }
        Arch::new().dispatch(Score { query: self, document })
    }
}

struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}

struct Score<'a> {
    query: &'a Query,
    document: &'a [f32],
}

impl WithSimd for Score<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        assert_eq!(S::F32_LANES, self.query.lanes, "the vector unit is the one that the query was laid out for");
        let (mut sum, mut first) = (0.0, 0);
        while first < self.query.tokens {
            let left = self.query.tokens - first;
            // So many tokens of the document that their sums and the query fit the registers.
            sum += match left.div_ceil(S::F32_LANES).min(REGISTERS) {
                1 => self.block::<S, 1, 8>(simd, first),
                2 => self.block::<S, 2, 6>(simd, first),
                3 => self.block::<S, 3, 4>(simd, first),
                _ => self.block::<S, REGISTERS, 3>(simd, first),
            };
            first += REGISTERS * S::F32_LANES;
        }
        sum
    }
}

impl Score<'_> {
    /// Returns the part of the score of `R` registers of query tokens; multiplies `D` tokens of the document at a time.
    #[inline(always)]
    fn block<S: Simd, const R: usize, const D: usize>(&self, simd: S, first: usize) -> f64 {
        let dimensions = self.query.dimensions;
        let columns = &self.query.columns[first * dimensions..][..R * S::F32_LANES * dimensions];
        let columns = S::as_simd_f32s(columns).0.as_chunks::<R>().0;
        let mut best = [simd.splat_f32s(f32::NEG_INFINITY); R];
        let mut tiles = self.document.chunks_exact(dimensions * D);
        for tile in &mut tiles {
            multiply::<S, R, D>(simd, columns, tile, &mut best);
        }
        // One by one: the size of a tile changes no product.
        for token in tiles.remainder().chunks_exact(dimensions) {
            multiply::<S, R, 1>(simd, columns, token, &mut best);
        }
        let mut maxima = [0.0f32; REGISTERS * WIDEST];
        let (registers, _) = S::as_mut_simd_f32s(&mut maxima);
        registers[..R].copy_from_slice(&best);
        // Lanes without a token hold products with zeros, which are no part of the score.
        let count = (R * S::F32_LANES).min(self.query.tokens - first);
        maxima[..count].iter().map(|best| f64::from(*best)).sum()
    }
}

/// Multiplies a block of the query with `D` tokens of a document.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "dimensions, tokens and registers index several arrays at once")]
fn multiply<S: Simd, const R: usize, const D: usize>(
    simd: S,
    columns: &[[S::f32s; R]],
    tile: &[f32],
    best: &mut [S::f32s; R],
) {
    let dimensions = columns.len();
    let tokens: [&[f32]; D] = std::array::from_fn(|token| &tile[token * dimensions..][..dimensions]);
    let mut sums = [[simd.splat_f32s(0.0); R]; D];
    for dimension in 0..dimensions {
        let column = columns[dimension];
        for d in 0..D {
            let number = simd.splat_f32s(tokens[d][dimension]);
            for r in 0..R {
                sums[d][r] = simd.mul_add_e_f32s(column[r], number, sums[d][r]);
            }
        }
    }
    for d in 0..D {
        for r in 0..R {
            best[r] = simd.max_f32s(best[r], sums[d][r]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|n| ((n * 7919 + seed * 104_729) % 1013) as f32 / 500.0 - 1.0).collect()
    }

    /// The definition, with products summed in the order of the dimensions.
    fn by_definition(query: &[f32], document: &[f32], dimensions: usize) -> f64 {
        let product = |q: &[f32], d: &[f32]| q.iter().zip(d).fold(0.0f32, |sum, (q, d)| q.mul_add(*d, sum));
        let best = |q: &[f32]| document.chunks(dimensions).map(|d| product(q, d)).fold(f32::NEG_INFINITY, f32::max);
        query.chunks(dimensions).map(|q| f64::from(best(q))).sum()
    }

    #[test]
    fn scores_equal_the_definition_for_any_number_of_tokens() {
        for dimensions in [1, 16, 96, 128] {
            for asked in [1, 5, 16, 31, 32, 33, 64, 100] {
                let query = numbers(asked * dimensions, 1);
                let prepared = Query::new(&query, dimensions);
                for tokens in [1, 2, 3, 7, 8, 50, 181] {
                    let document = numbers(tokens * dimensions, tokens);
                    let (found, truth) = (prepared.score(&document), by_definition(&query, &document, dimensions));
                    // Without fused additions the last bits differ.
                    assert!((found - truth).abs() <= 1e-5 * truth.abs().max(1.0), "{dimensions} {asked} {tokens}");
                }
            }
        }
    }

    #[test]
    fn no_tokens_score_below_everything() {
        let query = Query::new(&numbers(64, 3), 32);
        assert_eq!(query.score(&[]), f64::NEG_INFINITY);
        assert!(query.score(&[-1e30; 32]) > f64::NEG_INFINITY);
        assert!(Query::new(&[], 32).is_empty() && !query.is_empty());
    }
}
