//! State of the `schedule` daemon, one folder per schedule: state, lease, switch, requested runs, and run logs.
//!
//! ```text
//! schedule/<name>/
//!   state.json        runs that are due, waiting, running and finished
//!   lease             locked by the daemon that serves the schedule
//!   switch.json       paused or not, and since when
//!   asked/            one file per requested run
//!   runs/<ticket>.log output of a run; locked while the run is active
//! ```
//!
//! The lock on a run's log belongs to the open file that is the run's standard output. The system therefore holds it
//! as long as the run lives, whatever happens to the daemon.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::checksum::{read_json, seal};
use super::runs::RunRecord;
use crate::fingerprint::hash_bytes;
use crate::schedule::State;
use crate::spec::Time;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::{clear, lock, names_in};
use crate::store::layout::Store;
use crate::store::nofollow;

/// Limit of logs per schedule.
const LOGS: usize = 50;

/// Held by the daemon that serves a schedule. The operating system releases it when the daemon dies.
#[derive(Debug)]
pub struct ScheduleLease {
    _file: File,
}

/// Whether a schedule is paused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switch {
    /// Whether the schedule is paused.
    pub paused: bool,
    /// Time of the last change; missing if it was never changed.
    pub since: Option<Time>,
}

/// What a run's log lock shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLock {
    /// The run is active.
    Held,
    /// The run has ended.
    Free,
    /// There is no log: the run never started.
    Absent,
    /// The file system has no locks.
    Unknown,
}

/// The schedules of a store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Schedules {
    store: Store,
}

impl Schedules {
    /// The schedules of that store.
    pub fn of(store: Store) -> Self {
        Self { store }
    }

    /// The store as `--store` names it.
    pub fn store_address(&self) -> String {
        self.store.address()
    }

    /// The local copy of a shared store.
    pub fn store_cache(&self) -> Option<&Path> {
        self.store.is_shared().then(|| self.store.root())
    }

    /// The record of a run.
    pub fn run(&self, id: &str) -> Option<RunRecord> {
        self.store.run(id)
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.store.root().join("schedule").join(folder_name(name))
    }

    /// Returns the names of all schedules that were ever served, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (_, folder) in names_in(&self.store.root().join("schedule")) {
            names.extend(read_json::<State>(&folder.join("state.json")).map(|state| state.name));
        }
        names.sort();
        names
    }

    /// Returns the state of a schedule. A damaged state is discarded with a warning, and the schedule starts over.
    pub fn state(&self, name: &str) -> Option<State> {
        let path = self.folder(name).join("state.json");
        let state = read_json::<State>(&path).filter(|state| state.name == name);
        if state.is_none() && path.exists() {
            tracing::warn!("{} is damaged: the schedule starts over", path.display());
        }
        state
    }

    /// Stores the state of a schedule durably.
    ///
    /// # Errors
    /// Fails if it cannot be written; nothing that follows from it may then be done.
    pub fn keep(&self, state: &State) -> Result<(), StoreError> {
        self.write_json(&self.folder(&state.name).join("state.json"), state)
    }

    /// Takes the lease on a schedule, or returns `None` while another daemon holds it.
    ///
    /// # Errors
    /// Fails if the lease file cannot be created or the file system has no locks, as two daemons could then not be told
    /// apart.
    pub fn try_lease(&self, name: &str) -> Result<Option<ScheduleLease>, StoreError> {
        let folder = self.folder(name);
        nofollow::create_folder(&folder).context("create", &folder)?;
        Ok(lock(&folder.join("lease"))?.map(|file| ScheduleLease { _file: file }))
    }

    /// Whether a daemon serves the schedule.
    pub fn is_served(&self, name: &str) -> bool {
        lock_of(&self.folder(name).join("lease")) == LogLock::Held
    }

    /// Returns whether the schedule is paused. An unreadable switch counts as paused, so that nothing starts by
    /// mistake.
    pub fn switch(&self, name: &str) -> Switch {
        let path = self.folder(name).join("switch.json");
        if !path.exists() {
            return Switch::default();
        }
        if let Some(switch) = read_json(&path) {
            return switch;
        }
        tracing::warn!("{} is damaged: the schedule counts as paused; `schedule resume` fixes it", path.display());
        Switch { paused: true, since: None }
    }

    /// Pauses or resumes a schedule.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn set_switch(&self, name: &str, switch: &Switch) -> Result<(), StoreError> {
        self.write_json(&self.folder(name).join("switch.json"), switch)
    }

    /// Requests a run from the daemon.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn ask_for_run(&self, name: &str, now: Time) -> Result<(), StoreError> {
        let file = format!("{}-{}.json", now.format("%Y%m%dT%H%M%S%.9f"), std::process::id());
        self.write_json(&self.folder(name).join("asked").join(file), &now)
    }

    /// Returns open requests, oldest first.
    pub fn asked_runs(&self, name: &str) -> Vec<PathBuf> {
        names_in(&self.folder(name).join("asked")).into_iter().map(|(_, path)| path).collect()
    }

    /// Removes a request.
    ///
    /// # Errors
    /// Fails if it cannot be removed.
    pub fn answer(&self, asked: &Path) -> Result<(), StoreError> {
        nofollow::remove_file(asked).context("remove", asked)
    }

    /// Returns the log file of a scheduled run.
    pub fn run_log(&self, name: &str, ticket: u64) -> PathBuf {
        self.folder(name).join("runs").join(format!("{ticket:08}.log"))
    }

    /// Creates the locked log of a run, to be used as its output. Removes old logs.
    ///
    /// # Errors
    /// Fails if it cannot be created or a run of that ticket still holds it.
    pub fn open_run_log(&self, name: &str, ticket: u64) -> Result<File, StoreError> {
        let path = self.run_log(name, ticket);
        let folder = path.parent().unwrap_or(self.store.root());
        nofollow::create_folder(folder).context("create", folder)?;
        let file = nofollow::append(&path).context("open", &path)?;
        match file.try_lock() {
            // Emptied only under the lock: it may be the log of a run that still writes.
            Ok(()) => file.set_len(0).context("write", &path)?,
            Err(TryLockError::WouldBlock) => {
                let held = std::io::Error::new(std::io::ErrorKind::WouldBlock, "a run still holds it");
                return Err(held).context("lock", &path);
            }
            Err(TryLockError::Error(error)) => tracing::debug!("cannot lock {}: {error}", path.display()),
        }
        let logs = names_in(folder);
        for (_, log) in &logs[..logs.len().saturating_sub(LOGS)] {
            if lock_of(log) == LogLock::Free {
                clear(log);
            }
        }
        Ok(file)
    }

    /// Returns whether a run still holds its log.
    pub fn run_log_lock(&self, name: &str, ticket: u64) -> LogLock {
        lock_of(&self.run_log(name, ticket))
    }

    fn write_json(&self, path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
        self.store.write_file(path, &seal(serde_json::to_vec_pretty(value)?))
    }
}

fn lock_of(path: &Path) -> LogLock {
    let Ok(file) = nofollow::open_to_write(path) else { return LogLock::Absent };
    match file.try_lock() {
        Ok(()) => LogLock::Free,
        Err(TryLockError::WouldBlock) => LogLock::Held,
        Err(TryLockError::Error(_)) => LogLock::Unknown,
    }
}

/// Longest name of a folder in bytes that file systems allow.
const LONGEST_FOLDER: usize = 255;
/// Bytes of a longer name that its folder shows.
const SHOWN: usize = 100;

/// Returns a pipeline's name as a folder name: letters, digits, `.`, `_` and `-` stay, other bytes become `%2f`. A longer
/// name is cut, and ends with its digest.
pub(super) fn folder_name(name: &str) -> String {
    let mut folder = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => folder.push(char::from(byte)),
            // A folder that begins with a dot is hidden, and `..` is another one.
            b'.' if !folder.is_empty() => folder.push('.'),
            byte => folder.push_str(&format!("%{byte:02x}")),
        }
    }
    if folder.len() <= LONGEST_FOLDER {
        return folder;
    }
    format!("{}-{}", &folder[..SHOWN], hash_bytes(name.as_bytes()).hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_folders_that_differ() {
        assert_eq!(folder_name("nightly-v1.2"), "nightly-v1.2");
        assert_eq!(folder_name("../a b/é"), "%2e.%2fa%20b%2f%c3%a9");
        assert_eq!(folder_name("."), "%2e");
        let long = ["é".repeat(300), "é".repeat(301), "x".repeat(256), format!("{}y", "x".repeat(255))];
        let folders: std::collections::BTreeSet<String> = long.iter().map(|name| folder_name(name)).collect();
        assert!(folders.len() == 4 && folders.iter().all(|folder| folder.len() < 200), "{folders:?}");
        assert_eq!(folder_name(&"x".repeat(255)), "x".repeat(255));
    }

    #[test]
    fn a_state_comes_back_and_a_damaged_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = Schedules::of(Store::open(folder.path()).unwrap());
        let state = State { serial: 7, ..State::new("a/b") };
        store.keep(&state).unwrap();
        assert_eq!((store.state("a/b"), store.names()), (Some(state), vec!["a/b".to_owned()]));
        std::fs::write(store.folder("a/b").join("state.json"), "{").unwrap();
        assert_eq!(store.state("a/b"), None);
    }

    #[test]
    fn one_daemon_a_schedule() {
        let folder = tempfile::tempdir().unwrap();
        let store = Schedules::of(Store::open(folder.path()).unwrap());
        assert!(!store.is_served("a"));
        let lease = store.try_lease("a").unwrap();
        assert!(lease.is_some() && store.is_served("a"));
        assert!(store.try_lease("a").unwrap().is_none());
        drop(lease);
        assert!(!store.is_served("a"));
    }

    #[test]
    fn a_log_is_locked_as_long_as_the_run_that_writes_it_lives() {
        let folder = tempfile::tempdir().unwrap();
        let store = Schedules::of(Store::open(folder.path()).unwrap());
        assert_eq!(store.run_log_lock("a", 1), LogLock::Absent);
        let log = store.open_run_log("a", 1).unwrap();
        let mut run = {
            let mut command = std::process::Command::new("cat");
            command.stdin(std::process::Stdio::piped()).stdout(log).spawn().unwrap()
        };
        assert_eq!(store.run_log_lock("a", 1), LogLock::Held);
        drop(run.stdin.take());
        run.wait().unwrap();
        // A process that another test starts may hold the file briefly, until it executes another program.
        let freed = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            store.run_log_lock("a", 1) == LogLock::Free
        });
        assert!(freed);
    }
}
