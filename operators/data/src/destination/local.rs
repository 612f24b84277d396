//! Writes an artifact to a local path: a file by one rename, a folder by swapping it with the existing one.

use std::collections::BTreeSet;
use std::fs::{self, Permissions, TryLockError};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err::File;
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
    let mut unchanged = true;
    if manifest.folder {
        let same = bring(tree, manifest, &text, &beside, &destination);
        unchanged = same.map_err(|error| cannot_write(&destination, &error))?;
    } else {
        for file in &manifest.files {
            let same = replace(&destination, || File::open(tree.join(&file.path)));
            unchanged &= same.map_err(|error| cannot_write(&destination, &error))?;
        }
        // After the files: a manifest never describes rows that are not there yet.
        let same = replace(&beside, || Ok(text.as_bytes()));
        unchanged &= same.map_err(|error| cannot_write(&beside, &error))?;
    }
    sweep(parent(&destination));
    Ok(unchanged)
}

fn cannot_write(path: &Path, error: &io::Error) -> OperatorError {
    OperatorError::machine(format!("cannot write {}: {error}", path.display()))
        .with_help("check permissions and free space of the folder")
}

/// Rejects everything but regular files and folders: opening a pipe would block forever.
fn check(path: &Path, folder: bool) -> Result<(), OperatorError> {
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    let (what, help) = match (found.is_file(), found.is_dir()) {
        (true, _) if folder => ("a file, but the output is a folder", "remove the file or choose another path"),
        (_, true) if !folder => ("a folder, but the output is a file", "remove the folder or choose another path"),
        (false, false) => ("a pipe, socket or device", "write to a regular file"),
        _ => return Ok(()),
    };
    Err(OperatorError::machine(format!("cannot write {}: it is {what}", path.display())).with_help(help))
}

/// Writes everything beside the destination first: on a full disk the old folder stays unchanged. `text` is that of the
/// manifest, `beside` its place.
fn bring(tree: &Path, manifest: &Manifest, text: &str, beside: &Path, destination: &Path) -> io::Result<bool> {
    // The target of a symbolic link; the link itself stays.
    let target = destination.canonicalize().unwrap_or_else(|_| destination.to_owned());
    let has_files = holds(tree, manifest, &target)? && target.is_dir();
    if has_files && same_file(beside, text.as_bytes())? {
        return Ok(true);
    }
    let (mut room, _lock) = room_beside(&target)?;
    let (new, described) = (room.path().join("new"), room.path().join("manifest.json"));
    for file in &manifest.files {
        copy(File::open(tree.join(&file.path))?.into_file(), &new.join(&file.path))?;
    }
    // Without files, nothing has made the folder yet.
    fs_err::create_dir_all(&new)?;
    copy(text.as_bytes(), &described)?;
    let present = entries(&target)?;
    // The files of the previous export, from the manifest beside the folder.
    let ours: BTreeSet<PathBuf> = match Manifest::read(beside) {
        Ok(old) if old.folder => old.files.into_iter().map(|file| PathBuf::from(file.path)).collect(),
        _ => BTreeSet::new(),
    };
    let exchangeable = present.iter().all(|path| ours.contains(path));
    if !target.exists() {
        // The caller's message names the target.
        fs::rename(&new, &target)?;
    } else if !exchangeable || !exchange(&new, &target, &mut room)? {
        merge(manifest, &new, &target, &present, &ours)?;
    }
    // Last: after a crash before it, the next export sees the old manifest and repeats the work.
    move_to(&described, beside)?;
    Ok(false)
}

/// Merges into a folder with foreign files: removes stale files of the previous export, then moves new files one by one.
fn merge(manifest: &Manifest, new: &Path, target: &Path, all: &[PathBuf], ours: &BTreeSet<PathBuf>) -> io::Result<()> {
    // A link to another folder is not part of the destination. Checked before anything is changed.
    for file in &manifest.files {
        for folder in Path::new(&file.path).ancestors().skip(1) {
            let folder = target.join(folder);
            if folder != target && folder.is_symlink() {
                let message = format!("{} is a link: remove it, or choose another path", folder.display());
                return Err(io::Error::other(message));
            }
        }
    }
    for path in all {
        // What the previous export did not write is somebody else's.
        let is_current = manifest.files.iter().any(|file| Path::new(&file.path) == path);
        if is_current || !ours.contains(path) {
            continue;
        }
        fs_err::remove_file(target.join(path))?;
        // Remove folders that are now empty.
        for folder in path.ancestors().skip(1) {
            if folder.as_os_str().is_empty() || fs::remove_dir(target.join(folder)).is_err() {
                break;
            }
        }
    }
    for file in &manifest.files {
        let (from, to) = (new.join(&file.path), target.join(&file.path));
        if !same_file(&to, File::open(&from)?)? {
            move_to(&from, &to)?;
        }
    }
    Ok(())
}

/// Creates a temporary folder on the file system of `target`, with the lock that it has while it is used. It is removed
/// with its content when dropped.
fn room_beside(target: &Path) -> io::Result<(TempDir, File)> {
    let folder = parent(target);
    fs_err::create_dir_all(folder)?;
    loop {
        let room = tempfile::Builder::new().prefix(WRITING).tempdir_in(folder)?;
        match File::open(room.path()) {
            Ok(lock) if is_ours(lock.file(), room.path()) => return Ok((room, lock)),
            // A sweep took it for abandoned: take another name.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
}

/// Locks an unfinished file or folder, which shows that its owner lives: see [`sweep`]. Returns false if a sweep was
/// faster: it removes the file, or has done so. Without locks in the file system, its age decides.
fn is_ours(file: &fs::File, path: &Path) -> bool {
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return false;
    }
    // Looked at after the lock: from now on no sweep removes it.
    match (fs::symlink_metadata(path), file.metadata()) {
        (Ok(at_path), Ok(opened)) => (at_path.dev(), at_path.ino()) == (opened.dev(), opened.ino()),
        _ => false,
    }
}

/// Beginning of the names of unfinished files and folders; six letters and digits follow.
const WRITING: &str = ".writing-";
/// Age from which an unfinished file is removed in a file system without locks.
const ABANDONED: Duration = Duration::from_hours(24);

/// Removes what killed runs have left unfinished in a folder. Their content is in the store, and the destination was just
/// written. What cannot be removed is harmless.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(random) = name.to_str().and_then(|name| name.strip_prefix(WRITING)) else { continue };
        // Other names with this beginning are somebody else's.
        if random.len() != 6 || !random.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            continue;
        }
        let path = entry.path();
        let Ok(found) = entry.metadata() else { continue };
        // Opening a pipe would block forever, and a link may lead anywhere.
        if !found.is_file() && !found.is_dir() {
            continue;
        }
        let Ok(file) = fs::File::open(&path) else { continue };
        let is_abandoned = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(_)) => match found.modified() {
                // A time in the future has no age: the clocks of machines on one file system differ.
                Ok(modified) => modified.elapsed().unwrap_or_default() >= ABANDONED,
                Err(_) => false,
            },
        };
        if is_abandoned {
            // The lock is held until the file is gone: its owner, if it just began, takes another name.
            drop(if found.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) });
        }
    }
}

/// Replaces `target` by `new` and moves the old folder into `room`. Returns false if the old folder cannot be moved (a
/// mount).
fn exchange(new: &Path, target: &Path, room: &mut TempDir) -> io::Result<bool> {
    let old = room.path().join("old");
    fs_err::set_permissions(new, fs::metadata(target)?.permissions())?;
    if fs::rename(target, &old).is_err() {
        return Ok(false);
    }
    let Err(error) = fs::rename(new, target) else { return Ok(true) };
    // The old content is nowhere else: it must survive the room if it cannot be moved back.
    room.disable_cleanup(true);
    if fs::rename(&old, target).is_err() {
        return Err(io::Error::other(format!("{error}; the previous content is in {}", old.display())));
    }
    room.disable_cleanup(false);
    Err(error)
}

/// Lists all files and empty folders below a folder, without following links.
fn entries(root: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut pending) = (Vec::new(), Vec::new());
    if root.exists() {
        pending.push(root.to_owned());
    }
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
    fs_err::create_dir_all(parent(to))?;
    if fs::metadata(to).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other(format!("{} is not a regular file", to.display())));
    }
    match fs_err::rename(from, to) {
        // A folder of the destination may be a mount.
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => match replace(to, || File::open(from)) {
            Ok(_) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", to.display()))),
        },
        moved => moved,
    }
}

fn copy(mut from: impl Read, to: &Path) -> io::Result<()> {
    fs_err::create_dir_all(parent(to))?;
    let mut file = File::create(to)?;
    // From file to file, so that the kernel copies, or shares the blocks.
    io::copy(&mut from, file.file_mut())?;
    // Before the rename: after a power failure, a name must not lead to an empty file.
    file.sync_all()
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Replaces the target's content unless it is equal. Returns true if it was. The caller's message names the target.
fn replace<R: Read>(target: &Path, open: impl Fn() -> io::Result<R>) -> io::Result<bool> {
    if same_file(target, open()?)? {
        return Ok(true);
    }
    let folder = parent(target);
    fs_err::create_dir_all(folder)?;
    // Allows access for others as far as the umask permits, as for any new file.
    let permissions = Permissions::from_mode(0o666);
    let mut temporary = loop {
        let new = tempfile::Builder::new().prefix(WRITING).permissions(permissions.clone()).tempfile_in(folder)?;
        if is_ours(new.as_file(), new.path()) {
            break new;
        }
    };
    // Opened again: the comparison has read the first one.
    io::copy(&mut open()?, &mut temporary)?;
    // Before the rename: after a power failure, the name must not lead to an empty file.
    temporary.as_file().sync_all()?;
    temporary.persist(target).map_err(|error| error.error)?;
    Ok(false)
}

/// Whether a destination has the files of the artifact in `tree`, with the same bytes.
pub(super) fn holds(tree: &Path, manifest: &Manifest, destination: &Path) -> io::Result<bool> {
    for file in &manifest.files {
        let path = if manifest.folder { destination.join(&file.path) } else { destination.to_owned() };
        if !same_file(&path, File::open(tree.join(&file.path))?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the path is a regular file with these bytes.
fn same_file(path: &Path, bytes: impl Read) -> io::Result<bool> {
    // Opening a pipe would block forever.
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return Ok(false);
    }
    let Ok(file) = fs::File::open(path) else { return Ok(false) };
    let (mut a, mut b) = (BufReader::with_capacity(1 << 16, file), BufReader::with_capacity(1 << 16, bytes));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_runs_leave_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at(".writing-aB3dE6/new")).expect("a folder");
        for name in [".writing-abc123", ".writing-notes.md", ".writing-held00", "out.jsonl"] {
            fs::write(at(name), "x").expect("a file");
        }
        let held = fs::File::open(at(".writing-held00")).expect("a file");
        held.try_lock().expect("a lock");
        sweep(folder.path());
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).expect("entries").flatten().map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left, [".writing-held00", ".writing-notes.md", "out.jsonl"]);
    }

    /// A sweep may come between the creation of an unfinished file and its lock.
    #[test]
    fn writers_into_one_folder_take_nothing_from_each_other() {
        let folder = tempfile::tempdir().expect("a folder");
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let at = |name: String| folder.path().join(name);
                threads.spawn(move || {
                    for round in 0..300 {
                        let bytes = round.to_string();
                        replace(&at(format!("{thread}.jsonl")), || Ok(bytes.as_bytes())).expect("a file is written");
                        let (room, _lock) = room_beside(&at(format!("{thread}"))).expect("a folder is made");
                        fs::write(room.path().join("new"), "x").expect("the folder is there");
                        sweep(&at(String::new()));
                    }
                });
            }
        });
    }
}
