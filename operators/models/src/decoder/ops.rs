//! The decoder's operations on tensors, all differentiable; candle's own fast ones silently lose the gradient.

use candle_core::{D, DType, Result, Tensor};

use super::rope::Angles;

/// Computes the root-mean-square norm over the last dimension, times `weight`.
pub(super) fn rms_norm(rows: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let wide = rows.to_dtype(DType::F32)?;
    let root = (wide.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
    wide.broadcast_div(&root)?.to_dtype(rows.dtype())?.broadcast_mul(&weight.to_dtype(rows.dtype())?)
}

/// Rotates heads (rows × columns × heads × size) by the angles of their tokens.
pub(super) fn rotate(heads: &Tensor, angles: &Angles) -> Result<Tensor> {
    let (rows, columns, _, size) = heads.dims4()?;
    let (cosines, sines) = angles.tables(heads.device(), heads.dtype())?;
    let shape = (rows, columns, 1, size / 2);
    let (cosines, sines) = (cosines.reshape(shape)?, sines.reshape(shape)?);
    let (left, right) = (heads.narrow(D::Minus1, 0, size / 2)?, heads.narrow(D::Minus1, size / 2, size / 2)?);
    let turned_left = (left.broadcast_mul(&cosines)? - right.broadcast_mul(&sines)?)?;
    let turned_right = (right.broadcast_mul(&cosines)? + left.broadcast_mul(&sines)?)?;
    Tensor::cat(&[turned_left, turned_right], D::Minus1)
}

/// Returns the log-probability of each target given its row of logits (targets × vocabulary). Differentiable in the logits.
pub fn log_probabilities(logits: &Tensor, targets: &[u32]) -> Result<Tensor> {
    let (rows, vocabulary) = logits.dims2()?;
    if rows != targets.len() || targets.iter().any(|target| *target as usize >= vocabulary) {
        candle_core::bail!("{} targets do not fit {rows} rows of {vocabulary} logits", targets.len());
    }
    let wide = logits.to_dtype(DType::F32)?;
    let highest = wide.max_keepdim(D::Minus1)?.detach();
    let shifted = wide.broadcast_sub(&highest)?;
    let whole = shifted.exp()?.sum(D::Minus1)?.log()?;
    let targets = Tensor::from_slice(targets, (rows, 1), logits.device())?;
    shifted.gather(&targets, 1)?.squeeze(1)? - whole
}
