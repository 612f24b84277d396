//! What the runs of a pipeline have spent, by quarter of an hour. Kept beside the runs' records, so that neither `kill -9`
//! nor `gc` makes a budget of a day or month forget.
//!
//! ```text
//! spent/<pipeline>/<run>   one line per quarter of an hour: its number, calls, tokens, cost
//! ```
//!
//! All lines have the same length: the one of the current slot is overwritten with each call, so that the file stays
//! small. Lines are in the order in which their slots appeared: a clock may be set back. A killed process loses nothing
//! that it wrote.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::StoreError;
use super::files::if_there;
use super::folder::all_names_in;
use super::layout::Store;
use super::schedules::folder_name;
use crate::operator::Usage;

/// Age from which a file's time tells whether it changed.
const SETTLED: Duration = Duration::from_secs(2);
/// Difference between the clocks of machines and file servers (at most).
const SKEW: Duration = Duration::from_hours(24);
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
    /// The slots of this run in the order of their lines.
    lines: Vec<u64>,
    file: Option<File>,
    /// The slot from which the other runs are read.
    first: u64,
    /// The other runs, as last read: when their files changed, and their slots.
    others: BTreeMap<String, (Option<SystemTime>, Slots)>,
    /// The sums of their slots from `first` on.
    sums: Slots,
    /// Whether the sums lack what was read since.
    is_stale: bool,
}

impl Spending {
    /// Opens the spending of a pipeline for a run that may add to it. Nothing is written before it spends.
    pub fn of(store: &Store, pipeline: &str, run: &str) -> Self {
        let folder = store.root().join("spent").join(folder_name(pipeline));
        Self {
            folder,
            run: run.to_owned(),
            own: Slots::new(),
            lines: Vec::new(),
            file: None,
            first: u64::MAX,
            others: BTreeMap::new(),
            sums: Slots::new(),
            is_stale: false,
        }
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
        let known = self.lines.iter().rposition(|line| *line == slot);
        let place = known.unwrap_or(self.lines.len());
        if known.is_none() {
            self.lines.push(slot);
        }
        file.write_all_at(line(slot, sum).as_bytes(), (place * LINE) as u64).map_err(StoreError::io("write", &path))
    }

    /// Reads what other runs have spent since `start` (Unix, seconds). Only files that changed since the last call are
    /// read, and none that last changed long before `start`.
    ///
    /// # Errors
    /// Fails if it cannot be read: spending that is not known is not zero.
    pub fn look(&mut self, start: f64) -> Result<(), StoreError> {
        let first = start as u64 / SLOT;
        if first < self.first {
            // The first call, or the clock was set back: earlier slots count.
            self.others.clear();
        }
        self.is_stale |= first != self.first;
        self.first = first;
        let old = UNIX_EPOCH + Duration::from_secs(first * SLOT).saturating_sub(SKEW);
        for (name, path) in all_names_in(&self.folder)? {
            if name == self.run {
                continue;
            }
            let changed = fs::metadata(&path).and_then(|file| file.modified()).ok();
            // Two writes within one tick of the file system's clock have one time: it counts only when it is past.
            let settled = changed.filter(|at| at.elapsed().is_ok_and(|age| age > SETTLED));
            let known = settled.is_some() && self.others.get(&name).is_some_and(|(at, _)| *at == settled);
            let is_old = settled.is_some_and(|at| at < old);
            let slots = || if is_old { Ok(Some(Slots::new())) } else { read(&path) };
            if !known && let Some(slots) = slots()? {
                self.others.insert(name, (settled, slots));
                self.is_stale = true;
            }
        }
        if self.is_stale {
            self.is_stale = false;
            self.sums.clear();
            for (slot, usage) in self.others.values().flat_map(|(_, slots)| slots.range(first..)) {
                *self.sums.entry(*slot).or_default() += *usage;
            }
        }
        Ok(())
    }

    /// Returns what all runs have spent since that time (Unix, seconds): not before the `start` of [`Spending::look`].
    pub fn since(&self, start: f64) -> Usage {
        let first = start as u64 / SLOT;
        let mut sum = Usage::default();
        for slots in [&self.sums, &self.own] {
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

/// Reads a run's spending; `None` if the file is gone. A last line without an end is being written, or was cut off: its
/// call was not made then.
fn read(path: &Path) -> Result<Option<Slots>, StoreError> {
    let Some(text) = if_there(fs::read(path)).map_err(StoreError::io("read", path))? else { return Ok(None) };
    let text = String::from_utf8_lossy(&text);
    let mut slots = Slots::new();
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let Some(line) = line.strip_suffix('\n') else { break };
        let words = line.split(' ').filter(|_| line.len() + 1 == LINE);
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        let [slot, calls, prompt_tokens, completion_tokens, cost_nanos] = numbers[..] else {
            let (path, number) = (path.display(), number + 1);
            let help = "remove the file to go on without what its run spent";
            return Err(StoreError::Location(format!("{path}:{number}: this line is damaged; {help}")));
        };
        *slots.entry(slot).or_default() += Usage { calls, prompt_tokens, completion_tokens, cost_nanos };
    }
    Ok(Some(slots))
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
        other.look(0.0).unwrap();
        other.add(1900.0, &calls(8)).unwrap();
        assert_eq!((other.since(0.0), other.since(1800.0)), (calls(15), calls(12)));
        one.add(2100.0, &calls(16)).unwrap();
        one.look(0.0).unwrap();
        assert_eq!(one.since(1800.0), calls(28));
        let mut elsewhere = Spending::of(&store, "nightly", "run-3");
        elsewhere.look(0.0).unwrap();
        assert_eq!(elsewhere.since(0.0), Usage::default(), "another pipeline");
        let text = fs::read_to_string(folder.path().join("spent").join("nightly%2fa").join("run-1")).unwrap();
        assert_eq!((text.lines().count(), text.len()), (2, 2 * LINE));
    }

    #[test]
    fn a_clock_that_is_set_back_overwrites_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let mut one = Spending::of(&store, "a", "run-1");
        for (now, spent) in [(9000.0, 1), (2000.0, 2), (9100.0, 4), (5000.0, 8), (2100.0, 16)] {
            one.add(now, &calls(spent)).unwrap();
        }
        let text = fs::read_to_string(folder.path().join("spent").join("a").join("run-1")).unwrap();
        let lines: Vec<String> = [(10, 5), (2, 18), (5, 8)].map(|(slot, sum)| line(slot, &calls(sum))).into();
        assert_eq!(text, lines.concat());
    }

    #[test]
    fn spending_that_cannot_be_read_is_an_error_until_it_can() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let runs = folder.path().join("spent").join("a");
        fs::create_dir_all(&runs).unwrap();
        let mut own = Spending::of(&store, "a", "run-9");
        let whole = line(3, &calls(2));
        for damaged in
            [format!("{whole}{}", whole.replace(' ', "x")), format!("{whole}three\n"), whole.replacen('0', "", 1)]
        {
            fs::write(runs.join("run-1"), &damaged).unwrap();
            let told = own.look(0.0).unwrap_err().to_string();
            let number = damaged.lines().count();
            assert!(told.contains(&format!("run-1:{number}: this line is damaged")), "{told}");
            assert_eq!(own.since(0.0), Usage::default());
        }
        // The last line is being written.
        fs::write(runs.join("run-1"), format!("{whole}{}", &whole[..40])).unwrap();
        own.look(0.0).unwrap();
        assert_eq!(own.since(0.0), calls(2));
        fs::create_dir(runs.join("run-2")).unwrap();
        assert!(own.look(0.0).unwrap_err().to_string().contains("run-2"));
        fs::remove_dir_all(&runs).unwrap();
        fs::write(&runs, "").unwrap();
        assert!(own.look(0.0).unwrap_err().to_string().contains("spent/a"));
    }

    #[test]
    fn files_of_past_months_are_not_read_and_a_clock_that_is_set_back_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let runs = folder.path().join("spent").join("a");
        fs::create_dir_all(&runs).unwrap();
        let day = 24.0 * 3600.0;
        let write = |run: &str, now: f64, spent: u64, changed: f64| {
            fs::write(runs.join(run), line(now as u64 / SLOT, &calls(spent))).unwrap();
            let time = UNIX_EPOCH + Duration::from_secs_f64(changed);
            File::options().write(true).open(runs.join(run)).unwrap().set_modified(time).unwrap();
        };
        write("run-1", 10.0 * day, 1, 10.0 * day);
        write("run-2", 40.0 * day, 2, 40.0 * day);
        let mut own = Spending::of(&store, "a", "run-9");
        own.add(40.0 * day, &calls(16)).unwrap();
        own.look(31.0 * day).unwrap();
        assert_eq!(own.since(31.0 * day), calls(18));
        assert!(own.others["run-1"].1.is_empty(), "not read");
        // Another run goes on, and a new one begins.
        write("run-2", 41.0 * day, 6, 41.0 * day);
        write("run-3", 41.0 * day, 32, 41.0 * day);
        own.look(31.0 * day).unwrap();
        assert_eq!((own.since(31.0 * day), own.since(40.5 * day)), (calls(54), calls(38)));
        own.look(1.0 * day).unwrap();
        assert_eq!(own.since(1.0 * day), calls(55));
        own.look(31.0 * day).unwrap();
        assert_eq!(own.since(31.0 * day), calls(54));
    }
}
