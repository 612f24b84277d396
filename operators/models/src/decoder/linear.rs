//! Linear maps with an optional low-rank adapter.

use candle_core::{CpuStorage, CudaStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};

use super::dropout::Dropout;
use super::precomputed::Precomputed;

/// `x · weightᵀ + bias`, plus a low-rank adapter.
#[derive(Clone)]
pub struct Linear {
    /// Outputs × inputs.
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub adapter: Option<LowRank>,
}

/// A low-rank adapter (Hu et al. 2021, arXiv:2106.09685): `scale · dropout(x) · aᵀ · bᵀ`.
#[derive(Clone)]
pub struct LowRank {
    /// Rank × inputs.
    pub a: Tensor,
    /// Outputs × rank.
    pub b: Tensor,
    pub scale: f64,
    /// Share of the inputs dropped in training.
    pub dropout: f64,
    /// Number among the model's adapters; decides which inputs are dropped.
    pub number: u64,
}

impl Linear {
    /// Computes rows × inputs to rows × outputs. `dropout` is set only in training.
    pub fn forward(&self, rows: &Tensor, dropout: Option<&Dropout>) -> Result<Tensor> {
        // Weights of a full training are f32, and the rows may be bf16.
        let mut out = product(rows, &self.weight)?;
        if let Some(bias) = &self.bias {
            out = out.broadcast_add(&bias.to_dtype(out.dtype())?)?;
        }
        match &self.adapter {
            Some(adapter) => out + adapter.forward(rows, dropout)?,
            None => Ok(out),
        }
    }

    /// Returns the weight with the adapter merged into it.
    pub fn merged(&self) -> Result<Tensor> {
        match &self.adapter {
            None => Ok(self.weight.clone()),
            Some(adapter) => {
                let added =
                    (adapter.b.to_dtype(DType::F32)?.matmul(&adapter.a.to_dtype(DType::F32)?)? * adapter.scale)?;
                (self.weight.to_dtype(DType::F32)? + added)?.to_dtype(self.weight.dtype())
            }
        }
    }
}

/// Computes `rows · weightᵀ` in the precision of the rows. No gradient is computed for a frozen weight; candle's own product
/// would compute it, which is a third of the work of training an adapter.
pub fn product(rows: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let weight = weight.to_dtype(rows.dtype())?;
    if weight.track_op() || !rows.track_op() {
        return rows.matmul(&weight.t()?);
    }
    let out = Precomputed::new(rows.detach().matmul(&weight.t()?)?);
    rows.apply_op1(Frozen { weight, out })
}

/// A product with a frozen weight, whose result has been computed.
struct Frozen {
    weight: Tensor,
    out: Precomputed,
}

impl CustomOp1 for Frozen {
    fn name(&self) -> &'static str {
        "frozen-linear"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.out.on_cpu()
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.out.on_cuda()
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(gradient.matmul(&self.weight)?))
    }
}

impl LowRank {
    /// Computes in the precision of the rows, also for an f32 adapter on a bf16 model; the gradients of the adapter are f32.
    fn forward(&self, rows: &Tensor, dropout: Option<&Dropout>) -> Result<Tensor> {
        let (a, b) = (self.a.to_dtype(rows.dtype())?.t()?, self.b.to_dtype(rows.dtype())?.t()?);
        let narrow = match dropout {
            Some(dropout) if self.dropout > 0.0 => dropout.apply(rows, self.dropout, self.number)?.matmul(&a)?,
            _ => rows.matmul(&a)?,
        };
        narrow.matmul(&b)? * self.scale
    }
}
