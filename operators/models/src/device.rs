//! Device and precision of a computation. The only place that turns a node's lease into a device.

use candle_core::{DType, Device};
use schemars::JsonSchema;
use searchmill_engine::operator::{Computed, Context, OperatorError, Repeatability};
use serde::{Deserialize, Serialize};

/// Precision of a computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits with the range of f32 (bfloat16). Slow on the CPU.
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

/// A device and the precision used on it.
#[derive(Clone, Debug)]
pub struct Compute {
    pub device: Device,
    pub dtype: DType,
}

impl Compute {
    /// Returns the CPU with f32.
    pub fn cpu() -> Self {
        Self { device: Device::Cpu, dtype: DType::F32 }
    }

    /// Returns the CPU with a precision.
    pub fn on_cpu(precision: Precision) -> Self {
        Self { dtype: precision.dtype(), device: Device::Cpu }
    }

    /// Returns the first GPU of the node's lease or, without a lease, the CPU.
    ///
    /// # Errors
    /// When the GPU cannot be used.
    pub fn leased(context: &Context, precision: Precision) -> Result<Self, OperatorError> {
        let compute = if context.gpus() == 0 { Self::on_cpu(precision) } else { Self::on_gpu(precision)? };
        context.computed_on(compute.computed());
        Ok(compute)
    }

    /// Returns the first GPU of `CUDA_VISIBLE_DEVICES`.
    ///
    /// # Errors
    /// When the GPU cannot be used.
    pub fn on_gpu(precision: Precision) -> Result<Self, OperatorError> {
        let device = Device::new_cuda(0).map_err(|error| {
            // The other lines are a backtrace.
            let why = error.to_string();
            let why = why.lines().next().unwrap_or_default().to_owned();
            OperatorError::machine(format!("cannot use GPU 0 of this process: {why}")).with_help(
                "`searchmill doctor` shows devices, driver and the CUDA worker; build the worker for the device's \
                 compute capability, or set `resources: {gpus: 0}` to compute on the CPU",
            )
        })?;
        Ok(Self { dtype: precision.dtype(), device })
    }

    /// Returns where the computation repeats bit for bit: the order of sums depends on the vector unit or the GPU.
    fn computed(&self) -> Computed {
        if self.device.is_cpu() {
            Computed::declared(Repeatability::Processor)
        } else {
            Computed { repeats: Repeatability::Device, on: device_name(&self.device) }
        }
    }

    /// Whether this is f32 on the CPU, which the hand-written loops compute.
    pub fn is_plain(&self) -> bool {
        self.device.is_cpu() && self.dtype == DType::F32
    }

    /// Returns the available bytes: the free memory of a GPU, or on the CPU the limit of the node.
    pub fn memory(&self, limit: Option<u64>) -> Option<u64> {
        if self.device.is_cpu() { limit } else { free_memory(&self.device) }
    }

    /// Returns the name for messages and records: `CPU, f32` or `GPU (NVIDIA H200), bf16`.
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
    fn a_device_has_the_precision_that_was_asked_for() {
        let dtype = |precision| Compute::on_cpu(precision).dtype;
        assert_eq!((dtype(Precision::default()), dtype(Precision::Bf16)), (DType::F32, DType::BF16));
        assert!(Compute::cpu().is_plain() && !Compute::on_cpu(Precision::Bf16).is_plain());
        assert_eq!(Compute::cpu().name(), "CPU, f32");
        assert_eq!(Compute::cpu().memory(Some(7)), Some(7));
    }

    /// Without CUDA in the program or without a GPU, the error of a node with a lease says what to do.
    #[test]
    fn the_error_for_a_missing_gpu_says_what_to_do() {
        if Device::new_cuda(0).is_ok() {
            return;
        }
        let error = Compute::on_gpu(Precision::F32).unwrap_err();
        assert!(error.message.starts_with("cannot use GPU 0 of this process"), "{}", error.message);
        assert!(error.help.is_some_and(|help| help.contains("searchmill doctor") && help.contains("gpus: 0")));
    }
}
