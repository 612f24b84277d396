//! Leases: one process computes a key, the others wait and then reuse.

use std::fs::{File, OpenOptions, TryLockError};
use std::time::Duration;

use super::error::StoreError;
use super::layout::Store;
use crate::fingerprint::NodeKey;

/// Held while a process computes a key. The operating system lets go of it when the process dies.
#[derive(Debug)]
pub struct Lease {
    _file: File,
}

impl Store {
    /// Takes the lease on a key, or `None` while another process holds it.
    ///
    /// # Errors
    /// When the lease file cannot be made.
    pub fn try_lease(&self, key: &NodeKey) -> Result<Option<Lease>, StoreError> {
        let path = self.lease_path(key);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(StoreError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lease { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            // A file system without locks: results stay right (first writer wins), work may be done twice.
            Err(TryLockError::Error(error)) => {
                tracing::debug!("no lock on {}: {error}", path.display());
                Ok(Some(Lease { _file: file }))
            }
        }
    }

    /// Waits for the lease on a key; gives `None` when `stop` says so.
    ///
    /// # Errors
    /// When the lease file cannot be made.
    pub async fn lease(&self, key: &NodeKey, stop: impl Fn() -> bool) -> Result<Option<Lease>, StoreError> {
        let mut wait = Duration::from_millis(2);
        loop {
            if let Some(lease) = self.try_lease(key)? {
                return Ok(Some(lease));
            }
            if stop() {
                return Ok(None);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_millis(200));
        }
    }
}
