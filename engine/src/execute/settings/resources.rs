//! Tracks which nodes may run at the same time, by what the machine has.

use std::fs::read_to_string;

/// Resources a node needs while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) gpus: u32,
    pub(crate) memory: u64,
}

/// The resources of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// CPU threads.
    pub threads: usize,
    /// GPUs available for leases.
    pub gpus: u32,
    /// Memory in bytes that nodes may claim; 0: unknown, and not counted.
    pub memory: u64,
}

impl Machine {
    /// Reads the resources from the operating system.
    pub fn detect() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { threads, gpus: 0, memory: free_memory().unwrap_or(0) }
    }
}

/// Returns the memory that Linux calls available, within the limit of the control group.
fn free_memory() -> Option<u64> {
    let text = read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    let limit = read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    Some((kib * 1024).min(limit.unwrap_or(u64::MAX)))
}

/// The free resources.
#[derive(Debug)]
pub(crate) struct Pool {
    jobs: usize,
    free_jobs: usize,
    // Below 0 while a node runs that needs more than the machine has.
    gpus: i64,
    memory: i128,
    count_memory: bool,
}

impl Pool {
    pub(crate) fn new(jobs: usize, machine: &Machine) -> Self {
        let jobs = jobs.max(1);
        let count_memory = machine.memory > 0;
        Self { jobs, free_jobs: jobs, gpus: i64::from(machine.gpus), memory: i128::from(machine.memory), count_memory }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free_jobs == 0
    }

    /// Takes the resources of a node, if they are free. A node that needs more than the machine has runs alone.
    pub(crate) fn take(&mut self, demand: &Demand) -> bool {
        let (gpus, memory) = (i64::from(demand.gpus), i128::from(demand.memory));
        let fits = gpus <= self.gpus && (!self.count_memory || memory <= self.memory);
        if self.free_jobs == 0 || (!fits && self.free_jobs < self.jobs) {
            return false;
        }
        self.free_jobs -= 1;
        self.gpus -= gpus;
        self.memory -= memory;
        true
    }

    pub(crate) fn give_back(&mut self, demand: &Demand) {
        self.free_jobs += 1;
        self.gpus += i64::from(demand.gpus);
        self.memory += i128::from(demand.memory);
    }
}
