//! Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) over ranges of keys. Scores are
//! computed block by block and recomputed in the backward pass, so they are never all in memory.

use rayon::prelude::*;

use crate::loops;
pub use crate::loops::Span;
use crate::matrix::{View, multiply};

/// Queries whose scores are held at a time.
const BLOCK: usize = 64;

/// Shape of an attention: `rows` texts of `columns` queries and `keys` keys.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub rows: usize,
    /// Queries per row.
    pub columns: usize,
    /// Query heads.
    pub heads: usize,
    /// Size of a head.
    pub size: usize,
    /// Keys per row.
    pub keys: usize,
    /// Key/value heads.
    pub shared: usize,
}

impl Heads {
    /// Returns the number of query heads per key head.
    pub fn group(&self) -> usize {
        self.heads / self.shared
    }

    /// Returns the factor of the scores.
    pub fn scale(&self) -> f32 {
        1.0 / (self.size as f32).sqrt()
    }

    /// Returns row and key head of each task.
    fn tasks(&self) -> impl IndexedParallelIterator<Item = (usize, usize)> + use<> {
        let shared = self.shared;
        (0..self.rows * shared).into_par_iter().map(move |task| (task / shared, task % shared))
    }

    /// Returns `count` queries of a head, from `first`.
    fn queries<'a>(&self, numbers: &'a [f32], row: usize, head: usize, first: usize, count: usize) -> View<'a> {
        let width = self.heads * self.size;
        let start = (row * self.columns + first) * width + head * self.size;
        View::strided(&numbers[start..], count, self.size, width)
    }

    /// Returns `count` keys or values of a head, from `first`.
    fn keys<'a>(&self, numbers: &'a [f32], row: usize, head: usize, first: usize, count: usize) -> View<'a> {
        let width = self.shared * self.size;
        let start = (row * self.keys + first) * width + head * self.size;
        View::strided(&numbers[start..], count, self.size, width)
    }

    /// Interleaves the heads in this part of each task's result, `count` × size each: rows × count × heads × size.
    fn weave<const N: usize>(&self, parts: &[[Vec<f32>; N]], part: usize, heads: usize, count: usize) -> Vec<f32> {
        let width = heads * self.size;
        let mut out = vec![0.0; self.rows * count * width];
        // Chunks of no size are an error.
        if out.is_empty() {
            return out;
        }
        out.par_chunks_mut(count * width).enumerate().for_each(|(row, out)| {
            let parts = &parts[row * self.shared..(row + 1) * self.shared];
            let each = parts.iter().flat_map(|parts| parts[part].chunks_exact(count * self.size)).enumerate();
            for (head, part) in each {
                for (token, numbers) in part.chunks_exact(self.size).enumerate() {
                    out[token * width + head * self.size..][..self.size].copy_from_slice(numbers);
                }
            }
        });
        out
    }
}

/// An attention in which each query sees a range of keys.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Range of keys of each query, row by row.
    pub spans: &'a [Span],
    pub shape: Heads,
}

/// A block of queries, and the keys that any of them sees.
struct Block<'a> {
    first: usize,
    count: usize,
    spans: &'a [Span],
    start: usize,
    width: usize,
}

impl Attention<'_> {
    /// Computes the attention of queries (rows × columns × heads × size) to keys and values (rows × keys × shared × size).
    /// Returns rows × columns × heads × size.
    pub fn forward(&self, queries: &[f32], keys: &[f32], values: &[f32]) -> Vec<f32> {
        let inputs = [queries, keys, values];
        let parts: Vec<_> = self.shape.tasks().map(|(row, shared)| [self.forward_one(row, shared, inputs)]).collect();
        self.shape.weave(&parts, 0, self.shape.heads, self.shape.columns)
    }

    /// Returns the gradients of queries, keys and values, given that of [`Self::forward`]'s result.
    pub fn backward(&self, queries: &[f32], keys: &[f32], values: &[f32], gradient: &[f32]) -> [Vec<f32>; 3] {
        let inputs = [queries, keys, values, gradient];
        let parts: Vec<[Vec<f32>; 3]> =
            self.shape.tasks().map(|(row, shared)| self.backward_one(row, shared, inputs)).collect();
        let Heads { heads, columns, keys, shared, .. } = self.shape;
        [
            self.shape.weave(&parts, 0, heads, columns),
            self.shape.weave(&parts, 1, shared, keys),
            self.shape.weave(&parts, 2, shared, keys),
        ]
    }

    fn blocks(&self, row: usize) -> impl Iterator<Item = Block<'_>> {
        let columns = self.shape.columns;
        self.spans[row * columns..(row + 1) * columns].chunks(BLOCK).enumerate().map(|(number, spans)| {
            let start = spans.iter().map(|span| span.start).min().unwrap_or(0) as usize;
            let end = spans.iter().map(|span| span.end).max().unwrap_or(0) as usize;
            Block { first: number * BLOCK, count: spans.len(), spans, start, width: end - start }
        })
    }

    /// Returns the attention weights of a block of queries.
    fn shares(&self, block: &Block<'_>, queries: &View<'_>, keys: &View<'_>, scores: &mut Vec<f32>) {
        scores.clear();
        scores.resize(block.count * block.width, 0.0);
        multiply(scores, block.width, queries, &keys.transposed(), self.shape.scale(), false);
        loops::masked_softmax(scores, block.width, block.spans, block.start as u32);
    }

    /// Computes the result of one key head: columns × size for each of its query heads.
    fn forward_one(&self, row: usize, shared: usize, [queries, keys, values]: [&[f32]; 3]) -> Vec<f32> {
        let shape = &self.shape;
        let head_numbers = shape.columns * shape.size;
        let mut out = vec![0.0; shape.group() * head_numbers];
        // One buffer for all blocks.
        let mut scores = Vec::new();
        for block in self.blocks(row) {
            let block_keys = shape.keys(keys, row, shared, block.start, block.width);
            let block_values = shape.keys(values, row, shared, block.start, block.width);
            for member in 0..shape.group() {
                let head = shared * shape.group() + member;
                let block_queries = shape.queries(queries, row, head, block.first, block.count);
                self.shares(&block, &block_queries, &block_keys, &mut scores);
                let shares = View::new(&scores, block.count, block.width);
                let start = member * head_numbers + block.first * shape.size;
                multiply(&mut out[start..], shape.size, &shares, &block_values, 1.0, false);
            }
        }
        out
    }

    /// Returns the gradients of one key head: of its queries (as in [`Self::forward_one`]), keys and values (keys × size).
    fn backward_one(&self, row: usize, shared: usize, inputs: [&[f32]; 4]) -> [Vec<f32>; 3] {
        let [queries, keys, values, gradients] = inputs;
        let shape = &self.shape;
        let (size, head_numbers) = (shape.size, shape.columns * shape.size);
        let mut out =
            [shape.group() * head_numbers, shape.keys * size, shape.keys * size].map(|count| vec![0.0; count]);
        let [of_queries, of_keys, of_values] = &mut out;
        let (mut shares, mut inner) = (Vec::new(), Vec::new());
        for block in self.blocks(row) {
            let block_keys = shape.keys(keys, row, shared, block.start, block.width);
            let block_values = shape.keys(values, row, shared, block.start, block.width);
            for member in 0..shape.group() {
                let head = shared * shape.group() + member;
                let block_queries = shape.queries(queries, row, head, block.first, block.count);
                let gradient = shape.queries(gradients, row, head, block.first, block.count);
                // Computed again, as the forward pass did: stored, they would be as large as all scores.
                self.shares(&block, &block_queries, &block_keys, &mut shares);
                let view = View::new(&shares, block.count, block.width);
                // The queries of several blocks and heads see the same values: their gradients are added.
                multiply(&mut of_values[block.start * size..], size, &view.transposed(), &gradient, 1.0, true);
                inner.clear();
                inner.resize(shares.len(), 0.0);
                multiply(&mut inner, block.width, &gradient, &block_values.transposed(), 1.0, false);
                loops::softmax_backward(&shares, &mut inner, block.width, shape.scale());
                let inner = View::new(&inner, block.count, block.width);
                let start = member * head_numbers + block.first * size;
                multiply(&mut of_queries[start..], size, &inner, &block_keys, 1.0, false);
                multiply(&mut of_keys[block.start * size..], size, &inner.transposed(), &block_queries, 1.0, true);
            }
        }
        out
    }
}
