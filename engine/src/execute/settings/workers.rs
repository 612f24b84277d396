//! The worker programs and the GPUs that a run may use.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::device::Device;
use crate::error::OperatorError;
use crate::spec::Resources;

/// Worker programs and devices for nodes that run in a separate process.
#[derive(Clone, Debug, Default)]
pub struct Workers {
    /// Runs nodes marked `isolate: true`; without it they run in this process.
    pub cpu: Option<PathBuf>,
    /// Runs nodes that need GPUs.
    pub cuda: Option<PathBuf>,
    /// GPUs available for leases.
    pub devices: Vec<Device>,
    /// A worker silent for this long counts as dead (0: five minutes).
    pub silence: Duration,
}

impl Workers {
    /// Returns the number of GPUs a node gets: all it requests, or none if the machine has fewer.
    pub fn gpus(&self, resources: &Resources) -> u32 {
        if resources.gpus as usize <= self.devices.len() { resources.gpus } else { 0 }
    }

    /// Whether this machine can run the node.
    pub fn suffice(&self, resources: &Resources) -> bool {
        resources.cpu_fallback || self.gpus(resources) == resources.gpus
    }

    /// Whether a worker program exists for a node that gets GPUs. A node whose child programs use the GPUs needs only
    /// the CPU worker.
    pub fn reach(&self, resources: &Resources, runs_programs: bool) -> bool {
        let worker = if runs_programs { &self.cpu } else { &self.cuda };
        self.gpus(resources) == 0 || worker.is_some()
    }

    /// Returns the program that runs the node; `None`: this process.
    pub(crate) fn program(&self, resources: &Resources, runs_programs: bool) -> Result<Option<&Path>, OperatorError> {
        if !self.suffice(resources) {
            let (wanted, there) = (resources.gpus, self.devices.len());
            let error = OperatorError::machine(format!("the node needs {wanted} GPUs, this machine has {there}"));
            return Err(error.with_help(NO_GPU));
        }
        if self.gpus(resources) == 0 {
            return Ok(self.cpu.as_deref().filter(|_| resources.isolate));
        }
        let worker = if runs_programs { &self.cpu } else { &self.cuda };
        if worker.is_none() {
            let error = OperatorError::machine("the node needs a GPU, but `searchmill-worker-cuda` was not found");
            return Err(
                error.with_help("put it next to `searchmill` or on PATH, or set SEARCHMILL_WORKER_CUDA to its path")
            );
        }
        Ok(worker.as_deref())
    }
}

/// Help text for missing GPUs.
pub(crate) const NO_GPU: &str = "`resources: {fallback: cpu}` runs the node on the CPU";
