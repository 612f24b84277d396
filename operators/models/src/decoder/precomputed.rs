//! Precomputed results of operations with a hand-written backward pass. candle asks an operation for its result per device;
//! these operations have computed it before, by tensor operations.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, Result, Shape, Storage, Tensor};

/// A result that can be taken once, so that memory does not hold it twice.
pub(super) struct Precomputed(Mutex<Option<Tensor>>);

impl Precomputed {
    /// `out` must own its storage, not view another tensor.
    pub(super) fn new(out: Tensor) -> Self {
        Self(Mutex::new(Some(out.detach())))
    }

    fn take(&self) -> Result<Tensor> {
        let out = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(out) = out else { candle_core::bail!("the result was already taken") };
        // The graph takes the storage without a layout, so it must be the whole tensor.
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
