//! Files that commands write: completely or not at all, never in place of a device, and never in the store.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use searchmill_engine::operator::OperatorError;
use searchmill_engine::{Failure, Session};

/// Returns where a command writes `file`.
///
/// # Errors
/// If something else than a file is there, its folder is not, or it would be in the store.
pub(super) fn path_of(session: &Session, file: &Path) -> Result<PathBuf, Failure> {
    let refused = |why: &str| Failure::usage(format!("cannot write {}: {why}", file.display()));
    if file == Path::new("-") {
        return Err(
            refused("`-` is no name of a file").with_help("name a file; `show` without `--output` writes to stdout")
        );
    }
    let path = session.directory().join(file);
    let found = std::fs::metadata(&path).ok();
    if found.as_ref().is_some_and(std::fs::Metadata::is_dir) {
        return Err(refused("it is a folder"));
    }
    // A file is renamed into place: there would be no device or pipe any more.
    if found.is_some_and(|found| !found.is_file()) {
        return Err(refused("it is a pipe, socket or device, not a regular file"));
    }
    let folder = path.parent().unwrap_or(session.directory());
    let Ok(folder) = std::fs::canonicalize(folder) else {
        return Err(refused(&format!("the folder {} does not exist", folder.display())));
    };
    check_outside_store(session, file, &folder)?;
    Ok(path)
}

/// Fails if `folder` is in the store: only records and results of runs are written there.
pub(super) fn check_outside_store(session: &Session, file: &Path, folder: &Path) -> Result<(), Failure> {
    let store = session.directory().join(session.store().location());
    let inside = match (std::fs::canonicalize(store), std::fs::canonicalize(folder)) {
        (Ok(store), Ok(folder)) => folder.starts_with(store),
        // One of them is not there.
        _ => false,
    };
    if inside {
        let failure = Failure::usage(format!("cannot write {}: it is in the store", file.display()));
        return Err(failure.with_help("give it a path outside the store"));
    }
    Ok(())
}

/// Writes a file completely or not at all.
///
/// # Errors
/// If it cannot be written; what was there before then stays.
pub(super) fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    written_beside(path, write).map_err(|error| unwritable(path, &error))
}

/// Returns the error for a file that cannot be written: a wrong path is the caller's, a full disk the machine's.
pub(super) fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot write {}: {error}", path.display());
    match error.kind() {
        ErrorKind::AlreadyExists | ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied => {
            Failure::usage(message)
        }
        _ => OperatorError::machine(message).into(),
    }
}

fn written_beside(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    // Beside the file, so that the rename stays on one file system. Its rights are those of any new file.
    let folder = path.parent().unwrap_or(Path::new("."));
    let rights = Permissions::from_mode(0o666);
    let mut partial = tempfile::Builder::new().prefix(".searchmill-").permissions(rights).tempfile_in(folder)?;
    let mut out = BufWriter::new(partial.as_file_mut());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    // On disk before the rename: a power cut must not leave a file of that name without its content.
    partial.as_file().sync_all()?;
    let _: File = partial.persist(path)?;
    Ok(())
}
