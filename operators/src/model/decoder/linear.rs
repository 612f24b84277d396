//! Linear maps, plain or with a low-rank adapter.

use candle_core::{DType, Result, Tensor};

use super::dropout::Dropout;

/// `x · weightᵀ + bias`, and what an adapter adds.
#[derive(Clone)]
pub(crate) struct Linear {
    /// Outputs × inputs.
    pub(crate) weight: Tensor,
    pub(crate) bias: Option<Tensor>,
    pub(crate) adapter: Option<LowRank>,
}

/// A low-rank addition (Hu et al. 2021, arXiv:2106.09685): `scale · dropout(x) · aᵀ · bᵀ`.
#[derive(Clone)]
pub(crate) struct LowRank {
    /// Rank × inputs.
    pub(crate) a: Tensor,
    /// Outputs × rank.
    pub(crate) b: Tensor,
    pub(crate) scale: f64,
    /// Share of the inputs that is dropped in training.
    pub(crate) dropout: f64,
    /// Its number among the model's adapters: decides which inputs are dropped.
    pub(crate) number: u64,
}

impl Linear {
    /// Rows × inputs to rows × outputs. `dropout` is given in training only.
    pub(crate) fn forward(&self, rows: &Tensor, dropout: Option<&Dropout>) -> Result<Tensor> {
        let mut out = rows.matmul(&self.weight.t()?)?;
        if let Some(bias) = &self.bias {
            out = out.broadcast_add(bias)?;
        }
        match &self.adapter {
            Some(adapter) => out + adapter.forward(rows, dropout)?,
            None => Ok(out),
        }
    }

    /// The weight with the adapter's share in it.
    pub(crate) fn merged(&self) -> Result<Tensor> {
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

impl LowRank {
    /// Computed in the adapter's own precision (f32 adapters on a bf16 model), given back in that of the rows.
    fn forward(&self, rows: &Tensor, dropout: Option<&Dropout>) -> Result<Tensor> {
        let mut kept = rows.to_dtype(self.a.dtype())?;
        if let Some(dropout) = dropout.filter(|_| self.dropout > 0.0) {
            kept = dropout.apply(&kept, self.dropout, self.number)?;
        }
        let added = kept.matmul(&self.a.t()?)?.matmul(&self.b.t()?)?;
        (added * self.scale)?.to_dtype(rows.dtype())
    }
}
