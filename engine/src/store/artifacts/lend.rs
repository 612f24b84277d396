//! Gives programs a copy of a folder artifact, so that they can neither change the store's files nor add to them.

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use super::description::{IN_FOLDER, is_in_folder};
use crate::store::files::clear;
use crate::store::nofollow::{self, EntryKind};

/// Largest folder in bytes that is copied where the file system cannot share blocks between files. Larger ones are hard
/// links, whose files are looked at again after the program has ended.
const COPIED: u64 = 1 << 30;

/// A folder lent to a program; removed when dropped.
#[derive(Debug)]
pub struct Lent {
    /// The program's own folder.
    pub folder: PathBuf,
    /// Files shared with the store, as they were.
    shared: Vec<(PathBuf, Metadata)>,
}

impl Lent {
    /// Returns a file of the store that the program changed.
    pub fn changed(&self) -> Option<&Path> {
        for (path, found) in &self.shared {
            match std::fs::metadata(path) {
                Ok(now) if now.len() == found.len() && now.modified().ok() == found.modified().ok() => {}
                _ => return Some(path),
            }
        }
        None
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        clear(&self.folder);
    }
}

/// Creates `to` with the content of a folder artifact, for one program. Files share their blocks with the store's where
/// the file system can do that; else they are copies, or hard links if there is much of them.
///
/// # Errors
/// Fails if the artifact cannot be read or `to` cannot be written.
pub fn lend(artifact: &Path, to: &Path) -> io::Result<Lent> {
    // The store's path is canonical; an artifact of a test need not be.
    let artifact = artifact.canonicalize()?;
    nofollow::fresh_folder(to)?;
    let contents = nofollow::contents(&artifact)?;
    let described = is_in_folder(&artifact);
    let mut bytes = 0;
    for (path, found) in &contents {
        if *found == EntryKind::File {
            bytes += std::fs::symlink_metadata(artifact.join(path))?.len();
        }
    }
    let mut shared = Vec::new();
    for (path, found) in contents {
        let (from, to) = (artifact.join(&path), to.join(&path));
        match found {
            EntryKind::Folder => nofollow::create_folder(&to)?,
            EntryKind::File if described && path == Path::new(IN_FOLDER) => {}
            EntryKind::File => shared.extend(lend_file(&from, &to, bytes <= COPIED)?),
            // An artifact contains nothing else; what was added is damage, and not lent.
            EntryKind::Link | EntryKind::Other => {}
        }
    }
    Ok(Lent { folder: to.to_owned(), shared })
}

/// Copies or links one file. Returns its state if the store's own file was linked.
fn lend_file(from: &Path, to: &Path, copied: bool) -> io::Result<Option<(PathBuf, Metadata)>> {
    let mut source = nofollow::open(from)?;
    // Of the open file: its path may lead to another one by now.
    let found = source.metadata()?;
    let mut target = nofollow::create_new(to)?;
    #[cfg(target_os = "linux")]
    if rustix::fs::ioctl_ficlone(&target, &source).is_ok() {
        return Ok(None);
    }
    if copied {
        io::copy(&mut source, &mut target)?;
        return Ok(None);
    }
    nofollow::remove_file(to)?;
    match nofollow::hard_link(from, to) {
        Ok(()) => Ok(Some((from.to_owned(), found))),
        // The artifacts are on another file system than `tmp/`.
        Err(_) => nofollow::copy(from, to).map(|_| None),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_lent_folder_is_the_programs_own() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let artifact = root.join("artifact");
        fs::create_dir_all(artifact.join("deep")).unwrap();
        fs::write(artifact.join("deep/weights"), "weights").unwrap();
        let lent = lend(&artifact, &root.join("lent")).unwrap();
        assert_eq!(fs::read_to_string(lent.folder.join("deep/weights")).unwrap(), "weights");
        fs::write(lent.folder.join("deep/weights"), "changed").unwrap();
        fs::write(lent.folder.join("lock"), "").unwrap();
        assert_eq!(fs::read_to_string(artifact.join("deep/weights")).unwrap(), "weights");
        assert!(!artifact.join("lock").exists() && lent.changed().is_none());
    }

    #[test]
    fn a_change_of_a_file_that_the_store_shares_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        fs::write(root.join("weights"), "weights").unwrap();
        let shared = lend_file(&root.join("weights"), &root.join("lent"), false).unwrap();
        let lent = Lent { folder: root.clone(), shared: shared.into_iter().collect() };
        assert!(lent.changed().is_none());
        if lent.shared.is_empty() {
            // The file system shares blocks: the file is the program's own.
            return;
        }
        fs::write(root.join("lent"), "weightier").unwrap();
        assert_eq!(lent.changed(), Some(root.join("weights").as_path()));
    }
}
