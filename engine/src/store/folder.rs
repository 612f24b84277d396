//! Inspects folders: names, sizes, ages.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::error::{IoContext, StoreError};
use super::files::if_there;
use super::nofollow;

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
