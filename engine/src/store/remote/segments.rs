//! Uploads the rows that a process appends to its own segment, every few seconds, as immutable objects.
//!
//! `rows` fetches the rows of other machines before a memo is read. An object `<machine>.<segment>.<start>-<end>.rows`
//! contains whole records of a segment, by byte range. If another object has that name, as after copying a local cache,
//! it is `<machine>.<segment>.<mark>.<start>-<end>.rows`. Beside the segments of a memo, `shared.txt` lists the objects
//! that are already local, own ones included.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::objects::{self, Objects, Reply};
use crate::store::error::reason;
use crate::store::memo::segment::whole_records;
use crate::store::nofollow;
use crate::store::paths::sharded;

/// Upload interval: short at first, so that little is lost if a machine is suspended early, then longer.
const FIRST: Duration = Duration::from_millis(200);
const EVERY: Duration = Duration::from_secs(3);
/// Limit of a segment's name within an object name.
const LONGEST: usize = 32;
/// Names tried for one object.
const NAMES: usize = 4;
/// File that lists the local objects.
const LIST: &str = "shared.txt";

/// Upload state of a segment of this process.
pub(super) struct Segment {
    path: PathBuf,
    prefix: Path,
    /// `<machine>.<segment>`.
    name: String,
    /// Suffix of the name after a conflict with another object: `.<mark>`.
    mark: String,
    sent: u64,
    objects: Vec<String>,
    /// Wait before the next upload, and when it ends.
    wait: Duration,
    due: Instant,
}

/// The segments that this process writes.
pub(super) struct Segments {
    pub(super) objects: Objects,
    pub(super) machine: String,
    pub(super) open: Mutex<BTreeMap<PathBuf, Arc<tokio::sync::Mutex<Segment>>>>,
}

pub(super) fn text(name: Option<&OsStr>) -> String {
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns `<machine>.<segment>`, with a shortened segment name if that is a digest.
pub(super) fn object_name(machine: &str, stem: &str) -> String {
    let stem = if stem.len() > LONGEST { &stem[..LONGEST] } else { stem };
    format!("{machine}.{stem}")
}

/// Returns the prefix of the rows of a memo.
pub(super) fn prefix(base: &str) -> Path {
    Path::from(sharded("memo", base))
}

impl Segments {
    pub(super) fn segment(&self, path: &FilePath, sent: u64) -> Arc<tokio::sync::Mutex<Segment>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let segment = open.entry(path.to_owned()).or_insert_with(|| {
            Arc::new(tokio::sync::Mutex::new(Segment {
                path: path.to_owned(),
                prefix: prefix(&text(path.parent().and_then(FilePath::file_name))),
                name: object_name(&self.machine, &text(path.file_stem())),
                mark: String::new(),
                sent,
                objects: Vec::new(),
                wait: FIRST,
                due: Instant::now() + FIRST,
            }))
        });
        Arc::clone(segment)
    }

    pub(super) fn all(&self) -> Vec<Arc<tokio::sync::Mutex<Segment>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Uploads new records repeatedly until the store is closed.
    pub(super) async fn keep_sending(segments: Weak<Self>) {
        let mut warned = false;
        loop {
            tokio::time::sleep(FIRST).await;
            let Some(segments) = segments.upgrade() else { return };
            for segment in segments.all() {
                let mut segment = segment.lock().await;
                if Instant::now() < segment.due {
                    continue;
                }
                let sent = segment.send(&segments.objects).await;
                segment.wait = (segment.wait * 2).min(EVERY);
                segment.due = Instant::now() + segment.wait;
                if !warned && let Err(error) = sent {
                    // Once: the end of the run fails with the reason if it lasts.
                    warned = true;
                    let reason = reason(&error);
                    tracing::warn!("cannot upload cached rows now; they remain in the local copy: {reason}");
                }
            }
        }
    }
}

impl Segment {
    /// Uploads the whole records appended since the last upload.
    pub(super) async fn send(&mut self, objects: &Objects) -> Reply<()> {
        let bytes = self.read(self.sent).map_err(objects::generic)?;
        // The process may be in the middle of a record.
        let whole = whole_records(&bytes);
        if whole == 0 {
            return Ok(());
        }
        let name = self.put(objects, self.sent, Bytes::from(bytes).slice(..whole)).await?;
        self.objects.push(name);
        self.sent += whole as u64;
        Ok(())
    }

    /// Uploads the segment from `start` on, notes the object and returns its name. Never overwrites an object, as it may
    /// contain rows that another process has paid for.
    async fn put(&mut self, objects: &Objects, start: u64, content: Bytes) -> Reply<String> {
        let end = start + content.len() as u64;
        for _ in 0..NAMES {
            let name = format!("{}{}.{start}-{end}.rows", self.name, self.mark);
            let path = self.prefix.clone().join(name.as_str());
            let existing = objects::put_first(objects, &path, content.clone()).await?;
            // Either a put with a lost answer succeeded, or two processes upload the segment of a dead one.
            if existing.is_none_or(|existing| existing == content) {
                // Noted once it is there: killed in between, the next run finds equal content under its name.
                note(&self.path, &name).map_err(objects::generic)?;
                return Ok(name);
            }
            self.mark = format!(".{:016x}", rand::random::<u64>());
        }
        Err(objects::generic("other objects have the names of cached rows"))
    }

    /// Uploads the rest, and replaces many objects by one.
    pub(super) async fn finish(&mut self, objects: &Objects) -> Reply<()> {
        self.send(objects).await?;
        if self.objects.len() < 2 {
            return Ok(());
        }
        let first = self.objects.first().and_then(|name| range_of(name, &self.name)).map_or(0, |range| range.0);
        let content = Bytes::from(self.read(first).map_err(objects::generic)?).slice(..(self.sent - first) as usize);
        let name = self.put(objects, first, content).await?;
        // After the whole is there: another machine that lists meanwhile finds rows twice, never too few.
        for old in std::mem::replace(&mut self.objects, vec![name]) {
            objects.delete(&self.prefix.clone().join(old.as_str())).await?;
        }
        Ok(())
    }

    fn read(&self, from: u64) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut file = fs::File::open(&self.path)?;
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Returns the byte range of a segment (`<machine>.<segment>`) that an object contains, if it belongs to that segment.
pub(super) fn range_of(object: &str, segment: &str) -> Option<(u64, u64)> {
    let rest = object.strip_prefix(segment)?.strip_prefix('.')?.strip_suffix(".rows")?;
    let range = rest.rsplit_once('.').map_or(rest, |(_mark, range)| range);
    let (start, end) = range.split_once('-')?;
    Some((start.parse().ok()?, end.parse().ok()?))
}

/// Returns the number of bytes that an object was created with.
pub(super) fn bytes_of(object: &str) -> Option<usize> {
    let (segment, _) = object.strip_suffix(".rows")?.rsplit_once('.')?;
    let (start, end) = range_of(object, segment)?;
    usize::try_from(end.checked_sub(start)?).ok()
}

/// Records that an object is local.
pub(super) fn note(beside: &FilePath, object: &str) -> std::io::Result<()> {
    // One write: of two processes that append, no line is cut by the other's.
    nofollow::append(&beside.with_file_name(LIST))?.write_all(format!("{object}\n").as_bytes())
}

pub(super) fn noted(folder: &FilePath) -> BTreeSet<String> {
    fs::read_to_string(folder.join(LIST)).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Whether a name can be that of a segment and of a file.
pub(super) fn is_plain(name: &str) -> bool {
    !name.starts_with('.')
        && name.strip_suffix(".rows").is_some()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::fingerprint::hash_bytes;
    use crate::store::memo::segment::{record, scan_bytes};
    use crate::store::remote::objects::Listed;

    #[test]
    fn names_of_objects_say_which_bytes_they_hold() {
        assert_eq!(range_of("m.12-0-0.100-250.rows", "m.12-0-0"), Some((100, 250)));
        for other in ["m.12-0-01.0-9.rows", "n.12-0-0.0-9.rows", "m.12-0-0.rows", "m.12-0-0.0-9", "m.12-0-0.x-9.rows"] {
            assert_eq!(range_of(other, "m.12-0-0"), None, "{other}");
        }
        assert_eq!(range_of("m.12-0-0.1f2e.100-250.rows", "m.12-0-0"), Some((100, 250)), "with a mark");
        assert_eq!((bytes_of("m.12-0-0.100-250.rows"), bytes_of("m.12-0-0.rows")), (Some(150), None));
        assert_eq!(bytes_of("m.12-0-0.1f2e.100-250.rows"), Some(150));
        assert!(is_plain("m.12-0-0.0-9.rows"));
        for odd in ["../x.rows", ".rows", "a/b.rows", "x.json", "shared.txt"] {
            assert!(!is_plain(odd), "{odd}");
        }
    }

    fn segment(path: PathBuf) -> Segment {
        let (name, now) = ("m.4711-0-0".to_owned(), Instant::now());
        let (prefix, mark, objects) = (prefix("ab"), String::new(), Vec::new());
        Segment { path, prefix, name, mark, sent: 0, objects, wait: FIRST, due: now }
    }

    #[tokio::test]
    async fn what_another_process_has_sent_is_never_overwritten() {
        let (folder, objects): (_, Objects) = (tempfile::tempdir().unwrap(), Arc::new(InMemory::new()));
        let write = |name: &str, payloads: &[&[u8]]| {
            let folder = folder.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            let records = payloads.iter().map(|payload| record(1, &hash_bytes(payload), payload).unwrap());
            fs::write(folder.join("4711-0-0.rows"), records.collect::<Vec<_>>().concat()).unwrap();
            folder.join("4711-0-0.rows")
        };
        // Two copies of one local cache, with segments of equal name and length.
        let mut one = segment(write("one", &[b"first"]));
        let mut other = segment(write("other", &[b"other"]));
        let mut again = segment(write("again", &[b"first"]));
        for segment in [&mut one, &mut other, &mut again] {
            segment.send(&objects).await.unwrap();
        }
        assert_eq!(again.objects, one.objects, "the same records are one object");
        write("one", &[b"first", b"again"]);
        write("other", &[b"other", b"still"]);
        for segment in [&mut one, &mut other] {
            segment.send(&objects).await.unwrap();
            segment.finish(&objects).await.unwrap();
        }
        let mut found = BTreeSet::new();
        for Listed { name, path, .. } in objects::list(&objects, &prefix("ab")).await.unwrap() {
            assert_eq!(range_of(&name, "m.4711-0-0").map(|range| range.0), Some(0), "{name}");
            let (content, _) = objects::get(&objects, &path).await.unwrap().unwrap();
            scan_bytes(&content, |record| found.extend([record.payload.to_vec()]));
        }
        assert_eq!(found, [b"again", b"first", b"other", b"still"].map(|payload| payload.to_vec()).into());
    }
}
