//! Writes an artifact to a local path: a file by one rename, a folder by swapping it with the existing one.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use searchmill_engine::operator::{MANIFEST_ENDING, OperatorError};
use tempfile::TempDir;

use super::manifest::Manifest;

/// Updates a path and its manifest to the artifact in `tree`. Returns true if both were up to date.
pub(crate) fn to_path(tree: &Path, manifest: &Manifest, destination: &Path) -> Result<bool, OperatorError> {
    // Drops a trailing slash, which would put the manifest into the folder.
    let destination: PathBuf = destination.components().collect();
    let beside = PathBuf::from(format!("{}{MANIFEST_ENDING}", destination.display()));
    check(&destination, manifest.folder)?;
    check(&beside, false)?;
    let text = manifest.text()?;
    let done = if manifest.folder {
        Delivery { tree, manifest, text: &text, beside: &beside }.bring(&destination)
    } else {
        let replaced = manifest.files.iter().map(|file| replace(&destination, || File::open(tree.join(&file.path))));
        let manifest = std::iter::once_with(|| replace(&beside, || Ok(text.as_bytes())));
        replaced.chain(manifest).try_fold(true, |unchanged, same| Ok(same? && unchanged))
    };
    done.map_err(|error| {
        OperatorError::machine(format!("cannot write {}: {error}", destination.display()))
            .with_help("check permissions and free space of the folder")
    })
}

/// Rejects everything but regular files and folders: opening a pipe would block forever.
fn check(place: &Path, folder: bool) -> Result<(), OperatorError> {
    let Ok(found) = fs::metadata(place) else { return Ok(()) };
    let (what, help) = match (found.is_file(), found.is_dir()) {
        (true, _) if folder => ("a file, but the output is a folder", "remove the file or choose another path"),
        (_, true) if !folder => ("a folder, but the output is a file", "remove the folder or choose another path"),
        (false, false) => ("a pipe, socket or device", "write to a regular file"),
        _ => return Ok(()),
    };
    Err(OperatorError::machine(format!("cannot write {}: it is {what}", place.display())).with_help(help))
}

/// A folder to export.
struct Delivery<'a> {
    tree: &'a Path,
    manifest: &'a Manifest,
    text: &'a str,
    beside: &'a Path,
}

impl Delivery<'_> {
    /// Writes everything beside the destination first: on a full disk the old folder stays unchanged.
    fn bring(&self, destination: &Path) -> io::Result<bool> {
        // The target of a symbolic link; the link itself stays.
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

    /// Returns the files of the previous export, from the manifest beside the folder.
    fn delivered_before(&self) -> BTreeSet<PathBuf> {
        let old = Manifest::read(self.beside).ok().filter(|old| old.folder);
        old.map(|old| old.files.into_iter().map(|file| PathBuf::from(file.path)).collect()).unwrap_or_default()
    }

    fn holds(&self, path: &Path) -> bool {
        self.manifest.files.iter().any(|file| Path::new(&file.path) == path)
    }

    /// Merges into a folder with foreign files: removes stale files of the previous export, then moves new files one by
    /// one.
    fn merge<'p>(&self, new: &Path, target: &Path, stale: impl Iterator<Item = &'p PathBuf>) -> io::Result<()> {
        // A link to another folder is not part of the destination.
        for file in &self.manifest.files {
            let folders = Path::new(&file.path).ancestors().skip(1).map(|folder| target.join(folder));
            if let Some(link) = folders.filter(|folder| folder != target).find(|folder| folder.is_symlink()) {
                let message = format!("{} is a link: remove it, or choose another path", link.display());
                return Err(io::Error::other(message));
            }
        }
        for path in stale {
            fs::remove_file(target.join(path))?;
            // Remove folders that are now empty.
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

/// Creates a temporary folder on the file system of `target`. It is removed with its content when dropped.
fn room_beside(target: &Path) -> io::Result<TempDir> {
    let folder = parent(target);
    fs::create_dir_all(folder)?;
    tempfile::Builder::new().prefix(".writing-").tempdir_in(folder)
}

/// Replaces `target` by `new` and moves the old folder into `room`. Returns false if the old folder cannot be moved (a
/// mount).
fn exchange(new: &Path, target: &Path, room: &mut TempDir) -> io::Result<bool> {
    let old = room.path().join("old");
    fs::set_permissions(new, fs::metadata(target)?.permissions())?;
    if fs::rename(target, &old).is_err() {
        return Ok(false);
    }
    let Err(error) = fs::rename(new, target) else { return Ok(true) };
    let lost = |_| io::Error::other(format!("{error}; the previous content is in {}", old.display()));
    room.disable_cleanup(true);
    fs::rename(&old, target).map_err(lost)?;
    room.disable_cleanup(false);
    Err(error)
}

/// Lists all files and empty folders below a folder, without following links.
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

/// Moves a file, also across file systems.
fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(parent(to))?;
    if fs::metadata(to).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other(format!("{} is not a regular file", to.display())));
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

/// Replaces the target's content unless it is equal. Returns true if it was.
fn replace<R: Read>(target: &Path, open: impl Fn() -> io::Result<R>) -> io::Result<bool> {
    if same_file(target, open()?)? {
        return Ok(true);
    }
    let folder = parent(target);
    fs::create_dir_all(folder)?;
    // Allows access for others as far as the umask permits, as for any new file.
    let permissions = Permissions::from_mode(0o666);
    let mut temporary = tempfile::Builder::new().prefix(".writing-").permissions(permissions).tempfile_in(folder)?;
    io::copy(&mut open()?, &mut temporary)?;
    temporary.as_file().sync_all()?;
    temporary.persist(target).map_err(|error| error.error)?;
    Ok(false)
}

/// Whether the path is a regular file with these bytes.
fn same_file(path: &Path, bytes: impl Read) -> io::Result<bool> {
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(false);
    }
    File::open(path).map_or(Ok(false), |file| same_bytes(file, bytes))
}

fn same_bytes(a: impl Read, b: impl Read) -> io::Result<bool> {
    let (mut a, mut b) = (BufReader::with_capacity(1 << 16, a), BufReader::with_capacity(1 << 16, b));
    loop {
        let (left, right) = (a.fill_buf()?, b.fill_buf()?);
        let both = left.len().min(right.len());
        if both == 0 || left[..both] != right[..both] {
            return Ok(left == right);
        }
        a.consume(both);
        b.consume(both);
    }
}
