//! Puts a written artifact at a local path: a file by one rename, a folder by an exchange with the one that was there.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use searchmill_engine::operator::{MANIFEST_ENDING, OperatorError};
use tempfile::TempDir;

use super::manifest::Manifest;

/// Brings a path and its manifest up to the artifact in `tree`; true when everything was there already.
pub(crate) fn to_path(tree: &Path, manifest: &Manifest, destination: &Path) -> Result<bool, OperatorError> {
    // Without a slash at its end, which would put the manifest into the folder.
    let destination: PathBuf = destination.components().collect();
    let beside = PathBuf::from(format!("{}{MANIFEST_ENDING}", destination.display()));
    check(&destination, manifest.folder)?;
    check(&beside, false)?;
    let text = manifest.text()?;
    let done = if manifest.folder {
        Delivery { tree, manifest, text: &text, beside: &beside }.bring(&destination)
    } else {
        file(tree, manifest, &destination).and_then(|same| Ok(replace(&beside, || Ok(text.as_bytes()))? && same))
    };
    done.map_err(|error| {
        OperatorError::machine(format!("cannot write {}: {error}", destination.display()))
            .with_help("check that the folder may be written to and has room")
    })
}

/// Only regular files and folders are replaced: opening a pipe would wait for ever.
fn check(place: &Path, folder: bool) -> Result<(), OperatorError> {
    let Ok(found) = fs::metadata(place) else { return Ok(()) };
    let (what, help) = match (found.is_file(), found.is_dir()) {
        (true, _) if folder => ("a file, and a folder is to be written", "remove the file, or give another path"),
        (_, true) if !folder => ("a folder, and a file is to be written", "remove the folder, or give another path"),
        (false, false) => ("a pipe, socket or device", "write to a regular file"),
        _ => return Ok(()),
    };
    Err(OperatorError::machine(format!("cannot write {}: it is {what}", place.display())).with_help(help))
}

fn file(tree: &Path, manifest: &Manifest, destination: &Path) -> io::Result<bool> {
    let mut unchanged = true;
    for file in &manifest.files {
        unchanged &= replace(destination, || File::open(tree.join(&file.path)))?;
    }
    Ok(unchanged)
}

/// A folder to be delivered.
struct Delivery<'a> {
    tree: &'a Path,
    manifest: &'a Manifest,
    text: &'a str,
    beside: &'a Path,
}

impl Delivery<'_> {
    /// Everything is written beside the destination first: without room on the disk the old folder stays as it was.
    fn bring(&self, destination: &Path) -> io::Result<bool> {
        // Where a link leads to; the link stays.
        let target = destination.canonicalize().unwrap_or_else(|_| destination.to_owned());
        if self.is_there(&target)? {
            return Ok(true);
        }
        let mut room = room_beside(&target)?;
        let (new, text) = (room.path().join("new"), room.path().join("manifest.json"));
        for file in &self.manifest.files {
            copy(File::open(self.tree.join(&file.path))?, &new.join(&file.path))?;
        }
        fs::create_dir_all(&new)?;
        copy(self.text.as_bytes(), &text)?;
        let there = entries(&target)?;
        let ours = self.delivered_before();
        let exchangeable = there.iter().all(|path| ours.contains(path));
        if !target.exists() {
            fs::rename(&new, &target)?;
        } else if !exchangeable || !exchange(&new, &target, &mut room)? {
            let stale = there.iter().filter(|path| ours.contains(*path) && !self.holds(path));
            self.merge(&new, &target, stale)?;
        }
        move_to(&text, self.beside)?;
        Ok(false)
    }

    fn is_there(&self, target: &Path) -> io::Result<bool> {
        for file in &self.manifest.files {
            if !same_file(&target.join(&file.path), File::open(self.tree.join(&file.path))?)? {
                return Ok(false);
            }
        }
        Ok(target.is_dir() && same_file(self.beside, self.text.as_bytes())?)
    }

    /// The files of the last delivery, as the manifest beside the folder names them.
    fn delivered_before(&self) -> BTreeSet<PathBuf> {
        let old = Manifest::read(self.beside).ok().filter(|old| old.folder);
        old.map(|old| old.files.into_iter().map(|file| PathBuf::from(file.path)).collect()).unwrap_or_default()
    }

    fn holds(&self, path: &Path) -> bool {
        self.manifest.files.iter().any(|file| Path::new(&file.path) == path)
    }

    /// Beside files of others: what the last delivery left and this one has not goes, the new files come one by one.
    fn merge<'p>(&self, new: &Path, target: &Path, stale: impl Iterator<Item = &'p PathBuf>) -> io::Result<()> {
        for path in stale {
            fs::remove_file(target.join(path))?;
            // Folders that are empty now.
            for folder in path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()) {
                if fs::remove_dir(target.join(folder)).is_err() {
                    break;
                }
            }
        }
        for file in &self.manifest.files {
            let (from, to) = (new.join(&file.path), target.join(&file.path));
            if !same_file(&to, File::open(&from)?)? {
                move_to(&from, &to)?;
            }
        }
        Ok(())
    }
}

/// A folder for unfinished work on the file system of `target`; removed with what is in it.
fn room_beside(target: &Path) -> io::Result<TempDir> {
    let folder = parent(target);
    fs::create_dir_all(folder)?;
    tempfile::Builder::new().prefix(".writing-").tempdir_in(folder)
}

/// Puts `new` in the place of `target`, and the old folder into `room`; false when the old one cannot be moved (a mount).
fn exchange(new: &Path, target: &Path, room: &mut TempDir) -> io::Result<bool> {
    let old = room.path().join("old");
    fs::set_permissions(new, fs::metadata(target)?.permissions())?;
    if fs::rename(target, &old).is_err() {
        return Ok(false);
    }
    let Err(error) = fs::rename(new, target) else { return Ok(true) };
    let lost = |_| io::Error::other(format!("{error}; what was there is now in {}", old.display()));
    room.disable_cleanup(true);
    fs::rename(&old, target).map_err(lost)?;
    room.disable_cleanup(false);
    Err(error)
}

/// What lies in a folder, links not followed: everything but folders, and folders with nothing in them.
fn entries(root: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut pending) = (Vec::new(), vec![root.to_owned()]);
    pending.retain(|root| root.exists());
    while let Some(folder) = pending.pop() {
        let mut empty = true;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            empty = false;
            if entry.file_type()?.is_dir() {
                pending.push(entry.path());
            } else {
                found.extend(entry.path().strip_prefix(root).map(Path::to_owned));
            }
        }
        if empty && folder != root {
            found.extend(folder.strip_prefix(root).map(Path::to_owned));
        }
    }
    Ok(found)
}

/// Moves a file, also to another file system.
fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(parent(to))?;
    if fs::metadata(to).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other(format!("{} is no regular file", to.display())));
    }
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => replace(to, || File::open(from)).map(drop),
        moved => moved,
    }
}

fn copy(mut from: impl Read, to: &Path) -> io::Result<()> {
    fs::create_dir_all(parent(to))?;
    let mut file = File::create(to)?;
    io::copy(&mut from, &mut file)?;
    file.sync_all()
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the target hold those bytes; true when it did already.
fn replace<R: Read>(target: &Path, open: impl Fn() -> io::Result<R>) -> io::Result<bool> {
    if same_file(target, open()?)? {
        return Ok(true);
    }
    let folder = parent(target);
    fs::create_dir_all(folder)?;
    let mut temporary = tempfile::Builder::new().prefix(".writing-").permissions_of_new_files().tempfile_in(folder)?;
    io::copy(&mut open()?, &mut temporary)?;
    temporary.as_file().sync_all()?;
    temporary.persist(target).map_err(|error| error.error)?;
    Ok(false)
}

trait NewFilePermissions {
    fn permissions_of_new_files(&mut self) -> &mut Self;
}

impl NewFilePermissions for tempfile::Builder<'_, '_> {
    /// Readable for others as far as the umask allows, as any new file is; temporary files are private otherwise.
    #[cfg(unix)]
    fn permissions_of_new_files(&mut self) -> &mut Self {
        self.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
    }

    #[cfg(not(unix))]
    fn permissions_of_new_files(&mut self) -> &mut Self {
        self
    }
}

/// Is there a regular file with those bytes?
fn same_file(path: &Path, bytes: impl Read) -> io::Result<bool> {
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(false);
    }
    File::open(path).map_or(Ok(false), |file| same_bytes(file, bytes))
}

fn same_bytes(mut a: impl Read, mut b: impl Read) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let (here, there) = (fill(&mut a, &mut left)?, fill(&mut b, &mut right)?);
        if left[..here] != right[..there] {
            return Ok(false);
        }
        if here == 0 {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or nothing is left; gives how much it read.
pub fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}
