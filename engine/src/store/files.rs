//! Opens, locks and removes files that may be missing or held by another process.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use super::error::{IoContext, StoreError};
use super::nofollow;

/// Returns `None` if what was asked for does not exist.
pub(super) fn if_there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Removes a file or folder if it exists. If that fails, it is harmless.
pub(super) fn clear(path: &Path) {
    if let Err(error) = nofollow::remove(path) {
        tracing::debug!("cannot remove {}: {error}", path.display());
    }
}

/// Locks a file, creating it if needed, or returns `None` while another process holds it. Fails without file locks.
pub(super) fn lock(path: &Path) -> Result<Option<File>, StoreError> {
    let file = nofollow::open_or_create(path).context("open", path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error).context("lock", path),
    }
}
