//! What may run at once. Pure bookkeeping; reading the machine is the caller's affair.

/// What a node asks for while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) gpus: u32,
    pub(super) memory: u64,
}

/// What this machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// CPU threads.
    pub threads: usize,
    /// GPUs that may be leased.
    pub gpus: u32,
    /// Bytes of memory that nodes may claim; 0 means it is not counted.
    pub memory: u64,
}

impl Machine {
    /// What the operating system says.
    #[must_use]
    pub fn detect() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { threads, gpus: 0, memory: 0 }
    }
}

/// What is left.
#[derive(Debug)]
pub(super) struct Pool {
    jobs: usize,
    free_jobs: usize,
    gpus: i64,
    memory: i128,
    count_memory: bool,
}

impl Pool {
    pub(super) fn new(jobs: usize, machine: &Machine) -> Self {
        let jobs = jobs.max(1);
        let count_memory = machine.memory > 0;
        Self { jobs, free_jobs: jobs, gpus: i64::from(machine.gpus), memory: i128::from(machine.memory), count_memory }
    }

    pub(super) fn is_full(&self) -> bool {
        self.free_jobs == 0
    }

    /// A node that asks for more than there is runs alone.
    pub(super) fn take(&mut self, demand: &Demand) -> bool {
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

    pub(super) fn give_back(&mut self, demand: &Demand) {
        self.free_jobs += 1;
        self.gpus += i64::from(demand.gpus);
        self.memory += i128::from(demand.memory);
    }
}
