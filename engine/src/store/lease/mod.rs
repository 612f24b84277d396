//! Leases: one process computes a key, the others wait and reuse its result. Also protects a store in use from
//! collection.
//!
//! Three guards, each for what the previous one does not cover. A file lock works between processes of a machine. A
//! claim file that changes while its holder lives works between machines on one file system. A claim object does the
//! same between machines that share a store.

pub(super) mod claim_file;
pub(super) mod heartbeat;
pub(super) mod owner;

use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::time::Duration;

use self::claim_file::ClaimFile;
use self::heartbeat::Watch;
use super::error::{IoContext, StoreError};
use super::files::lock;
use super::layout::Store;
use super::nofollow;
use super::remote::RemoteLease;
use crate::fingerprint::NodeKey;

/// Held while a process computes a key. If the process dies, the operating system releases the lock, and the other
/// guards are detected as dead. Guards are dropped from the outermost to the innermost.
#[derive(Debug)]
pub struct Lease {
    remote: Option<RemoteLease>,
    guard: ClaimFile,
    _file: File,
}

impl Lease {
    /// Whether this process still holds it, as seen by others. A process that was suspended for long may count as dead.
    ///
    /// # Errors
    /// Fails if a shared store cannot be reached.
    pub fn is_ours(&self) -> Result<bool, StoreError> {
        Ok(self.guard.is_ours() && self.remote.as_ref().map_or(Ok(true), RemoteLease::is_ours)?)
    }

    /// Whether it is known that another machine has taken it. Asks nobody.
    pub fn is_lost(&self) -> bool {
        self.remote.as_ref().is_some_and(RemoteLease::is_lost)
    }
}

/// What a waiting process has seen of a key's holders.
#[derive(Debug, Default)]
struct Watches {
    file: Watch,
    object: Watch,
}

/// Held while a process reads or adds results. Nothing is collected meanwhile.
#[derive(Debug)]
pub struct StoreUse {
    pub(super) guard: Option<ClaimFile>,
    _file: File,
}

/// Other users of the store.
#[derive(Debug)]
pub(super) enum Others {
    /// None, and none can begin while this is held.
    Nobody { _held: StoreUse },
    /// At least one.
    Somebody,
    /// The file system cannot tell.
    Unknown,
}

/// Locks a device of this machine for this process, or returns `None` while another process holds it, whatever store it
/// uses. Dropping the file releases the device.
///
/// # Errors
/// Fails if the lock file cannot be created.
pub(crate) fn device_lock(device: &str) -> Result<Option<File>, StoreError> {
    let folder = std::env::temp_dir().join("searchmill-devices");
    nofollow::create_folder(&folder).context("create", &folder)?;
    lock(&folder.join(device.replace(['/', '\\'], "-")))
}

impl Store {
    fn use_path(&self) -> PathBuf {
        self.root().join("leases").join("store")
    }

    pub(super) fn door_path(&self) -> PathBuf {
        self.root().join("leases").join("door")
    }

    fn use_file(&self) -> Result<File, StoreError> {
        let path = self.use_path();
        nofollow::open_or_create(&path).context("open", &path)
    }

    /// Begins to use the store, together with others. Waits while another process collects.
    ///
    /// # Errors
    /// Fails if the lease file cannot be created.
    pub fn enter(&self) -> Result<StoreUse, StoreError> {
        let file = self.use_file()?;
        // Waits while a collection holds it alone. Without locks, the announcement below is what a collection looks at.
        if let Err(error) = file.lock_shared() {
            tracing::debug!("cannot lock {}: {error}", self.use_path().display());
        }
        // Nothing is released between the look at who uses the store and this announcement.
        let door = nofollow::open_or_create(&self.door_path()).ok();
        if let Some(Err(error)) = door.as_ref().map(File::lock_shared) {
            tracing::debug!("cannot lock {}: {error}", self.door_path().display());
        }
        Ok(StoreUse { guard: self.announce(), _file: file })
    }

    /// Excludes all others if nobody else uses the store.
    pub(super) fn alone(&self) -> Result<Others, StoreError> {
        let file = self.use_file()?;
        Ok(match file.try_lock() {
            Ok(()) if self.is_used_elsewhere(true) => Others::Somebody,
            Ok(()) => Others::Nobody { _held: StoreUse { guard: None, _file: file } },
            Err(TryLockError::WouldBlock) => Others::Somebody,
            Err(TryLockError::Error(error)) => {
                tracing::debug!("cannot lock {}: {error}", self.use_path().display());
                if self.is_used_elsewhere(false) { Others::Somebody } else { Others::Unknown }
            }
        })
    }

    /// Takes the lease on a key, or returns `None` while another process holds it.
    ///
    /// # Errors
    /// Fails if the lease file cannot be created or a shared store cannot be reached.
    pub fn try_lease(&self, key: &NodeKey) -> Result<Option<Lease>, StoreError> {
        self.try_lease_again(key, &mut Watches::default())
    }

    fn try_lease_again(&self, key: &NodeKey, watches: &mut Watches) -> Result<Option<Lease>, StoreError> {
        let path = self.root().join("leases").join(key.0.hex());
        let file = nofollow::open_or_create(&path).context("open", &path)?;
        // From the nearest guard to the farthest: one machine's processes settle among themselves who asks the others.
        let locked = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                tracing::debug!("cannot lock {}: {error}", path.display());
                false
            }
        };
        let Some(guard) = self.claim(path.with_extension("held"), locked, &mut watches.file)? else { return Ok(None) };
        let Some(remote) = &self.remote else { return Ok(Some(Lease { remote: None, guard, _file: file })) };
        match remote.try_lease(key, &mut watches.object)? {
            Some(remote) => Ok(Some(Lease { remote: Some(remote), guard, _file: file })),
            None => Ok(None),
        }
    }

    /// Waits for the lease on a key. Returns `None` once `stop` returns true.
    ///
    /// # Errors
    /// Fails if the lease file cannot be created or a shared store cannot be reached.
    pub async fn lease(&self, key: &NodeKey, stop: impl Fn() -> bool) -> Result<Option<Lease>, StoreError> {
        let mut watches = Watches::default();
        // A look costs a request there, and a system call here.
        let (first, longest) = if self.is_shared() { (100, 1000) } else { (2, 200) };
        let mut wait = Duration::from_millis(first);
        loop {
            if let Some(lease) = self.try_lease_again(key, &mut watches)? {
                return Ok(Some(lease));
            }
            if stop() {
                return Ok(None);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_millis(longest));
        }
    }
}
