//! Locks, lists and removes files and folders that may be missing or held by another process.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

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

/// Returns the entries of a folder with their names, sorted.
pub(super) fn names_in(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    if let Ok(entries) = fs::read_dir(folder) {
        for entry in entries.flatten() {
            found.push(named(&entry));
        }
    }
    found.sort();
    found
}

/// Returns the entries of a folder like [`names_in`]; of a missing folder, none.
///
/// # Errors
/// Fails if the folder cannot be read.
pub(super) fn all_names_in(folder: &Path) -> Result<Vec<(String, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for entry in if_there(fs::read_dir(folder)).context("read", folder)?.into_iter().flatten() {
        found.push(named(&entry.context("read", folder)?));
    }
    found.sort();
    Ok(found)
}

fn named(entry: &fs::DirEntry) -> (String, PathBuf) {
    (entry.file_name().to_string_lossy().into_owned(), entry.path())
}

/// Returns the entries of all subfolders (`ab/…`), sorted by name.
pub(super) fn names_below(folder: &Path) -> Vec<(String, PathBuf)> {
    names_in(folder).iter().flat_map(|(_, path)| names_in(path)).collect()
}

/// Returns the total bytes of all files in a folder, recursively.
pub(super) fn folder_bytes(folder: &Path) -> u64 {
    let mut pending = vec![folder.to_owned()];
    let mut bytes = 0;
    while let Some(folder) = pending.pop() {
        for (_, path) in names_in(&folder) {
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => pending.push(path),
                Ok(metadata) => bytes += metadata.len(),
                // Another process has just removed it.
                Err(_) => {}
            }
        }
    }
    bytes
}

/// Returns the Unix time (seconds) of a file's last change; infinity if it is unknown.
pub(super) fn modified(path: &Path) -> f64 {
    let Ok(time) = fs::metadata(path).and_then(|metadata| metadata.modified()) else { return f64::INFINITY };
    // A time before 1970 says nothing.
    time.duration_since(UNIX_EPOCH).map_or(f64::INFINITY, |since| since.as_secs_f64())
}

/// Removes a folder if it exists.
pub(super) fn remove(path: &Path) -> Result<(), StoreError> {
    nofollow::remove(path).context("remove", path)
}
