//! What the runs of a pipeline have spent, by quarter of an hour. Kept beside the runs' records, so that neither `kill -9`
//! nor `gc` makes a budget of a day or month forget.
//!
//! ```text
//! spent/<pipeline>/<run>   one line per quarter of an hour: its number, calls, tokens, cost
//! ```
//!
//! All lines have the same length: the last one is overwritten with each call, so that the file stays small. A killed
//! process loses nothing that it wrote.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::error::StoreError;
use super::folder::names_in;
use super::layout::Store;
use super::schedules::folder_name;
use crate::operator::Usage;

/// Age from which a file's time tells whether it changed.
const SETTLED: Duration = Duration::from_secs(2);
/// Length of a slot in seconds: a divisor of the offsets of all time zones.
const SLOT: u64 = 900;
/// Digits of a number in a line.
const DIGITS: usize = 20;
/// Length of a line.
const LINE: usize = 5 * (DIGITS + 1);

type Slots = BTreeMap<u64, Usage>;

/// The spending of a pipeline's runs.
#[derive(Debug)]
pub struct Spending {
    folder: PathBuf,
    run: String,
    own: Slots,
    file: Option<File>,
    /// The other runs, as last read.
    others: BTreeMap<String, (Option<SystemTime>, Slots)>,
}

impl Spending {
    /// Opens the spending of a pipeline for a run that may add to it. Nothing is written before it spends.
    pub fn of(store: &Store, pipeline: &str, run: &str) -> Self {
        let folder = store.root().join("spent").join(folder_name(pipeline));
        Self { folder, run: run.to_owned(), own: Slots::new(), file: None, others: BTreeMap::new() }
    }

    /// Adds what this run spent at that time (Unix, seconds).
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn add(&mut self, now: f64, usage: &Usage) -> Result<(), StoreError> {
        let slot = now as u64 / SLOT;
        *self.own.entry(slot).or_default() += *usage;
        let path = self.folder.join(&self.run);
        if self.file.is_none() {
            fs::create_dir_all(&self.folder).map_err(StoreError::io("create", &self.folder))?;
            let file = File::options().create(true).truncate(false).write(true).open(&path);
            self.file = Some(file.map_err(StoreError::io("open", &path))?);
        }
        let (Some(file), Some(sum)) = (&self.file, self.own.get(&slot)) else { return Ok(()) };
        let place = self.own.range(..slot).count() * LINE;
        file.write_all_at(line(slot, sum).as_bytes(), place as u64).map_err(StoreError::io("write", &path))
    }

    /// Reads what other runs have spent since the last call.
    pub fn look(&mut self) {
        for (name, path) in names_in(&self.folder) {
            if name == self.run {
                continue;
            }
            let changed = fs::metadata(&path).and_then(|file| file.modified()).ok();
            // Two writes within one tick of the file system's clock have one time: it counts only when it is past.
            let settled = changed.filter(|at| at.elapsed().is_ok_and(|age| age > SETTLED));
            let known = settled.is_some() && self.others.get(&name).is_some_and(|(at, _)| *at == settled);
            if !known {
                self.others.insert(name, (settled, read(&path)));
            }
        }
    }

    /// Returns what all runs have spent since that time (Unix, seconds).
    pub fn since(&self, start: f64) -> Usage {
        let first = start as u64 / SLOT;
        let mut sum = Usage::default();
        for slots in self.others.values().map(|(_, slots)| slots).chain([&self.own]) {
            slots.range(first..).for_each(|(_, usage)| sum += *usage);
        }
        sum
    }
}

fn line(slot: u64, usage: &Usage) -> String {
    let Usage { calls, prompt_tokens, completion_tokens, cost_nanos } = usage;
    let numbers = [slot, *calls, *prompt_tokens, *completion_tokens, *cost_nanos];
    let words: Vec<String> = numbers.iter().map(|number| format!("{number:0DIGITS$}")).collect();
    words.join(" ") + "\n"
}

fn read(path: &Path) -> Slots {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut slots = Slots::new();
    for line in text.lines() {
        let numbers: Vec<u64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [slot, calls, prompt_tokens, completion_tokens, cost_nanos] = numbers[..] else {
            tracing::warn!("{}: a line cannot be read, and does not count against the budget", path.display());
            continue;
        };
        *slots.entry(slot).or_default() += Usage { calls, prompt_tokens, completion_tokens, cost_nanos };
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(calls: u64) -> Usage {
        Usage { calls, prompt_tokens: 7 * calls, completion_tokens: calls, cost_nanos: 11 * calls }
    }

    #[test]
    fn what_runs_spent_adds_up_by_time_and_by_run() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let mut one = Spending::of(&store, "nightly/a", "run-1");
        assert_eq!(one.since(0.0), Usage::default());
        assert!(!folder.path().join("spent").exists(), "nothing is written before something is spent");
        one.add(900.0, &calls(1)).unwrap();
        one.add(1000.0, &calls(2)).unwrap();
        one.add(2000.0, &calls(4)).unwrap();
        let mut other = Spending::of(&store, "nightly/a", "run-2");
        other.look();
        other.add(1900.0, &calls(8)).unwrap();
        assert_eq!((other.since(0.0), other.since(1800.0)), (calls(15), calls(12)));
        one.add(2100.0, &calls(16)).unwrap();
        one.look();
        assert_eq!(one.since(1800.0), calls(28));
        let mut elsewhere = Spending::of(&store, "nightly", "run-3");
        elsewhere.look();
        assert_eq!(elsewhere.since(0.0), Usage::default(), "another pipeline");
        let text = fs::read_to_string(folder.path().join("spent").join("nightly%2fa").join("run-1")).unwrap();
        assert_eq!((text.lines().count(), text.len()), (2, 2 * LINE));
    }
}
