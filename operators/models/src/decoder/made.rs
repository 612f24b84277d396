//! Results of operations whose way back is written by hand: candle calls an operation for its result on each device, and
//! these have computed it with tensor operations before.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, Result, Shape, Storage, Tensor};

/// A result that is taken once; kept no longer, so that it does not lie in memory twice.
pub(super) struct Made(Mutex<Option<Tensor>>);

impl Made {
    /// `out` must be a tensor of its own, not a part of another one.
    pub(super) fn new(out: Tensor) -> Self {
        Self(Mutex::new(Some(out.detach())))
    }

    fn take(&self) -> Result<Tensor> {
        let out = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(out) = out else { candle_core::bail!("the result was taken before") };
        let whole = out.is_contiguous() && out.layout().start_offset() == 0;
        if whole { Ok(out) } else { candle_core::bail!("the result is a part of another tensor") }
    }

    pub(super) fn on_cpu(&self) -> Result<(CpuStorage, Shape)> {
        let out = self.take()?;
        let (storage, layout) = out.storage_and_layout();
        let Storage::Cpu(numbers) = &*storage else { candle_core::bail!("the result is not on the CPU") };
        Ok((numbers.try_clone(layout)?, layout.shape().clone()))
    }

    pub(super) fn on_cuda(&self) -> Result<(CudaStorage, Shape)> {
        let out = self.take()?;
        let (storage, layout) = out.storage_and_layout();
        let Storage::Cuda(numbers) = &*storage else { candle_core::bail!("the result is not on a GPU") };
        Ok((numbers.try_clone(layout)?, layout.shape().clone()))
    }
}
