//! Where a model computes, and how precisely: the one place that makes a device of what a node was given.

use candle_core::{DType, Device};
use schemars::JsonSchema;
use searchmill_engine::operator::{Computed, Context, OperatorError, Repeatability};
use serde::{Deserialize, Serialize};

/// The numbers that a model computes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits with the range of f32 (bfloat16). Runs on the CPU too, slowly.
    Bf16,
}

impl Precision {
    fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }
}

/// A device, and the numbers that are computed with there.
#[derive(Clone, Debug)]
pub struct Compute {
    pub device: Device,
    pub dtype: DType,
}

impl Compute {
    /// On the CPU in f32.
    #[must_use]
    pub fn cpu() -> Self {
        Self { device: Device::Cpu, dtype: DType::F32 }
    }

    /// On the CPU.
    #[must_use]
    pub fn on_cpu(precision: Precision) -> Self {
        Self { dtype: precision.dtype(), device: Device::Cpu }
    }

    /// Where a node computes: on the first GPU of its lease or, without a lease, on the CPU.
    ///
    /// # Errors
    /// When the GPU cannot be used; says why and how to mend it.
    pub fn leased(context: &Context, precision: Precision) -> Result<Self, OperatorError> {
        let compute = if context.gpus() == 0 { Self::on_cpu(precision) } else { Self::on_gpu(precision)? };
        context.computed_on(compute.computed());
        Ok(compute)
    }

    /// On the first GPU that `CUDA_VISIBLE_DEVICES` shows.
    ///
    /// # Errors
    /// When it cannot be used; says why and how to mend it.
    pub fn on_gpu(precision: Precision) -> Result<Self, OperatorError> {
        let device = Device::new_cuda(0).map_err(|error| {
            let why = error.to_string();
            let why = why.lines().next().unwrap_or_default().to_owned();
            OperatorError::machine(format!("GPU 0 of those that this process may use cannot be used: {why}")).with_help(
                "`searchmill doctor` shows devices, driver and the CUDA worker; the worker must be built for the \
                 device's compute capability. `resources: {gpus: 0}` computes on the CPU",
            )
        })?;
        Ok(Self { dtype: precision.dtype(), device })
    }

    /// Where the same bytes are computed again: sums are cut as the processor's vector unit, or the GPU, wants them.
    fn computed(&self) -> Computed {
        if self.device.is_cpu() {
            Computed::declared(Repeatability::Processor)
        } else {
            Computed { repeats: Repeatability::Device, on: device_name(&self.device) }
        }
    }

    /// F32 on the CPU: what the hand-written loops are for.
    pub fn is_plain(&self) -> bool {
        self.device.is_cpu() && self.dtype == DType::F32
    }

    /// Bytes that may be taken: what is free on a GPU; on the CPU what the node was told.
    pub fn memory(&self, told: Option<u64>) -> Option<u64> {
        if self.device.is_cpu() { told } else { free_memory(&self.device) }
    }

    /// For messages and records: `CPU, f32` or `GPU (NVIDIA H200), bf16`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}, {}", device_name(&self.device), self.dtype.as_str())
    }
}

#[cfg(feature = "cuda")]
fn free_memory(device: &Device) -> Option<u64> {
    let Device::Cuda(cuda) = device else { return None };
    cuda.cuda_stream().context().mem_get_info().ok().map(|(free, _)| free as u64)
}

#[cfg(not(feature = "cuda"))]
fn free_memory(_: &Device) -> Option<u64> {
    None
}

#[cfg(feature = "cuda")]
fn device_name(device: &Device) -> String {
    let Device::Cuda(cuda) = device else { return "CPU".to_owned() };
    cuda.cuda_stream().context().name().map_or_else(|_| "GPU".to_owned(), |name| format!("GPU ({name})"))
}

#[cfg(not(feature = "cuda"))]
fn device_name(device: &Device) -> String {
    if device.is_cpu() { "CPU" } else { "GPU" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_precision_is_that_which_is_told() {
        let dtype = |precision| Compute::on_cpu(precision).dtype;
        assert_eq!((dtype(Precision::default()), dtype(Precision::Bf16)), (DType::F32, DType::BF16));
        assert!(Compute::cpu().is_plain() && !Compute::on_cpu(Precision::Bf16).is_plain());
        assert_eq!(Compute::cpu().name(), "CPU, f32");
        assert_eq!(Compute::cpu().memory(Some(7)), Some(7));
    }

    /// Without CUDA in the program, or without a GPU, a node that leased one hears what to do.
    #[test]
    fn a_gpu_that_is_not_there_is_told_with_the_way_out() {
        if Device::new_cuda(0).is_ok() {
            return;
        }
        let error = Compute::on_gpu(Precision::F32).unwrap_err();
        assert!(error.message.starts_with("GPU 0 of those that this process may use"), "{}", error.message);
        assert!(error.help.is_some_and(|help| help.contains("searchmill doctor") && help.contains("gpus: 0")));
    }
}
