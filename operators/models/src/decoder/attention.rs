//! Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) as a tensor operation: by the loops of
//! [`searchmill_kernels::attention`] in f32 on the CPU, by tensor operations elsewhere.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout as Place, Result, Shape, Tensor};
use searchmill_kernels::attention::{self, Heads, Span};

use super::layout::Layout;
use super::ops::{is_plain, like, operand, with_numbers};
use super::tensor_attention::{self, heads_of};

/// Computes the attention of queries (rows × columns × heads × size) to keys and values (rows × keys × key heads × size).
/// Returns rows × columns × heads × size.
pub(super) fn attend(queries: &Tensor, keys: &Tensor, values: &Tensor, layout: &Layout) -> Result<Tensor> {
    if is_plain(queries) {
        let attention = Attention { spans: Arc::clone(&layout.spans), shape: heads_of(queries, keys)? };
        return queries.contiguous()?.apply_op3(&keys.contiguous()?, &values.contiguous()?, attention);
    }
    tensor_attention::attend(queries, keys, values, layout)
}

struct Attention {
    spans: Arc<[Span]>,
    shape: Heads,
}

impl Attention {
    fn loops(&self) -> attention::Attention<'_> {
        attention::Attention { spans: &self.spans, shape: self.shape }
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
        let out = self.loops().forward(operand(queries, l1)?, operand(keys, l2)?, operand(values, l3)?);
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
        let [of_queries, of_keys, of_values] =
            with_numbers([queries, keys, values, gradient], |[queries, keys, values, gradient]| {
                self.loops().backward(queries, keys, values, gradient)
            })?;
        Ok((Some(like(of_queries, queries)?), Some(like(of_keys, keys)?), Some(like(of_values, values)?)))
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

    /// The loops and the tensor operations (in blocks of queries) agree, including gradients.
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
