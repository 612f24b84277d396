//! What the runs of a pipeline have spent, by quarter of an hour. Kept beside the runs' records, so that neither `kill -9`
//! nor `gc` makes a budget of a day or month forget.
//!
//! ```text
//! spent/<pipeline>/<run>   one line per quarter of an hour: its number, calls, tokens, cost, mark, checksum
//! ```
//!
//! All lines have the same length: the one of the current slot is overwritten with each call, so that the file stays
//! small. Lines are in the order in which their slots appeared: a clock may be set back. A killed process loses nothing
//! that it wrote. The mark of the last line is `=`, that of the others is `+`: of a file that was cut, the last line says
//! that more came after it. The file gets its name with its first line, so that an empty one was emptied. A file that was
//! changed is an error: spending that is not known is not zero. If it is gone, what the record of the run says counts.
//!
//! Files of earlier versions have neither marks nor checksums.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::checksum::digits_of;
use super::runs::run_time;
use super::schedules::folder_name;
use crate::endpoint::Usage;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::{all_names_in, if_there, names_in};
use crate::store::layout::Store;
use crate::store::nofollow;

/// Age from which a file's time tells whether it changed.
const SETTLED: Duration = Duration::from_secs(2);
/// How long before a day or month a run may have begun that spends in it.
const LONGEST_RUN: Duration = Duration::from_hours(31 * 24);
/// Difference between the clocks of machines and file servers (at most).
const SKEW: Duration = Duration::from_hours(24);
/// Length of a slot in seconds: a divisor of the offsets of all time zones.
const SLOT: u64 = 900;
/// Digits of a number in a line.
const DIGITS: usize = 20;
/// Length of a line of earlier versions.
const PLAIN: usize = 5 * (DIGITS + 1);
/// Length of a line. It divides a page of memory: a killed process writes the whole line or nothing of it.
const LINE: usize = 128;
/// Digits of a checksum.
const CHECK: usize = LINE - PLAIN - 2;
/// The mark of the last line, and that of the others.
const MARKS: [char; 2] = ['=', '+'];
/// Attempts to read a file that is written meanwhile, and the pause between them.
const LOOKS: usize = 5;
const PAUSE: Duration = Duration::from_millis(5);

type Slots = BTreeMap<u64, Usage>;

/// The spending of a pipeline's runs.
#[derive(Debug)]
pub struct Spending {
    store: Store,
    pipeline: String,
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
    /// Whether the records of runs without a file were looked at.
    is_searched: bool,
}

impl Spending {
    /// Opens the spending of a pipeline for a run that may add to it. Nothing is written before it spends.
    pub fn of(store: &Store, pipeline: &str, run: &str) -> Self {
        let folder = store.root().join("spent").join(folder_name(pipeline));
        Self {
            store: store.clone(),
            pipeline: pipeline.to_owned(),
            folder,
            run: run.to_owned(),
            own: Slots::new(),
            lines: Vec::new(),
            file: None,
            first: u64::MAX,
            others: BTreeMap::new(),
            sums: Slots::new(),
            is_stale: false,
            is_searched: false,
        }
    }

    /// Adds what this run spent at that time (Unix, seconds).
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn add(&mut self, now: f64, usage: &Usage) -> Result<(), StoreError> {
        let slot = now as u64 / SLOT;
        *self.own.entry(slot).or_default() += *usage;
        let known = self.lines.iter().position(|line| *line == slot);
        let index = known.unwrap_or(self.lines.len());
        if known.is_none() {
            self.lines.push(slot);
        }
        // The new line first: killed in between, the line before it still looks like a last one, which is no damage.
        self.write(index)?;
        if known.is_none() && index > 0 { self.write(index - 1) } else { Ok(()) }
    }

    /// Writes the line of that index; to a new file, all lines.
    fn write(&mut self, index: usize) -> Result<(), StoreError> {
        let path = self.folder.join(&self.run);
        if let Some(file) = &self.file {
            return file.write_all_at(self.line(index).as_bytes(), (index * LINE) as u64).context("write", &path);
        }
        nofollow::create_folder(&self.folder).context("create", &self.folder)?;
        let lines: String = (0..self.lines.len()).map(|index| self.line(index)).collect();
        // Renamed into place with its first line, and on disk: an empty file is one that somebody emptied.
        self.store.write_file(&path, lines.as_bytes())?;
        self.file = Some(nofollow::open_to_write(&path).context("open", &path)?);
        Ok(())
    }

    fn line(&self, index: usize) -> String {
        let slot = self.lines[index];
        let sum = self.own.get(&slot).copied().unwrap_or_default();
        line(&self.run, slot, &sum, index + 1 == self.lines.len())
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
            self.is_searched = false;
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
            // The time of a file can be set, that in a run's name cannot.
            let is_early = run_time(&name).is_none_or(|began| began < start);
            let is_old = is_early && settled.is_some_and(|at| at < old);
            if known {
                continue;
            }
            let slots = if is_old { Some(Slots::new()) } else { read(&path, &name)? };
            if let Some(slots) = slots {
                self.others.insert(name, (settled, slots));
                self.is_stale = true;
            }
        }
        self.search(start);
        if self.is_stale {
            self.is_stale = false;
            self.sums.clear();
            for (slot, usage) in self.others.values().flat_map(|(_, slots)| slots.range(first..)) {
                *self.sums.entry(*slot).or_default() += *usage;
            }
        }
        Ok(())
    }

    /// Counts what the records of earlier runs say whose files are gone, once. The copy of a shared store also has the
    /// records of runs of other machines, which do not count here.
    fn search(&mut self, start: f64) {
        if std::mem::replace(&mut self.is_searched, true) || self.store.is_copy() {
            return;
        }
        for run in self.store.run_ids() {
            let long_ago = run_time(&run).is_none_or(|began| began < start - LONGEST_RUN.as_secs_f64());
            if long_ago || run == self.run || self.others.contains_key(&run) || self.store.is_imported(&run) {
                continue;
            }
            if self.store.run(&run).is_some_and(|record| record.pipeline == self.pipeline) {
                let spent = self.store.recorded_spending(&run);
                let (_, slots) = self.others.entry(run).or_default();
                for (time, usage) in spent {
                    *slots.entry(time as u64 / SLOT).or_default() += usage;
                }
                self.is_stale = true;
            }
        }
    }

    /// Returns what all runs have spent since that time (Unix, seconds): not before the `start` of [`Spending::look`].
    pub fn since(&self, start: f64) -> Usage {
        let first = start as u64 / SLOT;
        let mut sum = Usage::default();
        for (_, usage) in self.sums.range(first..).chain(self.own.range(first..)) {
            sum += *usage;
        }
        sum
    }
}

fn line(run: &str, slot: u64, usage: &Usage, is_last: bool) -> String {
    let Usage { calls, prompt_tokens, completion_tokens, cost_nanos, service_calls: _ } = usage;
    let numbers = [slot, *calls, *prompt_tokens, *completion_tokens, *cost_nanos];
    // By hand: every call writes lines, and `format!` with a width is slow.
    let mut text = String::with_capacity(LINE);
    for number in numbers {
        let digits = number.to_string();
        text.extend(std::iter::repeat_n('0', DIGITS - digits.len()));
        text.push_str(&digits);
        text.push(' ');
    }
    text.push(MARKS[usize::from(!is_last)]);
    text.push_str(&checksum(run, &text));
    text.push('\n');
    text
}

/// Returns the checksum of a line of a run: lines of other runs do not fit.
fn checksum(run: &str, text: &str) -> String {
    digits_of([run, " ", text].concat().as_bytes(), CHECK)
}

/// Reads a line without its end: the slot, the usage, and whether lines come after it (of earlier versions, unknown).
/// `None` if it is damaged.
fn parse(run: &str, line: &str) -> Option<(u64, Usage, Option<bool>)> {
    let (numbers, has_next) = match line.len() + 1 {
        PLAIN => (line, None),
        LINE if line.is_ascii() => {
            let (text, check) = line.split_at(PLAIN + 1);
            let mark = MARKS.iter().position(|mark| text.ends_with(*mark))?;
            if check != checksum(run, text) {
                return None;
            }
            (&text[..PLAIN - 1], Some(mark == 1))
        }
        _ => return None,
    };
    let numbers: Option<Vec<u64>> = numbers.split(' ').map(|word| word.parse().ok()).collect();
    let [slot, calls, prompt_tokens, completion_tokens, cost_nanos] = numbers?[..] else { return None };
    Some((slot, Usage { calls, prompt_tokens, completion_tokens, cost_nanos, ..Usage::default() }, has_next))
}

/// Adds up the lines of a run's file.
///
/// # Errors
/// The number of the first damaged line, and the damage.
fn sum_up(run: &str, text: &str) -> Result<Slots, (usize, &'static str)> {
    let mut slots = Slots::new();
    let (mut has_next, mut number) = (Some(true), 0);
    for line in text.split_inclusive('\n') {
        number += 1;
        let Some(line) = line.strip_suffix('\n') else {
            // A line that was being written when the machine failed: its call was not made then.
            if has_next == Some(true) {
                return Err((number, "this line is cut off"));
            }
            break;
        };
        let Some((slot, usage, next)) = parse(run, line) else { return Err((number, "this line is damaged")) };
        has_next = next;
        *slots.entry(slot).or_default() += usage;
    }
    match has_next {
        Some(true) if number == 0 => Err((1, "the file was emptied")),
        Some(true) => Err((number, "the lines after this one are gone")),
        _ => Ok(slots),
    }
}

/// Reads a run's spending; `None` if the file is gone.
fn read(path: &Path, run: &str) -> Result<Option<Slots>, StoreError> {
    let mut looks = 0;
    loop {
        let Some(text) = if_there(fs::read(path)).context("read", path)? else { return Ok(None) };
        let (line, what) = match sum_up(run, &String::from_utf8_lossy(&text)) {
            Ok(slots) => return Ok(Some(slots)),
            Err(damage) => damage,
        };
        looks += 1;
        if looks == LOOKS {
            return Err(StoreError::Spending { path: path.to_owned(), line, what });
        }
        // A line may have been overwritten while it was read.
        std::thread::sleep(PAUSE);
    }
}

impl Store {
    /// Returns what is wrong with the records of what runs spent: the file below the store, and the damage.
    pub fn spending_damage(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for (pipeline, folder) in names_in(&self.root().join("spent")) {
            for (run, path) in names_in(&folder) {
                if let Err(error) = read(&path, &run) {
                    found.push((format!("spent/{pipeline}/{run}"), error.to_string()));
                }
            }
        }
        found
    }

    /// Returns the runs that paid by their own records, and have no record of what they spent.
    pub fn missing_spending<'r>(&self, runs: impl Iterator<Item = &'r String>) -> Vec<String> {
        let mut missing: Vec<String> = runs.cloned().collect();
        missing.retain(|run| {
            let Some(record) = self.run(run) else { return false };
            !self.is_imported(run)
                && !self.is_copy()
                && !self.root().join("spent").join(folder_name(&record.pipeline)).join(run).exists()
                && self.recorded_spending(run).iter().any(|(_, usage)| *usage != Usage::default())
        });
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(calls: u64) -> Usage {
        Usage { calls, prompt_tokens: 7 * calls, completion_tokens: calls, cost_nanos: 11 * calls, ..Usage::default() }
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
        let lines: Vec<String> = [(10, 5, false), (2, 18, false), (5, 8, true)]
            .map(|(slot, sum, is_last)| line("run-1", slot, &calls(sum), is_last))
            .into();
        assert_eq!(text, lines.concat());
    }

    #[test]
    fn spending_that_was_changed_emptied_or_cut_is_an_error_until_the_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let runs = folder.path().join("spent").join("a");
        let mut one = Spending::of(&store, "a", "run-1");
        for slot in [3, 4, 2, 4] {
            one.add((slot * SLOT) as f64, &calls(2)).unwrap();
        }
        let path = runs.join("run-1");
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len(), 3 * LINE);
        let told = || Spending::of(&store, "a", "run-9").look(0.0).map_err(|error| error.to_string());
        told().unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let told = told().unwrap_err();
            assert!(told.contains("run-1:") && told.contains("remove the file"), "{length}: {told}");
        }
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            fs::write(&path, changed).unwrap();
            assert!(told().unwrap_err().contains("run-1:"), "byte {place}");
        }
        fs::write(&path, [&whole[..], b"0000"].concat()).unwrap();
        told().unwrap();
        fs::rename(&path, runs.join("run-2")).unwrap();
        assert!(told().unwrap_err().contains("run-2:1: this line is damaged"), "lines of another run");
        assert_eq!(store.spending_damage().len(), 1);
        fs::remove_file(runs.join("run-2")).unwrap();
        told().unwrap();
        fs::create_dir(runs.join("run-2")).unwrap();
        assert!(told().unwrap_err().contains("run-2"));
        fs::remove_dir_all(&runs).unwrap();
        fs::write(&runs, "").unwrap();
        assert!(told().unwrap_err().contains("spent/a"));
    }

    #[test]
    fn files_of_earlier_versions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let runs = folder.path().join("spent").join("a");
        fs::create_dir_all(&runs).unwrap();
        let plain = |slot: u64, calls: u64| format!("{slot:020} {calls:020} {:020} {:020} {:020}\n", 0, 0, 0);
        fs::write(runs.join("run-1"), format!("{}{}{}", plain(3, 5), plain(4, 6), &plain(5, 7)[..40])).unwrap();
        let mut own = Spending::of(&store, "a", "run-9");
        own.look(0.0).unwrap();
        assert_eq!(own.since(0.0).calls, 11, "the last line was being written");
        fs::write(runs.join("run-1"), plain(3, 5).replacen('0', "x", 1)).unwrap();
        assert!(own.look(0.0).unwrap_err().to_string().contains("run-1:1: this line is damaged"));
    }

    #[test]
    fn files_of_past_months_are_not_read_and_a_clock_that_is_set_back_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let runs = folder.path().join("spent").join("a");
        fs::create_dir_all(&runs).unwrap();
        let day = 24.0 * 3600.0;
        let write = |run: &str, now: f64, spent: u64, changed: f64| {
            fs::write(runs.join(run), line(run, now as u64 / SLOT, &calls(spent), true)).unwrap();
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
