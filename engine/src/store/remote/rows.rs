//! Cached rows of a shared store: fetches rows of other machines before a memo is read, and uploads appended rows,
//! including those of dead processes.

use std::fs::{self, TryLockError};
use std::path::Path as FilePath;

use bytes::Bytes;

use super::flights::OnlyFetch;
use super::segments::{bytes_of, is_plain, note, noted, object_name, prefix, range_of, text};
use super::{Remote, objects};
use crate::fingerprint::Digest;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::{if_there, names_below, names_in};
use crate::store::layout::Store;
use crate::store::memo::segment::{scan_bytes, whole_records};
use crate::store::nofollow;

/// Attempts to list a memo whose objects change meanwhile.
const LOOKS: usize = 5;

impl Remote {
    fn segment_call(&self, path: &FilePath, sent: u64) -> Result<(), StoreError> {
        let segment = self.segments.segment(path, sent);
        self.call("upload cached rows to", async { segment.lock().await.send(&self.objects).await })
    }

    /// Reads the objects of a memo whose names fit; `None` for those that were removed meanwhile.
    fn segments_of(&self, base: &str, fits: impl Fn(&str) -> bool) -> Result<Vec<(String, Option<Bytes>)>, StoreError> {
        self.call("read cached rows of", async {
            let mut found = objects::list(&self.objects, &prefix(base)).await?;
            found.retain(|found| fits(&found.name));
            objects::get_all(&self.objects, found.into_iter().map(|found| (found.name, found.path))).await
        })
    }
}

impl Store {
    /// Registers a segment of this process for upload of appended records.
    pub(in crate::store) fn watch_segment(&self, path: &FilePath) {
        if let Some(remote) = &self.remote {
            drop(remote.segments.segment(path, 0));
        }
    }

    /// Uploads the records appended to a segment now.
    pub(in crate::store) fn send_segment(&self, path: &FilePath) -> Result<(), StoreError> {
        match &self.remote {
            Some(remote) if path.exists() => remote.segment_call(path, 0),
            _ => Ok(()),
        }
    }

    /// Fetches rows of other machines stored under `base`.
    pub(in crate::store) fn fetch_memo(&self, base: &Digest) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        remote.flights.once(base, || {
            let _alone = OnlyFetch::of(self.root(), base);
            for _ in 0..LOOKS {
                if self.fetch_segments(remote, base)? {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Fetches the shared copy of a locally damaged segment; the damaged file remains as `*.damaged`.
    pub(in crate::store) fn fetch_segment_again(&self, path: &FilePath) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let Some(folder) = path.parent() else { return Ok(()) };
        // One thread or process at a time: a second one would set aside what the first one has fetched.
        let lock_path = self.root().join("leases").join("mending");
        let _alone = nofollow::open_or_create(&lock_path).and_then(|file| file.lock().map(|()| file));
        match if_there(fs::read(path)).context("read", path)? {
            Some(bytes) if scan_bytes(&bytes, |_| {}).gaps > 0 => {}
            // The one that was faster has fetched it already.
            _ => return Ok(()),
        }
        let (name, base) = (text(path.file_name()), text(folder.file_name()));
        let own = object_name(&remote.machine, &text(path.file_stem()));
        let fetched =
            remote.segments_of(&base, |found| found == name || (is_plain(found) && range_of(found, &own).is_some()))?;
        // What was never uploaded is nowhere else: its intact records stay in use.
        if fetched.is_empty() {
            return Ok(());
        }
        nofollow::rename(path, &path.with_extension("damaged")).context("rename", path)?;
        for (name, content) in fetched {
            if let Some(content) = content {
                self.cache_segment(folder, &name, &content)?;
            }
        }
        Ok(())
    }

    /// Fetches new segments. Returns whether all listed objects still existed.
    fn fetch_segments(&self, remote: &Remote, base: &Digest) -> Result<bool, StoreError> {
        let folder = self.memo_folder(base);
        let known = noted(&folder);
        let fetched = remote.segments_of(&base.hex(), |name| !known.contains(name) && is_plain(name))?;
        let mut all = true;
        for (name, content) in fetched {
            match content {
                Some(content) => self.cache_segment(&folder, &name, &content)?,
                // Its owner has replaced it meanwhile; the next listing has the replacement.
                None => all = false,
            }
        }
        Ok(all)
    }

    fn cache_segment(&self, folder: &FilePath, name: &str, content: &[u8]) -> Result<(), StoreError> {
        let (whole, bytes) = (whole_records(content), bytes_of(name).unwrap_or(content.len()));
        if whole < bytes {
            tracing::warn!("rows {name} in the shared store are damaged: using {whole} of {bytes} bytes");
        }
        let path = folder.join(name);
        // Noted after it is here: killed in between, this machine fetches it once more.
        self.write_file(&path, content)?;
        note(&path, name).context("write", &path)
    }

    /// Uploads segments left behind by processes that died on this machine.
    pub(super) fn send_segments(&self) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        for (_, folder) in names_below(&self.root().join("memo")) {
            let known = noted(&folder);
            for (name, path) in names_in(&folder) {
                let (Some(stem), false) = (name.strip_suffix(".rows"), known.contains(&name)) else { continue };
                // A running process uploads its segment itself. Without file locks this is unknown, and the segment is
                // uploaded: a duplicate upload is harmless.
                let file = fs::File::open(&path);
                if file.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock))) {
                    continue;
                }
                let segment = object_name(&remote.machine, stem);
                // The dead process noted what it had uploaded.
                let sent = known.iter().filter_map(|object| range_of(object, &segment)).map(|range| range.1).max();
                let (sent, bytes) = (sent.unwrap_or(0), fs::metadata(&path).map_or(0, |metadata| metadata.len()));
                if bytes > sent {
                    remote.segment_call(&path, sent)?;
                }
            }
        }
        Ok(())
    }
}
