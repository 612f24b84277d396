//! Merges small segments of a memo. Safe beside running processes and if killed at any time:
//!
//! 1. Renames a segment that no running process writes to (writers lock their segment) to `*.merging`. Readers read
//!    those too. On a file system without locks, a live writer notices after its next record that its file is gone, and
//!    writes that record again to a new segment.
//! 2. Reads all segments, writes them to one file, flushes it, and publishes it under the digest of its content.
//! 3. Removes the segments. If killed before, records exist twice, which is harmless.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use super::segment::{abandoned, list, record, scan};
use super::{Memo, MemoDamage};
use crate::fingerprint::{Digest, hash_bytes, hash_file};
use crate::store::error::{IoContext, StoreError};
use crate::store::files::clear;
use crate::store::layout::Store;
use crate::store::nofollow;

/// Limit of segments per size class.
const MOST: usize = 16;
/// Size limit of the first class; each further class is 16 times larger. A record is thus copied once per class.
const CLASS: u64 = 1 << 20;

impl Store {
    /// Opens the memo of `base`, tidied; an empty one unless `recall`.
    pub(crate) fn recall(&self, base: &Digest, recall: bool) -> Result<Memo, StoreError> {
        if !recall {
            return Ok(Memo::empty(self, base));
        }
        self.tidy_memo(base);
        Memo::open(self, base)
    }

    /// Merges the segments of a memo where a size class has too many. Returns how many were merged. A failure (a full
    /// disk) loses nothing; the merge is tried again later.
    pub fn tidy_memo(&self, base: &Digest) -> usize {
        self.merge_crowded(base).unwrap_or_else(|error| {
            tracing::debug!("cannot merge segments of a memo: {error}");
            0
        })
    }

    fn merge_crowded(&self, base: &Digest) -> Result<usize, StoreError> {
        if self.is_shared() {
            // Segments of a shared store are sent piecewise under their names.
            return Ok(0);
        }
        let folder = self.memo_folder(base);
        let mut classes: [Vec<PathBuf>; 5] = std::array::from_fn(|_| Vec::new());
        // What a merge that was killed has left is merged again, however little it is.
        let mut chosen = Vec::new();
        for path in list(&folder)? {
            if path.extension().is_some_and(|extension| extension == "merging") {
                chosen.push(path);
                continue;
            }
            let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            let class = (0..4).find(|class| size < CLASS << (4 * class)).unwrap_or(4);
            classes[class].push(path);
        }
        chosen.extend(classes.into_iter().filter(|class| class.len() > MOST).flatten());
        if chosen.is_empty() { Ok(0) } else { self.merge(base, chosen) }
    }

    fn merge(&self, base: &Digest, chosen: Vec<PathBuf>) -> Result<usize, StoreError> {
        let taken: Vec<(PathBuf, File)> = chosen.into_iter().filter_map(take).collect();
        if taken.is_empty() {
            return Ok(0);
        }
        let temporary = self.temporary();
        let mut merged = BufWriter::new(nofollow::create(&temporary).context("create", &temporary)?);
        let mut seen = BTreeSet::new();
        let mut written = Ok(());
        let mut damaged = BTreeSet::new();
        for (path, file) in &taken {
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            let scanned = scan(file, 0, length, |found| {
                // Records with equal key and payload are one.
                if written.is_ok() && seen.insert((found.key, hash_bytes(found.payload))) {
                    written = record(found.stamp, &found.key, found.payload)
                        .and_then(|record| merged.write_all(&record).context("write", &temporary));
                }
            });
            if scanned.gaps > 0 {
                damaged.insert(path.clone());
            }
        }
        written?;
        merged.flush().context("write", &temporary)?;
        // On disk before the segments go: these rows were paid for and are nowhere else.
        merged.get_ref().sync_data().context("flush", &temporary)?;
        if seen.is_empty() {
            clear(&temporary);
        } else {
            let digest = hash_file(&temporary).context("read", &temporary)?;
            self.publish(&temporary, &self.memo_folder(base).join(format!("{digest}.rows")))?;
        }
        for (path, _) in &taken {
            if !damaged.contains(path) {
                clear(path);
            } else if let Err(error) = nofollow::rename(path, &path.with_extension("damaged")) {
                tracing::warn!("cannot rename {}: {error}", path.display());
            }
        }
        Ok(taken.len())
    }

    /// Copies the intact records of damaged segments to a new one. The damaged files remain as `*.damaged`, which
    /// nothing reads. A shared store's copy is fetched again.
    ///
    /// # Errors
    /// Fails if the disk or the shared store fails.
    pub(crate) fn mend_memo(&self, base: &Digest, damage: &MemoDamage) -> Result<(), StoreError> {
        if self.is_shared() {
            return damage.segments.iter().try_for_each(|path| self.fetch_segment_again(path));
        }
        self.merge(base, damage.segments.clone())?;
        Ok(())
    }
}

/// Takes over a segment for merging if no process writes to it.
fn take(path: PathBuf) -> Option<(PathBuf, File)> {
    let file = abandoned(&path)?;
    let taken = path.with_extension("merging");
    if taken != path {
        // Another process may have been faster.
        nofollow::rename(&path, &taken).ok()?;
    }
    Some((taken, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::{RowKey, hash_bytes};
    use crate::store::memo::Memo;

    fn key(number: usize) -> RowKey {
        RowKey(hash_bytes(&number.to_le_bytes()))
    }

    fn store() -> (tempfile::TempDir, Store, Digest) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        (folder, store, hash_bytes(b"base"))
    }

    /// A process that stored one record and ended.
    fn dead(store: &Store, base: &Digest, number: usize) {
        Memo::empty(store, base).keep(&key(number), &number.to_le_bytes()).unwrap();
    }

    fn names(store: &Store, base: &Digest) -> Vec<PathBuf> {
        list(&store.memo_folder(base)).unwrap()
    }

    #[test]
    fn segments_of_the_dead_become_one_and_those_of_the_living_stay() {
        let (_folder, store, base) = store();
        let mut living = Memo::empty(&store, &base);
        living.keep(&key(1000), b"first").unwrap();
        (0..30).for_each(|number| dead(&store, &base, number % 20));
        assert_eq!((store.tidy_memo(&base), names(&store, &base).len()), (30, 2));
        living.keep(&key(1001), b"second").unwrap();
        let memo = Memo::open(&store, &base).unwrap();
        assert_eq!(memo.len(), 22, "twenty of the dead, each once, and two of the living");
        assert!((0..20).all(|number| memo.payloads(&key(number)).eq([number.to_le_bytes().to_vec()])));
        assert_eq!(store.tidy_memo(&base), 0, "a few segments are left alone");
    }

    #[test]
    fn a_merge_that_was_killed_loses_nothing() {
        let (_folder, store, base) = store();
        (0..20).for_each(|number| dead(&store, &base, number));
        // Killed after the first renames, before anything was written.
        for path in names(&store, &base).iter().take(7) {
            fs::rename(path, path.with_extension("merging")).unwrap();
        }
        assert_eq!(Memo::open(&store, &base).unwrap().len(), 20);
        assert_eq!(store.tidy_memo(&base), 7, "the left-overs go on");
        assert_eq!(Memo::open(&store, &base).unwrap().len(), 20);
        assert!(names(&store, &base).iter().all(|path| path.extension().unwrap() == "rows"));
    }

    #[test]
    fn a_writer_whose_segment_was_taken_writes_on() {
        let (_folder, store, base) = store();
        let mut memo = Memo::empty(&store, &base);
        memo.keep(&key(1), b"before").unwrap();
        // Can happen where locks do not work.
        let path = names(&store, &base).remove(0);
        let taken = path.with_extension("merging");
        fs::rename(&path, &taken).unwrap();
        memo.keep(&key(2), b"between").unwrap();
        fs::remove_file(&taken).unwrap();
        memo.keep(&key(3), b"after").unwrap();
        let found = Memo::open(&store, &base).unwrap();
        let known = [1, 2, 3].map(|number| found.contains(&key(number)));
        assert_eq!(known, [false, true, true], "the merger has the first one; those after it are in a new segment");
    }

    #[test]
    fn torn_and_damaged_tails_end_a_segment() {
        let (_folder, store, base) = store();
        let mut memo = Memo::empty(&store, &base);
        (0..3).for_each(|number| memo.keep(&key(number), &[7; 100]).unwrap());
        let path = names(&store, &base).remove(0);
        let whole = fs::read(&path).unwrap();
        let known = || Memo::open(&store, &base).unwrap().len();
        for (length, rows) in [(whole.len(), 3), (whole.len() - 1, 2), (160, 1), (20, 0), (0, 0)] {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(known(), rows, "{length} bytes");
        }
        let mut flipped = whole.clone();
        let lost = || Memo::open(&store, &base).unwrap().damage().lost;
        assert_eq!(lost(), 0, "what was cut off was never finished");
        for place in 0..whole.len() {
            flipped[place] ^= 1;
            fs::write(&path, &flipped).unwrap();
            let expected = if (316..320).contains(&place) { (3, 0) } else { (2, 1) };
            assert_eq!(
                (known(), lost()),
                expected,
                "a flipped bit at {place} costs its record, in the last length nothing"
            );
            flipped[place] ^= 1;
        }
        let mut huge = whole;
        huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        fs::write(&path, &huge).unwrap();
        assert_eq!((known(), lost()), (2, 1));
    }

    #[test]
    fn damaged_segments_are_put_aside_once_what_is_whole_was_copied() {
        let (_folder, store, base) = store();
        (0..3).for_each(|number| dead(&store, &base, number));
        let path = names(&store, &base).remove(1);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        let damage = Memo::open(&store, &base).unwrap().damage().clone();
        assert_eq!((damage.segments.len(), damage.lost, damage.whole), (1, 1, 2));
        store.mend_memo(&base, &damage).unwrap();
        let memo = Memo::open(&store, &base).unwrap();
        assert_eq!((memo.len(), memo.damage().lost), (2, 0));
        assert!(path.with_extension("damaged").exists());
    }

    #[test]
    fn records_of_the_first_format_are_read() {
        let (_folder, store, base) = store();
        let folder = store.memo_folder(&base);
        fs::create_dir_all(&folder).unwrap();
        let first = |number| {
            let (length, body) = (7_u32.to_le_bytes(), [key(number).0.as_bytes(), b"payload".as_slice()].concat());
            [&length, &hash_bytes(&body).as_bytes()[..8], &body].concat()
        };
        let second = |number| [b"srm\xff".as_slice(), &first(number)].concat();
        let new = record(5, &key(3).0, b"payload").unwrap();
        fs::write(folder.join("1-0-0.rows"), [first(1), first(2), second(4), new, second(5)].concat()).unwrap();
        let memo = Memo::open(&store, &base).unwrap();
        assert_eq!((memo.len(), memo.damage().lost, memo.newest()), (5, 0, 5));
    }

    #[test]
    fn of_two_records_the_newer_one_counts_wherever_it_lies() {
        let (_folder, store, base) = store();
        let folder = store.memo_folder(&base);
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, stamp, payload: &[u8]| {
            fs::write(folder.join(name), record(stamp, &key(1).0, payload).unwrap()).unwrap();
        };
        write("9-0-0.rows", 20, b"new");
        write("8-0-0.rows", 30, b"newest");
        write("7-0-0.rows", 10, b"old");
        let found = |since| {
            let memo = Memo::open(&store, &base).unwrap().since(since);
            memo.payloads(&key(1)).collect::<Vec<_>>()
        };
        assert_eq!(found(0), [b"newest".to_vec(), b"new".to_vec(), b"old".to_vec()]);
        assert_eq!((found(11).len(), found(31).len()), (2, 0));
        assert!(!Memo::open(&store, &base).unwrap().since(31).contains(&key(1)));
        let mut memo = Memo::open(&store, &base).unwrap();
        memo.keep(&key(1), b"now").unwrap();
        let all = store.merge_memo(&base).unwrap();
        assert_eq!(all, None, "no rows");
        assert_eq!(found(0)[0], b"now");
    }

    #[test]
    fn many_write_and_merge_at_once_and_nothing_is_lost() {
        let (_folder, store, base) = store();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let (store, base) = (&store, &base);
                scope.spawn(move || (0..100).for_each(|number| dead(store, base, writer * 100 + number)));
            }
            for _ in 0..2 {
                let (store, base) = (&store, &base);
                scope.spawn(move || (0..60).for_each(|_| assert!(store.tidy_memo(base) <= 400)));
            }
            let (store, base) = (&store, &base);
            scope.spawn(move || {
                let mut known = 0;
                for _ in 0..60 {
                    let now = Memo::open(store, base).unwrap().len();
                    assert!(now >= known, "{now} rows are known after {known} were");
                    known = now;
                }
            });
        });
        let memo = Memo::open(&store, &base).unwrap();
        assert_eq!((0..400).filter(|number| !memo.contains(&key(*number))).count(), 0);
    }
}
