//! The second guard of leases: claim files, for file systems whose locks fail or do not reach other machines.
//!
//! Only one process can create a claim file, and its content changes while the holder lives. On one machine, locks
//! decide: if this process holds the lock, a claim of this machine belongs to a dead process. Claims of other machines
//! are watched for changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::StoreError;
use super::heartbeat::{Claim, DEAD, Heartbeat, Watch};
use super::layout::Store;
use super::process::machine;

/// A held claim. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct Guard {
    _beating: Heartbeat,
    path: PathBuf,
    holder: String,
}

impl Guard {
    /// Whether the file still contains this claim.
    pub(super) fn is_ours(&self) -> bool {
        is_held_by(&self.path, &self.holder)
    }
}

fn is_held_by(path: &Path, holder: &str) -> bool {
    read(path).is_some_and(|(_, found)| found.is_some_and(|found| found.holder == holder))
}

fn read(path: &Path) -> Option<(String, Option<Claim>)> {
    let text = fs::read_to_string(path).ok()?;
    let claim = serde_json::from_str(&text).ok();
    Some((text, claim))
}

fn text(claim: &Claim) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(claim).map_err(|error| StoreError::Location(error.to_string()))
}

impl Store {
    /// Creates a claim file atomically. Returns `false` if one exists.
    fn make_claim(&self, path: &Path, claim: &Claim) -> Result<bool, StoreError> {
        let (temporary, text) = (self.temporary(), text(claim)?);
        fs::write(&temporary, &text).map_err(StoreError::io("write", &temporary))?;
        let linked = fs::hard_link(&temporary, path);
        fs::remove_file(&temporary).map_err(StoreError::io("remove", &temporary))?;
        let made = match linked {
            Ok(()) => return Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(false),
            // The file system has no hard links.
            Err(_) => fs::File::create_new(path).and_then(|mut file| std::io::Write::write_all(&mut file, &text)),
        };
        match made {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
            made => made.map(|()| true).map_err(StoreError::io("create", path)),
        }
    }

    fn put_claim(&self, path: &Path, claim: &Claim) -> Result<(), StoreError> {
        let temporary = self.temporary();
        fs::write(&temporary, text(claim)?).map_err(StoreError::io("write", &temporary))?;
        self.rename(&temporary, path)
    }

    /// Takes the claim at `path`, or returns `None` while another process holds it. `alone`: a lock proves that no
    /// process of this machine holds it.
    pub(super) fn try_guard(&self, path: PathBuf, alone: bool, watch: &mut Watch) -> Result<Option<Guard>, StoreError> {
        let claim = Claim::new(machine().to_owned());
        if self.make_claim(&path, &claim)? {
            return Ok(Some(self.guard(path, claim)));
        }
        let Some((seen, found)) = read(&path) else { return Ok(None) };
        let left = found.as_ref().is_some_and(|found| alone && found.machine == claim.machine);
        if !left && !watch.is_dead(&seen) {
            return Ok(None);
        }
        Ok(self.inherit(&path, &seen, &claim)?.then(|| self.guard(path, claim)))
    }

    /// Replaces a dead claim unless another heir was faster.
    fn inherit(&self, path: &Path, dead: &str, claim: &Claim) -> Result<bool, StoreError> {
        let of = crate::fingerprint::hash_bytes(dead.as_bytes()).short();
        let right = path.with_extension(format!("heir-{of}"));
        if !self.make_claim(&right, claim)? {
            return Ok(false);
        }
        // Another heir may have finished since the claim was read.
        let same = read(path).is_some_and(|(seen, _)| seen == dead);
        if same {
            self.put_claim(path, claim)?;
        }
        fs::remove_file(&right).map_err(StoreError::io("remove", &right))?;
        Ok(same)
    }

    fn guard(&self, path: PathBuf, mut claim: Claim) -> Guard {
        let (store, held, holder) = (self.clone(), path.clone(), claim.holder.clone());
        let beat = move |last: bool| {
            if !is_held_by(&path, &claim.holder) {
                return;
            }
            claim.beat(last);
            let told = if last {
                fs::remove_file(&path).map_err(StoreError::io("remove", &path))
            } else {
                store.put_claim(&path, &claim)
            };
            if let Err(error) = told {
                tracing::debug!("cannot update a claim: {error}");
            }
        };
        Guard { _beating: Heartbeat::start(beat), path: held, holder }
    }

    fn users_folder(&self) -> PathBuf {
        self.root().join("leases").join("users")
    }

    /// Announces to other machines that this process uses the store. A read-only store is never collected, so a failure
    /// is harmless.
    pub(super) fn announce(&self) -> Option<Guard> {
        let claim = Claim::new(machine().to_owned());
        let folder = self.users_folder();
        fs::create_dir_all(&folder).ok()?;
        let path = folder.join(format!("{}.json", claim.holder));
        self.make_claim(&path, &claim).ok()?.then(|| self.guard(path, claim))
    }

    /// Whether a process of another machine uses the store. Takes some seconds if there are claims. `alone`: a lock
    /// proves that no process of this machine does.
    pub(super) fn is_used_elsewhere(&self, alone: bool) -> bool {
        let mut others: Vec<(PathBuf, String)> = Vec::new();
        for entry in fs::read_dir(self.users_folder()).into_iter().flatten().filter_map(Result::ok) {
            let path = entry.path();
            match read(&path) {
                Some((_, Some(claim))) if alone && claim.machine == machine() => remove(&path),
                Some((seen, _)) => others.push((path, seen)),
                None => {}
            }
        }
        let start = Instant::now();
        while !others.is_empty() && start.elapsed() < DEAD {
            std::thread::sleep(Duration::from_millis(250));
            if others.iter().any(|(path, seen)| read(path).is_some_and(|found| found.0 != *seen)) {
                return true;
            }
        }
        for (path, _) in &others {
            remove(path);
        }
        false
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!("cannot remove {}: {error}", path.display());
    }
}
