//! Takes the files of an output folder: lists them without following links, and separates them from the program that
//! wrote them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::artifact::Part;
use super::table::file_part;
use crate::error::OperatorError;
use crate::store::error::IoContext;
use crate::store::nofollow::{self, EntryKind};

/// Describes the files of a folder that this process filled. `copy` is a path that nothing else uses.
pub(crate) fn described(folder: &Path, port: &str, copy: &Path) -> Result<Vec<Part>, OperatorError> {
    let mut names = Vec::new();
    for (path, found) in listed(folder, port)? {
        match found {
            EntryKind::Folder => continue,
            EntryKind::File => {}
            EntryKind::Link => {
                // An artifact contains regular files only.
                copy_linked(folder, &path, copy)?;
                let target = folder.join(&path);
                nofollow::rename(copy, &target).context("write", &target)?;
            }
            EntryKind::Other => return Err(unfit(&path, "a pipe, socket or device")),
        }
        names.push(path);
    }
    parts(folder, names)
}

/// Moves the files of a folder that a program filled into the new folder `to`, and describes them.
///
/// A process that outlives the program may still have files open, or work in the folder. Files that could still be
/// written are copied, and the folders are new: nothing that the process does later reaches the artifact.
pub(crate) fn taken(folder: &Path, to: &Path, port: &str) -> Result<Vec<Part>, OperatorError> {
    let listed = listed(folder, port)?;
    nofollow::fresh_folder(to).context("create", to)?;
    let mut copy = to.to_owned().into_os_string();
    copy.push("-copy");
    let copy = PathBuf::from(copy);
    let mut names = Vec::new();
    for (path, found) in listed {
        let target = to.join(&path);
        match found {
            EntryKind::Folder => {
                nofollow::create_folder(&target).context("create", &target)?;
                continue;
            }
            EntryKind::File => {
                // First the new name, which the process does not know: it cannot open the file after the check.
                nofollow::rename(&folder.join(&path), &target).context("move", &target)?;
                separate(&target, &copy)?;
            }
            EntryKind::Link => copy_linked(folder, &path, &target)?,
            EntryKind::Other => return Err(unfit(&path, "a pipe, socket or device")),
        }
        names.push(path);
    }
    parts(to, names)
}

fn listed(folder: &Path, port: &str) -> Result<Vec<(PathBuf, EntryKind)>, OperatorError> {
    match std::fs::symlink_metadata(folder) {
        Ok(found) if found.is_symlink() => {
            let target = std::fs::read_link(folder).unwrap_or_default();
            let message = format!("the output folder `{port}` was replaced by a link to {}", target.display());
            let help = "write into the folder that the program was given, or copy the files there at its end: what \
                        lies behind a link may be of an earlier run, and is not touched";
            return Err(OperatorError::pipeline(message).with_help(help));
        }
        Ok(found) if !found.is_dir() => {
            let message = format!("the output folder `{port}` was replaced by a file");
            return Err(OperatorError::pipeline(message).with_help("write files into the folder"));
        }
        _ => {}
    }
    let listed = nofollow::contents(folder).context("read", folder)?;
    for (path, _) in &listed {
        // Parts of artifacts are named by text, with `/` between folders, on every system and in every store.
        if path.to_str().is_none_or(|name| name.contains('\\')) {
            let message =
                format!("the output folder contains a file whose name no artifact can have: {}", path.display());
            return Err(OperatorError::data(message).with_help("give the files names of UTF-8 text without `\\`"));
        }
    }
    Ok(listed)
}

fn unfit(path: &Path, what: &str) -> OperatorError {
    let message = format!("the output folder contains what is neither file nor folder: {} is {what}", path.display());
    OperatorError::data(message).with_help("write files and folders, or links to files")
}

/// Copies the file to which a link in the folder leads.
fn copy_linked(folder: &Path, path: &Path, to: &Path) -> Result<(), OperatorError> {
    let link = folder.join(path);
    // Looked at before it is opened: opening a pipe would wait for its writer.
    match std::fs::metadata(&link) {
        Ok(found) if found.is_file() => {}
        Ok(found) if found.is_dir() => return Err(unfit(path, "a link to a folder")),
        Ok(_) => return Err(unfit(path, "a link to a pipe, socket or device")),
        Err(error) => return Err(unfit(path, &format!("a link that leads nowhere ({error})"))),
    }
    let mut content = File::open(&link).context("read", &link)?;
    nofollow::remove(to).context("remove", to)?;
    let mut copy = nofollow::create_new(to).context("create", to)?;
    io::copy(&mut content, &mut copy).context("copy", &link)?;
    Ok(())
}

/// Replaces a file by a copy if anything else could still write to it: an open descriptor or another name.
fn separate(path: &Path, copy: &Path) -> Result<(), OperatorError> {
    use std::os::unix::fs::MetadataExt;
    let mut file = nofollow::open(path).context("open", path)?;
    if file.metadata().context("read", path)?.nlink() == 1 && !may_have_writer(&file) {
        return Ok(());
    }
    nofollow::remove(copy).context("remove", copy)?;
    let mut target = nofollow::create_new(copy).context("create", copy)?;
    io::copy(&mut file, &mut target).context("copy", path)?;
    Ok(nofollow::rename(copy, path).context("write", path)?)
}

/// Whether any process has the file open for writing, or may have: then no read lease is given.
#[cfg(target_os = "linux")]
fn may_have_writer(file: &File) -> bool {
    use std::os::fd::AsRawFd;
    /// Linux, `fcntl.h`; not in `libc`.
    const F_SETSIG: i32 = 10;
    fn control(file: &File, command: i32, argument: i32) -> bool {
        #[expect(unsafe_code, reason = "no maintained crate of this tree wraps leases of files")]
        // SAFETY: the descriptor is open while `file` is borrowed, and the commands take an integer.
        let done = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
        done == 0
    }
    // Whoever opens the file meanwhile makes the kernel send a signal: one that is ignored unless handled.
    let free = control(file, F_SETSIG, libc::SIGURG) && control(file, libc::F_SETLEASE, libc::F_RDLCK);
    if free {
        control(file, libc::F_SETLEASE, libc::F_UNLCK);
    }
    !free
}

#[cfg(not(target_os = "linux"))]
fn may_have_writer(_file: &File) -> bool {
    true
}

/// Flushes and hashes the files, sorted by their names in the artifact.
fn parts(folder: &Path, paths: Vec<PathBuf>) -> Result<Vec<Part>, OperatorError> {
    let mut names: Vec<String> = paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    names.sort();
    let mut parts = Vec::with_capacity(names.len());
    for name in names {
        let path = folder.join(&name);
        nofollow::open(&path).and_then(|file| file.sync_data()).context("flush", &path)?;
        parts.push(file_part(folder, name, 0)?);
    }
    Ok(parts)
}
