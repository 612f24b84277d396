//! The decoder's tensor operations, all differentiable; candle's own fast ones silently lose the gradient.
//!
//! In f32 on the CPU each is one vectorised, multi-threaded operation with its own backward pass; elsewhere it is composed of
//! plain tensor operations.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, D, DType, Layout, Result, Shape, Storage, Tensor};
use rayon::prelude::*;
use searchmill_kernels::loops;

use super::rope::Angles;

/// Rows per task. Fixed, so that sums over rows do not depend on the number of threads.
const ROWS: usize = 32;

/// Whether a tensor is f32 on the CPU.
pub(super) fn is_plain(tensor: &Tensor) -> bool {
    tensor.device().is_cpu() && tensor.dtype() == DType::F32
}

/// Returns the numbers of a contiguous operand.
pub(super) fn operand<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let Some((start, end)) = layout.contiguous_offsets() else { candle_core::bail!("the operand is not contiguous") };
    Ok(&storage.as_slice::<f32>()?[start..end])
}

/// Calls `read` with the numbers of contiguous f32 tensors on the CPU.
pub(super) fn with_numbers<const N: usize, R>(tensors: [&Tensor; N], read: impl FnOnce([&[f32]; N]) -> R) -> Result<R> {
    let mut whole = Vec::with_capacity(N);
    for tensor in tensors {
        whole.push(tensor.contiguous()?);
    }
    let guards: Vec<_> = whole.iter().map(Tensor::storage_and_layout).collect();
    let mut numbers: [&[f32]; N] = [&[]; N];
    for (slot, (storage, layout)) in numbers.iter_mut().zip(&guards) {
        let Storage::Cpu(cpu) = &**storage else { candle_core::bail!("the tensor is not on the CPU") };
        *slot = operand(cpu, layout)?;
    }
    Ok(read(numbers))
}

/// Returns a tensor of these numbers with the shape and device of `like`.
pub(super) fn like(numbers: Vec<f32>, like: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(numbers, like.shape(), like.device())
}

/// Computes the root-mean-square norm over the last dimension, times `weight`.
pub(crate) fn rms_norm(rows: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    if is_plain(rows) && is_plain(weight) {
        return rows.contiguous()?.apply_op2(&weight.contiguous()?, RmsNorm { eps: eps as f32 });
    }
    let wide = rows.to_dtype(DType::F32)?;
    let root = (wide.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
    wide.broadcast_div(&root)?.to_dtype(rows.dtype())?.broadcast_mul(&weight.to_dtype(rows.dtype())?)
}

struct RmsNorm {
    eps: f32,
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, rows: &CpuStorage, l1: &Layout, weight: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, weight) = (operand(rows, l1)?, operand(weight, l2)?);
        let (mut out, block) = (vec![0.0; rows.len()], ROWS * weight.len());
        out.par_chunks_mut(block)
            .zip(rows.par_chunks(block))
            .for_each(|(out, rows)| loops::rms_norm(rows, weight, self.eps, out));
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }

    fn bwd(
        &self,
        rows: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (row_gradients, weight_gradient) = with_numbers([rows, weight, gradient], |[rows, weight, gradient]| {
            let (width, block) = (weight.len(), ROWS * weight.len());
            let mut row_gradients = vec![0.0; rows.len()];
            let mut partial = vec![0.0; rows.len().div_ceil(block) * width];
            let given = rows.par_chunks(block).zip(gradient.par_chunks(block));
            let wanted = row_gradients.par_chunks_mut(block).zip(partial.par_chunks_mut(width));
            given.zip(wanted).for_each(|((rows, gradient), (out, sums))| {
                loops::rms_norm_backward((rows, weight, self.eps), gradient, out, sums);
            });
            let mut whole = vec![0.0; width];
            for sums in partial.chunks(width) {
                whole.iter_mut().zip(sums).for_each(|(whole, sum)| *whole += sum);
            }
            (row_gradients, whole)
        })?;
        Ok((Some(like(row_gradients, rows)?), Some(like(weight_gradient, weight)?)))
    }
}

/// Computes SiLU of `gate` times `up`.
pub(crate) fn silu_product(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if is_plain(gate) && is_plain(up) {
        return gate.contiguous()?.apply_op2(&up.contiguous()?, SiluProduct);
    }
    gate.silu()? * up
}

struct SiluProduct;

/// Numbers per task.
const NUMBERS: usize = 1 << 14;

impl CustomOp2 for SiluProduct {
    fn name(&self) -> &'static str {
        "silu-product"
    }

    fn cpu_fwd(&self, gate: &CpuStorage, l1: &Layout, up: &CpuStorage, l2: &Layout) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (operand(gate, l1)?, operand(up, l2)?);
        let mut out = vec![0.0; gate.len()];
        let given = gate.par_chunks(NUMBERS).zip(up.par_chunks(NUMBERS));
        out.par_chunks_mut(NUMBERS).zip(given).for_each(|(out, (gate, up))| loops::silu_product(gate, up, out));
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }

    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (of_gate, of_up) = with_numbers([gate, up, gradient], |[gate, up, gradient]| {
            let (mut of_gate, mut of_up) = (vec![0.0; gate.len()], vec![0.0; up.len()]);
            let given = gate.par_chunks(NUMBERS).zip(up.par_chunks(NUMBERS)).zip(gradient.par_chunks(NUMBERS));
            let wanted = of_gate.par_chunks_mut(NUMBERS).zip(of_up.par_chunks_mut(NUMBERS));
            given.zip(wanted).for_each(|(((gate, up), gradient), (of_gate, of_up))| {
                loops::silu_product_backward((gate, up), gradient, of_gate, of_up);
            });
            (of_gate, of_up)
        })?;
        Ok((Some(like(of_gate, gate)?), Some(like(of_up, up)?)))
    }
}

/// Rotates heads (rows × columns × heads × size) by the angles of their tokens.
pub(crate) fn rotate(heads: &Tensor, angles: &Arc<Angles>) -> Result<Tensor> {
    if is_plain(heads) {
        return heads.contiguous()?.apply_op1(Rotation { angles: Arc::clone(angles), back: false });
    }
    let (rows, columns, _, size) = heads.dims4()?;
    let (cosines, sines) = angles.tables(heads.device(), heads.dtype())?;
    let spread = |table: Tensor| table.reshape((rows, columns, 1, size / 2));
    let (cosines, sines) = (spread(cosines)?, spread(sines)?);
    let (left, right) = (heads.narrow(D::Minus1, 0, size / 2)?, heads.narrow(D::Minus1, size / 2, size / 2)?);
    let turned_left = (left.broadcast_mul(&cosines)? - right.broadcast_mul(&sines)?)?;
    let turned_right = (right.broadcast_mul(&cosines)? + left.broadcast_mul(&sines)?)?;
    Tensor::cat(&[turned_left, turned_right], D::Minus1)
}

struct Rotation {
    angles: Arc<Angles>,
    back: bool,
}

impl CustomOp1 for Rotation {
    fn name(&self) -> &'static str {
        "rotation"
    }

    fn cpu_fwd(&self, heads: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let heads = operand(heads, layout)?;
        let dims = layout.dims();
        let width = dims[dims.len() - 2] * dims[dims.len() - 1];
        let (mut out, block) = (vec![0.0; heads.len()], ROWS * width);
        out.par_chunks_mut(block).zip(heads.par_chunks(block)).enumerate().for_each(|(number, (out, heads))| {
            loops::rotate(heads, (width, number * ROWS), self.angles.turns(), self.back, out);
        });
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let back = Rotation { angles: Arc::clone(&self.angles), back: !self.back };
        Ok(Some(gradient.contiguous()?.apply_op1_no_bwd(&back)?))
    }
}

/// Returns the log-probability of each target given its row of logits (targets × vocabulary). Differentiable in the logits.
pub fn log_probabilities(logits: &Tensor, targets: &[u32]) -> Result<Tensor> {
    let (rows, vocabulary) = logits.dims2()?;
    if rows != targets.len() || targets.iter().any(|target| *target as usize >= vocabulary) {
        candle_core::bail!("{} targets do not fit {rows} rows of {vocabulary} logits", targets.len());
    }
    if is_plain(logits) {
        return logits.contiguous()?.apply_op1(LogProbabilities { targets: targets.into() });
    }
    let wide = logits.to_dtype(DType::F32)?;
    let highest = wide.max_keepdim(D::Minus1)?.detach();
    let shifted = wide.broadcast_sub(&highest)?;
    let whole = shifted.exp()?.sum(D::Minus1)?.log()?;
    let targets = Tensor::from_slice(targets, (rows, 1), logits.device())?;
    shifted.gather(&targets, 1)?.squeeze(1)? - whole
}

struct LogProbabilities {
    targets: Arc<[u32]>,
}

impl CustomOp1 for LogProbabilities {
    fn name(&self) -> &'static str {
        "log-probabilities"
    }

    fn cpu_fwd(&self, logits: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let logits = operand(logits, layout)?;
        let block = ROWS * layout.dims()[1];
        let mut out = vec![0.0; self.targets.len()];
        let given = logits.par_chunks(block).zip(self.targets.par_chunks(ROWS));
        out.par_chunks_mut(ROWS).zip(given).for_each(|(out, (logits, targets))| {
            loops::log_probabilities(logits, targets, out);
        });
        Ok((CpuStorage::F32(out), Shape::from(self.targets.len())))
    }

    fn bwd(&self, logits: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let block = ROWS * logits.dim(1)?;
        let out = with_numbers([logits, gradient], |[logits, gradient]| {
            let mut out = vec![0.0; logits.len()];
            let given = logits.par_chunks(block).zip(self.targets.par_chunks(ROWS)).zip(gradient.par_chunks(ROWS));
            out.par_chunks_mut(block).zip(given).for_each(|(out, ((logits, targets), gradient))| {
                loops::log_probabilities_backward(logits, targets, gradient, out);
            });
            out
        })?;
        Ok(Some(like(out, logits)?))
    }
}
