//! Attention by tensor operations, on any device and in any precision. As on the CPU, scores are computed block by block and
//! recomputed in the backward pass, so memory is bounded for texts of any length.

use candle_core::{CpuStorage, CudaStorage, CustomOp3, D, DType, Layout as Place, Result, Shape, Tensor};
use searchmill_kernels::attention::Heads;

use super::layout::Layout;
use super::precomputed::Precomputed;

/// Scores held in memory at a time.
const SCORES: usize = 1 << 27;

/// Computes the attention of queries (rows × columns × heads × size) to keys and values (rows × keys × key heads × size),
/// grouped-query (Ainslie et al. 2023, arXiv:2305.13245). Returns rows × columns × heads × size.
pub(super) fn attend(queries: &Tensor, keys: &Tensor, values: &Tensor, layout: &Layout) -> Result<Tensor> {
    attend_in_blocks(queries, keys, values, layout, SCORES)
}

fn attend_in_blocks(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    layout: &Layout,
    scores: usize,
) -> Result<Tensor> {
    let shape = heads_of(queries, keys)?;
    let width = (shape.rows * shape.heads * shape.keys).max(1);
    let block = (scores / width).clamp(1, shape.columns.max(1));
    let attention = TensorAttention { layout: layout.clone(), shape, block };
    let arranged = attention.arranged(&queries.detach(), &keys.detach(), &values.detach())?;
    let out = attention.forward(&arranged)?;
    // Without gradients, the operation need not be in the graph.
    if [queries, keys, values].iter().all(|tensor| !tensor.track_op()) {
        return Ok(out);
    }
    queries.apply_op3(keys, values, Attended { attention, out: Precomputed::new(out) })
}

/// Shape of an attention.
fn heads_of(queries: &Tensor, keys: &Tensor) -> Result<Heads> {
    let (rows, columns, heads, size) = queries.dims4()?;
    let (_, keys, shared, _) = keys.dims4()?;
    Ok(Heads { rows, columns, heads, size, keys, shared })
}

struct TensorAttention {
    layout: Layout,
    shape: Heads,
    /// Returns the number of queries whose scores are held at a time.
    block: usize,
}

/// Queries (rows × key heads × group × columns × size), keys and values (rows × key heads × keys × size).
struct Arranged {
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
}

/// A block of queries: first query, count, and the keys that any of them sees.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    count: usize,
    start: usize,
    width: usize,
}

impl TensorAttention {
    fn arranged(&self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Arranged> {
        let queries = self.split(queries)?;
        let (keys, values) = (keys.transpose(1, 2)?.contiguous()?, values.transpose(1, 2)?.contiguous()?);
        Ok(Arranged { queries, keys, values })
    }

    /// Converts rows × columns × heads × size to rows × key heads × group × columns × size.
    fn split(&self, heads: &Tensor) -> Result<Tensor> {
        let s = &self.shape;
        let heads = heads.reshape((s.rows, s.columns, s.shared, s.group(), s.size))?;
        heads.permute((0, 2, 3, 1, 4))?.contiguous()
    }

    /// Reverses [`Self::split`].
    fn join(&self, parts: &[Tensor]) -> Result<Tensor> {
        let s = &self.shape;
        let all = Tensor::cat(parts, 3)?.permute((0, 3, 1, 2, 4))?.contiguous()?;
        all.reshape((s.rows, s.columns, s.heads, s.size))
    }

    fn blocks(&self) -> Vec<Block> {
        let columns = self.shape.columns;
        let mut blocks = Vec::new();
        for first in (0..columns).step_by(self.block) {
            let count = self.block.min(columns - first);
            // The same keys for all rows, so that a block is one product.
            let (mut start, mut end) = (u32::MAX, 0);
            for span in self.layout.spans.chunks(columns).flat_map(|row| &row[first..first + count]) {
                start = span.start.min(start);
                end = span.end.max(end);
            }
            blocks.push(Block { first, count, start: start as usize, width: (end - start) as usize });
        }
        blocks
    }

    /// Returns a block of queries, grouped by key head: rows × key heads × (group · count) × size.
    fn queries(&self, split: &Tensor, block: Block) -> Result<Tensor> {
        let s = &self.shape;
        let part = split.narrow(3, block.first, block.count)?.contiguous()?;
        part.reshape((s.rows, s.shared, s.group() * block.count, s.size))
    }

    /// Returns the attention weights of a block in f32: rows × key heads × (group · count) × width.
    fn shares(&self, queries: &Tensor, keys: &Tensor, block: Block) -> Result<Tensor> {
        let s = &self.shape;
        // In f32, whatever the precision: bf16 has too few digits for a sum of many powers.
        let scores = queries.matmul(&keys.t()?)?.to_dtype(DType::F32)?;
        let scores = (scores * f64::from(s.scale()))?;
        let scores = scores.reshape((s.rows, s.shared, s.group(), block.count, block.width))?;
        let scores = scores.broadcast_add(&self.bias(block, queries)?)?;
        let powers = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let shares = powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)?;
        shares.reshape((s.rows, s.shared, s.group() * block.count, block.width))
    }

    /// Returns the mask: 0 where a token sees a key, else a bias that no score can outweigh; rows × 1 × 1 × count × width.
    fn bias(&self, block: Block, like: &Tensor) -> Result<Tensor> {
        let (starts, ends) = self.layout.seen(like.device())?;
        let keys = Tensor::arange(block.start as u32, (block.start + block.width) as u32, like.device())?;
        let keys = keys.reshape((1, 1, block.width))?;
        let starts = starts.narrow(1, block.first, block.count)?.unsqueeze(2)?;
        let ends = ends.narrow(1, block.first, block.count)?.unsqueeze(2)?;
        let sees = (keys.broadcast_ge(&starts)? * keys.broadcast_lt(&ends)?)?;
        sees.to_dtype(DType::F32)?.affine(HIDDEN, -HIDDEN)?.unsqueeze(1)?.unsqueeze(1)
    }

    fn forward(&self, arranged: &Arranged) -> Result<Tensor> {
        let s = &self.shape;
        let mut parts = Vec::new();
        for block in self.blocks() {
            let queries = self.queries(&arranged.queries, block)?;
            let keys = arranged.keys.narrow(2, block.start, block.width)?;
            let values = arranged.values.narrow(2, block.start, block.width)?;
            let shares = self.shares(&queries, &keys, block)?.to_dtype(values.dtype())?;
            parts.push(shares.matmul(&values)?.reshape((s.rows, s.shared, s.group(), block.count, s.size))?);
        }
        self.join(&parts)
    }

    /// Returns the gradients of queries, keys and values.
    fn backward(&self, arranged: &Arranged, gradient: &Tensor) -> Result<[Tensor; 3]> {
        let s = &self.shape;
        let gradient = self.split(gradient)?;
        let dtype = gradient.dtype();
        // Keys are seen from several blocks: their gradients are added in f32, whatever the precision.
        let of_keys = Tensor::zeros((s.rows, s.shared, s.keys, s.size), DType::F32, gradient.device())?;
        let (of_values, mut of_queries) = (of_keys.zeros_like()?, Vec::new());
        for block in self.blocks() {
            let queries = self.queries(&arranged.queries, block)?;
            let keys = arranged.keys.narrow(2, block.start, block.width)?;
            let values = arranged.values.narrow(2, block.start, block.width)?;
            let gradient = self.queries(&gradient, block)?;
            // Computed again: stored, they would take the memory that blocks save.
            let shares = self.shares(&queries, &keys, block)?;
            add(&of_values, &shares.to_dtype(dtype)?.t()?.matmul(&gradient)?, block.start)?;
            let inner = gradient.matmul(&values.t()?)?.to_dtype(DType::F32)?;
            let whole = (&inner * &shares)?.sum_keepdim(D::Minus1)?;
            let inner = ((inner.broadcast_sub(&whole)? * shares)? * f64::from(s.scale()))?.to_dtype(dtype)?;
            of_queries.push(inner.matmul(&keys)?.reshape((s.rows, s.shared, s.group(), block.count, s.size))?);
            add(&of_keys, &inner.t()?.matmul(&queries)?, block.start)?;
        }
        let of_queries = self.join(&of_queries)?;
        let keys = of_keys.to_dtype(dtype)?.transpose(1, 2)?.contiguous()?;
        drop(of_keys);
        Ok([of_queries, keys, of_values.to_dtype(dtype)?.transpose(1, 2)?.contiguous()?])
    }
}

const HIDDEN: f64 = 1e30;

/// Adds to the keys from `start`, in place.
fn add(sums: &Tensor, more: &Tensor, start: usize) -> Result<()> {
    let old = sums.narrow(2, start, more.dim(2)?)?;
    sums.slice_set(&(old + more.to_dtype(DType::F32)?)?.contiguous()?, 2, start)
}

/// The operation in the graph, with its precomputed result.
struct Attended {
    attention: TensorAttention,
    out: Precomputed,
}

impl CustomOp3 for Attended {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Place,
        _: &CpuStorage,
        _: &Place,
        _: &CpuStorage,
        _: &Place,
    ) -> Result<(CpuStorage, Shape)> {
        self.out.on_cpu()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Place,
        _: &CudaStorage,
        _: &Place,
        _: &CudaStorage,
        _: &Place,
    ) -> Result<(CudaStorage, Shape)> {
        self.out.on_cuda()
    }

    fn bwd(
        &self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let arranged = self.attention.arranged(&queries.detach(), &keys.detach(), &values.detach())?;
        let [of_queries, of_keys, of_values] = self.attention.backward(&arranged, &gradient.detach())?;
        Ok((Some(of_queries), Some(of_keys), Some(of_values)))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use searchmill_kernels::attention::Attention;

    use super::*;

    fn random(shape: (usize, usize, usize, usize), seed: u32) -> Var {
        let count = shape.0 * shape.1 * shape.2 * shape.3;
        let numbers: Vec<f32> =
            (0..count as u32).map(|n| ((n.wrapping_mul(2_654_435_761) ^ seed) % 2000) as f32 / 1000.0 - 1.0).collect();
        Var::from_tensor(&Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap()).unwrap()
    }

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn close(one: &[f32], other: &Tensor) {
        let other = numbers(other);
        assert_eq!(one.len(), other.len());
        let difference = one.iter().zip(&other).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(difference < 2e-5, "{difference}");
    }

    /// The loops and the tensor operations (in blocks of queries) agree, including gradients.
    #[test]
    fn both_ways_agree() {
        let (queries, keys, values) = (random((2, 150, 4, 8), 1), random((2, 150, 2, 8), 2), random((2, 150, 2, 8), 3));
        let weight = random((2, 150, 4, 8), 4);
        let [q, k, v, w] = [&queries, &keys, &values, &weight].map(|var| numbers(var));
        let segments: Vec<u32> = (0..300).map(|n| n / 40 + 1).collect();
        for layout in [Layout::packed(&segments, 150), Layout::whole(2, 150)] {
            let loops = Attention { spans: &layout.spans, shape: heads_of(&queries, &keys).unwrap() };
            let tensors = attend_in_blocks(&queries, &keys, &values, &layout, 70_000).unwrap();
            close(&loops.forward(&q, &k, &v), &tensors);
            let gradients = (tensors * weight.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
            for (loops, var) in loops.backward(&q, &k, &v, &w).iter().zip([&queries, &keys, &values]) {
                close(loops, gradients.get(var).unwrap());
            }
        }
    }
}
