//! The GPUs of this machine and their leases, and the worker programs that run nodes in a separate process. A lease is a
//! file lock, so concurrent runs share the GPUs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use super::Stop;
use crate::error::OperatorError;
use crate::spec::Resources;
use crate::store::device_lock;

/// Interval between checks for free devices.
const LOOK: Duration = Duration::from_millis(250);
/// Help text for missing GPUs.
pub(crate) const NO_GPU: &str = "`resources: {fallback: cpu}` runs the node on the CPU";
const QUERY: &str = "--query-gpu=index,uuid,name,memory.total,memory.free,driver_version,compute_cap";

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Index, as numbered by the driver.
    pub index: u32,
    /// Unique id of the device.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Memory in bytes.
    pub memory: u64,
    /// Free memory in bytes.
    pub free: u64,
    /// Driver version.
    pub driver: String,
    /// Compute capability, such as `9.0`.
    pub compute: String,
}

/// Lists the devices reported by `nvidia-smi`, restricted to `CUDA_VISIBLE_DEVICES` (`visible`) if set. Without
/// `nvidia-smi` the list is empty.
///
/// # Errors
/// Fails with the output of `nvidia-smi` if the program fails.
pub fn devices(visible: Option<&str>) -> Result<Vec<Device>, String> {
    let output = match Command::new("nvidia-smi").args([QUERY, "--format=csv,noheader,nounits"]).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("cannot start nvidia-smi: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let why = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
        return Err(format!("nvidia-smi failed: {}", why.trim()));
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let mut devices = lines.map(device).collect::<Result<Vec<_>, _>>()?;
    devices.retain(|device| is_visible(device, visible));
    Ok(devices)
}

fn device(line: &str) -> Result<Device, String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, uuid, name, memory, free, driver, compute] = fields[..] else {
        return Err(format!("unexpected output of nvidia-smi: {line}"));
    };
    let index = index.parse().map_err(|_| format!("unexpected output of nvidia-smi: {line}"))?;
    // In MiB. Devices that share the machine's memory report none.
    let memory = memory.parse::<u64>().unwrap_or_default() << 20;
    let free = free.parse::<u64>().unwrap_or_default() << 20;
    let (uuid, name, driver, compute) = (uuid.to_owned(), name.to_owned(), driver.to_owned(), compute.to_owned());
    Ok(Device { index, uuid, name, memory, free, driver, compute })
}

fn is_visible(device: &Device, visible: Option<&str>) -> bool {
    let Some(list) = visible else { return true };
    // An entry is an index, or the beginning of a UUID.
    list.split(',')
        .map(str::trim)
        .any(|entry| entry == device.index.to_string() || (!entry.is_empty() && device.uuid.starts_with(entry)))
}

/// Devices leased until this value is dropped.
pub(crate) struct DeviceLease {
    pub(crate) devices: Vec<Device>,
    locks: Vec<File>,
}

impl DeviceLease {
    /// Waits until that many devices are free and leases those listed first.
    ///
    /// # Errors
    /// Fails if the run is stopping, or if a lock file cannot be created.
    pub(crate) fn take(all: &[Device], wanted: usize, stop: &Stop) -> Result<Self, OperatorError> {
        loop {
            let mut lease = Self { devices: Vec::new(), locks: Vec::new() };
            for device in all {
                // Another run may hold it; the next one may be free.
                if lease.devices.len() < wanted
                    && let Some(lock) = device_lock(&device.uuid)?
                {
                    lease.devices.push(device.clone());
                    lease.locks.push(lock);
                }
            }
            if lease.devices.len() == wanted {
                return Ok(lease);
            }
            // Release a partial lease before waiting: otherwise two runs could deadlock.
            drop(lease);
            if stop.is_draining() {
                return Err(OperatorError::cancelled());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Returns the value of `CUDA_VISIBLE_DEVICES`.
    pub(crate) fn visible(&self) -> String {
        self.devices.iter().map(|device| device.uuid.as_str()).collect::<Vec<_>>().join(",")
    }

    /// Returns the devices for messages: `GPU 0 NVIDIA H200 (139 GiB)`; empty without devices.
    pub(crate) fn names(&self) -> String {
        let devices = self.devices.iter();
        let names: Vec<String> = devices
            .map(|device| format!("GPU {} {} ({} GiB)", device.index, device.name, device.memory >> 30))
            .collect();
        names.join(", ")
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_nvidia_smi_is_a_device() {
        let line = "0, GPU-8d2f, NVIDIA H200, 143771, 143156, 580.65.06, 9.0";
        let found = device(line).unwrap();
        assert_eq!((found.index, found.name.as_str(), found.memory >> 30), (0, "NVIDIA H200", 140));
        assert_eq!((found.uuid.as_str(), found.compute.as_str()), ("GPU-8d2f", "9.0"));
        assert_eq!(device("1, GPU-1, Grace, [N/A], [N/A], 580, 9.0").unwrap().memory, 0);
        assert!(device("No devices were found").unwrap_err().contains("No devices"));
        for (visible, seen) in
            [(None, true), (Some("0"), true), (Some("1,GPU-8d"), true), (Some(""), false), (Some("1"), false)]
        {
            assert_eq!(is_visible(&found, visible), seen, "{visible:?}");
        }
    }

    #[test]
    fn a_device_has_one_holder() {
        let device = |index: u32| {
            let uuid = format!("GPU-test-{}-{index}", std::process::id());
            let (name, driver, compute) = (String::new(), String::new(), String::new());
            Device { index, uuid, name, memory: 0, free: 0, driver, compute }
        };
        let all = [device(0), device(1)];
        let first = DeviceLease::take(&all, 1, &Stop::default()).unwrap();
        let second = DeviceLease::take(&all, 1, &Stop::default()).unwrap();
        assert_eq!((first.devices[0].index, second.devices[0].index), (0, 1));
        let stop = Stop::default();
        stop.drain();
        assert!(DeviceLease::take(&all, 1, &stop).is_err(), "both are held");
        drop(first);
        assert_eq!(DeviceLease::take(&all, 1, &stop).unwrap().visible(), all[0].uuid);
    }
}
