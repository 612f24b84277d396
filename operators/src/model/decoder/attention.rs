//! Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) over runs of keys, without ever holding all scores:
//! they are made block by block, and made again on the way back.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout as Place, Result, Shape, Tensor};
use rayon::prelude::*;

use super::layout::{Layout, Span};
use super::ops::{is_plain, like, operand, with_numbers};
use super::{loops, tensor_attention};
use crate::model::matrix::{View, multiply};

/// Queries whose scores are held at once.
const BLOCK: usize = 64;

/// What each query's keys say: queries (rows × columns × heads × size), keys and values (rows × keys × fewer heads ×
/// size) to rows × columns × heads × size.
pub(super) fn attend(queries: &Tensor, keys: &Tensor, values: &Tensor, layout: &Layout) -> Result<Tensor> {
    if is_plain(queries) {
        let attention = Attention { spans: Arc::clone(&layout.spans), shape: Heads::of(queries, keys)? };
        return queries.contiguous()?.apply_op3(&keys.contiguous()?, &values.contiguous()?, attention);
    }
    tensor_attention::attend(queries, keys, values, layout)
}

#[expect(clippy::struct_field_names, reason = "rows, columns and heads of a tensor")]
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) heads: usize,
    pub(super) size: usize,
    pub(super) keys: usize,
    pub(super) shared: usize,
}

impl Heads {
    pub(super) fn of(queries: &Tensor, keys: &Tensor) -> Result<Self> {
        let (rows, columns, heads, size) = queries.dims4()?;
        let (_, keys, shared, _) = keys.dims4()?;
        Ok(Self { rows, columns, heads, size, keys, shared })
    }

    /// Query heads that share a head of keys.
    pub(super) fn group(&self) -> usize {
        self.heads / self.shared
    }

    pub(super) fn scale(&self) -> f32 {
        1.0 / (self.size as f32).sqrt()
    }

    /// Row and key head of each task.
    fn tasks(&self) -> impl IndexedParallelIterator<Item = (usize, usize)> + use<> {
        let shared = self.shared;
        (0..self.rows * shared).into_par_iter().map(move |task| (task / shared, task % shared))
    }

    /// `count` queries of a head from `first` on.
    fn queries<'a>(&self, numbers: &'a [f32], row: usize, head: usize, first: usize, count: usize) -> View<'a> {
        let width = self.heads * self.size;
        View::strided(numbers, (row * self.columns + first) * width + head * self.size, (count, self.size), width)
    }

    /// `count` keys or values of a head from `first` on.
    fn keys<'a>(&self, numbers: &'a [f32], row: usize, head: usize, first: usize, count: usize) -> View<'a> {
        let width = self.shared * self.size;
        View::strided(numbers, (row * self.keys + first) * width + head * self.size, (count, self.size), width)
    }

    /// Puts the numbers of heads, each `count` × size, side by side: rows × count × heads × size.
    fn weave(&self, parts: &[Vec<f32>], heads: usize, count: usize) -> Vec<f32> {
        let width = heads * self.size;
        let mut out = vec![0.0; self.rows * count * width];
        out.par_chunks_mut(count * width).enumerate().for_each(|(row, out)| {
            let parts = &parts[row * self.shared..(row + 1) * self.shared];
            let each = parts.iter().flat_map(|part| part.chunks_exact(count * self.size)).enumerate();
            for (head, part) in each {
                for (token, numbers) in part.chunks_exact(self.size).enumerate() {
                    out[token * width + head * self.size..][..self.size].copy_from_slice(numbers);
                }
            }
        });
        out
    }
}

struct Attention {
    spans: Arc<[Span]>,
    shape: Heads,
}

/// A block of queries and the keys that any of them sees.
struct Block<'a> {
    first: usize,
    count: usize,
    spans: &'a [Span],
    start: usize,
    width: usize,
}

impl Attention {
    fn blocks(&self, row: usize) -> impl Iterator<Item = Block<'_>> {
        let columns = self.shape.columns;
        self.spans[row * columns..(row + 1) * columns].chunks(BLOCK).enumerate().map(|(number, spans)| {
            let start = spans.iter().map(|span| span.start).min().unwrap_or(0) as usize;
            let end = spans.iter().map(|span| span.end).max().unwrap_or(0) as usize;
            Block { first: number * BLOCK, count: spans.len(), spans, start, width: end - start }
        })
    }

    /// How much each query of a block heeds each key.
    fn shares(&self, block: &Block<'_>, queries: &View<'_>, keys: &View<'_>, scores: &mut Vec<f32>) {
        scores.clear();
        scores.resize(block.count * block.width, 0.0);
        multiply(scores, (block.width, 0), queries, &keys.transposed(), self.shape.scale(), false);
        loops::masked_softmax(scores, block.width, block.spans, block.start as u32);
    }

    /// One key head's part of the result: for each of its query heads, columns × size.
    fn forward(&self, (row, shared): (usize, usize), [queries, keys, values]: [&[f32]; 3]) -> Vec<f32> {
        let shape = &self.shape;
        let head_numbers = shape.columns * shape.size;
        let mut out = vec![0.0; shape.group() * head_numbers];
        let mut scores = Vec::new();
        for block in self.blocks(row) {
            let seen = shape.keys(keys, row, shared, block.start, block.width);
            let said = shape.keys(values, row, shared, block.start, block.width);
            for member in 0..shape.group() {
                let head = shared * shape.group() + member;
                let asked = shape.queries(queries, row, head, block.first, block.count);
                self.shares(&block, &asked, &seen, &mut scores);
                let shares = View::new(&scores, block.count, block.width);
                let place = member * head_numbers + block.first * shape.size;
                multiply(&mut out, (shape.size, place), &shares, &said, 1.0, false);
            }
        }
        out
    }

    /// The gradients of one key head: of its queries (as in [`Self::forward`]), keys and values (keys × size).
    fn backward(&self, (row, shared): (usize, usize), given: [&[f32]; 4]) -> [Vec<f32>; 3] {
        let [queries, keys, values, gradients] = given;
        let shape = &self.shape;
        let (size, head_numbers) = (shape.size, shape.columns * shape.size);
        let mut out =
            [shape.group() * head_numbers, shape.keys * size, shape.keys * size].map(|count| vec![0.0; count]);
        let [of_queries, of_keys, of_values] = &mut out;
        let (mut shares, mut inner) = (Vec::new(), Vec::new());
        for block in self.blocks(row) {
            let seen = shape.keys(keys, row, shared, block.start, block.width);
            let said = shape.keys(values, row, shared, block.start, block.width);
            for member in 0..shape.group() {
                let head = shared * shape.group() + member;
                let asked = shape.queries(queries, row, head, block.first, block.count);
                let gradient = shape.queries(gradients, row, head, block.first, block.count);
                self.shares(&block, &asked, &seen, &mut shares);
                let view = View::new(&shares, block.count, block.width);
                multiply(of_values, (size, block.start * size), &view.transposed(), &gradient, 1.0, true);
                inner.clear();
                inner.resize(shares.len(), 0.0);
                multiply(&mut inner, (block.width, 0), &gradient, &said.transposed(), 1.0, false);
                loops::softmax_backward(&shares, &mut inner, block.width, shape.scale());
                let inner = View::new(&inner, block.count, block.width);
                multiply(of_queries, (size, member * head_numbers + block.first * size), &inner, &seen, 1.0, false);
                multiply(of_keys, (size, block.start * size), &inner.transposed(), &asked, 1.0, true);
            }
        }
        out
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        queries: &CpuStorage,
        l1: &Place,
        keys: &CpuStorage,
        l2: &Place,
        values: &CpuStorage,
        l3: &Place,
    ) -> Result<(CpuStorage, Shape)> {
        let given = [operand(queries, l1)?, operand(keys, l2)?, operand(values, l3)?];
        let parts: Vec<_> = self.shape.tasks().map(|task| self.forward(task, given)).collect();
        let out = self.shape.weave(&parts, self.shape.heads, self.shape.columns);
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }

    fn bwd(
        &self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let shape = &self.shape;
        let parts: Vec<[Vec<f32>; 3]> = with_numbers([queries, keys, values, gradient], |given| {
            shape.tasks().map(|task| self.backward(task, given)).collect()
        })?;
        let (mut of_queries, mut of_keys, mut of_values) = (Vec::new(), Vec::new(), Vec::new());
        for [one, two, three] in parts {
            of_queries.push(one);
            of_keys.push(two);
            of_values.push(three);
        }
        let of_queries = like(shape.weave(&of_queries, shape.heads, shape.columns), queries)?;
        let of_keys = like(shape.weave(&of_keys, shape.shared, shape.keys), keys)?;
        let of_values = like(shape.weave(&of_values, shape.shared, shape.keys), values)?;
        Ok((Some(of_queries), Some(of_keys), Some(of_values)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Side;
    use super::*;
    use candle_core::{Device, Var};

    fn random(shape: (usize, usize, usize, usize), seed: u32) -> Var {
        let count = shape.0 * shape.1 * shape.2 * shape.3;
        let numbers: Vec<f32> =
            (0..count as u32).map(|n| ((n.wrapping_mul(2_654_435_761) ^ seed) % 2000) as f32 / 1000.0 - 1.0).collect();
        Var::from_tensor(&Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap()).unwrap()
    }

    fn close(one: &Tensor, two: &Tensor) {
        let difference = (one - two).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(difference < 2e-5, "{difference}");
    }

    /// The loops and the tensor operations (in blocks of some queries) agree, gradients too.
    #[test]
    fn both_ways_agree() {
        let (queries, keys, values) = (random((2, 150, 4, 8), 1), random((2, 150, 2, 8), 2), random((2, 150, 2, 8), 3));
        let weight = random((2, 150, 4, 8), 4);
        let segments: Vec<u32> = (0..300).map(|n| n / 40 + 1).collect();
        let layouts =
            [Layout::padded(&[150, 90], 150, Side::Left), Layout::packed(&segments, 150), Layout::whole(2, 150)];
        for layout in layouts {
            let fused = attend(&queries, &keys, &values, &layout).unwrap();
            let plain = tensor_attention::attend_in_blocks(&queries, &keys, &values, &layout, 70_000).unwrap();
            close(&fused, &plain);
            let backward = |out: Tensor| (out * weight.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
            let (fused, plain) = (backward(fused), backward(plain));
            for var in [&queries, &keys, &values] {
                close(fused.get(var).unwrap(), plain.get(var).unwrap());
            }
        }
    }
}
