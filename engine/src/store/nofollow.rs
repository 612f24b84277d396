//! Changes files and folders by descriptor, without following a link anywhere in the path.
//!
//! The path of an open store is canonical and a store contains no links to folders, so no component of a path in it is a
//! link. A program that replaces its output folder, or a folder above it, by a link therefore reaches nothing outside:
//! every function here fails instead. What the user reaches through a link (the store itself, sources, destinations)
//! is resolved once, when it is opened.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, linkat, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// How a folder is opened whose entries are named and not listed: its owner may have taken the right to list it away.
#[cfg(target_os = "linux")]
const PARENT: OFlags = FOLDER.union(OFlags::PATH);
#[cfg(not(target_os = "linux"))]
const PARENT: OFlags = FOLDER;

/// Opens a folder to list it.
pub(super) fn folder(path: &Path) -> io::Result<OwnedFd> {
    open_folder(path, FOLDER).map_err(|error| explained(error, path))
}

fn open_folder(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{ResolveFlags, openat2};
        match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            // Kernels before 5.6 and some sandboxes do not have the call.
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => {}
            opened => return opened,
        }
    }
    let mut opened = openat(CWD, if path.is_absolute() { "/" } else { "." }, PARENT, Mode::empty())?;
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => opened = openat(&opened, "..", PARENT, Mode::empty())?,
            Component::Normal(name) => opened = openat(&opened, name, PARENT, Mode::empty())?,
        }
    }
    openat(&opened, ".", flags, Mode::empty())
}

/// Splits a path into its open parent folder and its name.
fn entry(path: &Path) -> Result<(OwnedFd, &OsStr), Errno> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    // A bare name is in the working folder.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((open_folder(parent, PARENT)?, name))
}

/// Names the link that made a call fail.
fn explained(error: Errno, path: &Path) -> io::Error {
    // `O_DIRECTORY` reports a link as "not a directory".
    if matches!(error, Errno::LOOP | Errno::NOTDIR | Errno::MLINK) {
        // The outermost link: those below it may be of what it leads to.
        if let Some(link) = path.ancestors().filter(|path| path.is_symlink()).last() {
            return io::Error::other(format!(
                "{} is a link, and nothing is written through links inside a store: remove the link",
                link.display()
            ));
        }
    }
    error.into()
}

/// Creates a folder and those above it.
pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    let mut created = create_one(path);
    if created == Err(Errno::NOENT)
        && let Some(parent) = path.parent()
        && !parent.as_os_str().is_empty()
    {
        create_folder(parent)?;
        created = create_one(path);
    }
    if created == Err(Errno::EXIST) {
        // A link is found by opening it.
        created = open_folder(path, PARENT).map(drop);
    }
    created.map_err(|error| explained(error, path))
}

fn create_one(path: &Path) -> Result<(), Errno> {
    let (parent, name) = entry(path)?;
    mkdirat(parent, name, Mode::from_raw_mode(0o777))
}

/// Whether nothing stands there, not even a link that leads nowhere.
pub(super) fn is_missing(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Creates an empty folder in place of whatever stands there. Of a link, only the link itself is removed.
///
/// # Errors
/// Fails if a folder of the path is a link, or the folder cannot be created.
pub fn fresh_folder(path: &Path) -> io::Result<()> {
    remove(path)?;
    create_folder(path)
}

fn open_file(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = entry(path).and_then(|(parent, name)| openat(parent, name, flags, Mode::from_raw_mode(0o666)));
    opened.map(File::from).map_err(|error| explained(error, path))
}

/// Creates a file for writing, or truncates it.
pub(super) fn create(path: &Path) -> io::Result<File> {
    open_file(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)
}

/// Creates a file for writing. Fails if anything stands there.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    open_file(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
}

/// Opens a file to append to it, creating it if needed.
pub(super) fn append(path: &Path) -> io::Result<File> {
    open_file(path, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND)
}

/// Opens a file to read and write it, creating it if needed.
pub(super) fn open_or_create(path: &Path) -> io::Result<File> {
    open_file(path, OFlags::RDWR | OFlags::CREATE)
}

/// Opens an existing file for writing.
pub(super) fn open_to_write(path: &Path) -> io::Result<File> {
    open_file(path, OFlags::WRONLY)
}

/// Opens a regular file for reading. Does not wait for the writer of a pipe.
pub(super) fn open(path: &Path) -> io::Result<File> {
    open_file(path, OFlags::RDONLY | OFlags::NONBLOCK)
}

/// Writes a file as a whole.
pub(super) fn write(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    create(path)?.write_all(content.as_ref())
}

/// Copies a regular file.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<u64> {
    io::copy(&mut open(from)?, &mut create(to)?)
}

/// Renames a file, a folder or a link itself.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    let (from_folder, from_name) = entry(from).map_err(|error| explained(error, from))?;
    let (to_folder, to_name) = entry(to).map_err(|error| explained(error, to))?;
    Ok(renameat(from_folder, from_name, to_folder, to_name)?)
}

/// Gives a file a second name.
pub(super) fn hard_link(from: &Path, to: &Path) -> io::Result<()> {
    let (from_folder, from_name) = entry(from).map_err(|error| explained(error, from))?;
    let (to_folder, to_name) = entry(to).map_err(|error| explained(error, to))?;
    Ok(linkat(from_folder, from_name, to_folder, to_name, AtFlags::empty())?)
}

/// Removes a file, or a link itself.
pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    let removed = entry(path).and_then(|(parent, name)| unlinkat(parent, name, AtFlags::empty()));
    removed.map_err(|error| explained(error, path))
}

/// Removes a file, a link itself, or a folder with all that it contains. What does not exist counts as removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match entry(path).and_then(|(parent, name)| remove_at(&parent, name)) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(explained(error, path)),
    }
}

fn remove_at(parent: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    match unlinkat(parent, name, AtFlags::empty()) {
        // Linux reports a folder as `EISDIR`, POSIX as `EPERM`.
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return removed,
    }
    let folder = openat(parent, name, FOLDER, Mode::empty())?;
    for name in names(&folder)? {
        match remove_at(&folder, OsStr::new(&name)) {
            // Another process removes the same folder.
            Err(Errno::NOENT) => {}
            removed => removed?,
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

/// Returns the names in a folder, sorted.
fn names(folder: &OwnedFd) -> Result<Vec<std::ffi::OsString>, Errno> {
    use std::os::unix::ffi::OsStrExt;
    let mut found = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            found.push(name.to_owned());
        }
    }
    found.sort();
    Ok(found)
}

/// What stands in a folder at some depth.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    Folder,
    File,
    Link,
    /// A pipe, socket or device.
    Other,
}

/// Lists all that a folder contains, with paths relative to it, folders before their content. Does not enter links.
pub(super) fn contents(path: &Path) -> io::Result<Vec<(PathBuf, EntryKind)>> {
    let mut found = Vec::new();
    list(&folder(path)?, path, Path::new(""), &mut found)?;
    Ok(found)
}

fn list(folder: &OwnedFd, root: &Path, below: &Path, found: &mut Vec<(PathBuf, EntryKind)>) -> io::Result<()> {
    for name in names(folder).map_err(|error| explained(error, &root.join(below)))? {
        let path = below.join(&name);
        let stat = statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| unlisted(error, root, &path))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                found.push((path.clone(), EntryKind::Folder));
                // A link that has replaced it since is not entered.
                let inner = openat(folder, &name, FOLDER, Mode::empty());
                list(&inner.map_err(|error| unlisted(error, root, &path))?, root, &path, found)?;
            }
            FileType::RegularFile => found.push((path, EntryKind::File)),
            FileType::Symlink => found.push((path, EntryKind::Link)),
            _ => found.push((path, EntryKind::Other)),
        }
    }
    Ok(())
}

/// Names the entry of a folder that cannot be looked at.
fn unlisted(error: Errno, root: &Path, path: &Path) -> io::Error {
    let error = explained(error, &root.join(path));
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with the files of somebody, and one for the store.
    fn places() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (theirs, store) = (root.join("theirs"), root.join("store"));
        fs::create_dir_all(theirs.join("deep")).unwrap();
        fs::write(theirs.join("deep/thesis"), "years").unwrap();
        fs::write(theirs.join("file"), "words").unwrap();
        fs::create_dir_all(&store).unwrap();
        (folder, theirs, store)
    }

    fn untouched(theirs: &Path) {
        assert_eq!(fs::read_to_string(theirs.join("deep/thesis")).unwrap(), "years");
        assert_eq!(fs::read_to_string(theirs.join("file")).unwrap(), "words");
        assert_eq!(contents(theirs).unwrap().len(), 3, "nothing was added");
    }

    /// Each function with a link as each component of `a/b/deep/file`.
    #[test]
    fn no_function_reaches_through_a_link() {
        type Function = fn(&Path) -> io::Result<()>;
        let functions: [(&str, Function); 11] = [
            ("create", |path| create(path).map(drop)),
            ("create_new", |path| create_new(path).map(drop)),
            ("append", |path| append(path).map(drop)),
            ("open_or_create", |path| open_or_create(path).map(drop)),
            ("open", |path| open(path).map(drop)),
            ("write", |path| write(path, "hostile")),
            ("create_folder", |path| create_folder(&path.join("new"))),
            ("fresh_folder", |path| fresh_folder(&path.join("new"))),
            ("rename", |path| rename(path, &path.with_file_name("moved"))),
            ("remove_file", remove_file),
            ("remove", remove),
        ];
        for (name, function) in functions {
            for above in ["a", "a/b", "a/b/deep"] {
                let (_folder, theirs, store) = places();
                let link = store.join(above);
                fs::create_dir_all(link.parent().unwrap()).unwrap();
                let target = if above == "a/b/deep" { theirs.join("deep") } else { theirs.clone() };
                symlink(target, &link).unwrap();
                let path = store.join(if above == "a" { "a/file" } else { "a/b/deep/thesis" });
                let error = function(&path).unwrap_err().to_string();
                assert!(error.contains(&format!("{} is a link", link.display())), "{name} {above}: {error}");
                untouched(&theirs);
            }
        }
    }

    #[test]
    fn a_link_at_the_end_is_removed_or_refused_itself() {
        let (_folder, theirs, store) = places();
        let link = store.join("link");
        let set = |target: &Path| {
            remove(&link).unwrap();
            symlink(target, &link).unwrap();
        };
        set(&theirs);
        assert!(create_folder(&link).is_err() && folder(&link).is_err() && contents(&link).is_err());
        fresh_folder(&link).unwrap();
        assert!(link.is_dir() && !link.is_symlink());
        for function in [|path: &Path| create(path), create_new, append, open_or_create, open] {
            set(&theirs.join("file"));
            assert!(function(&link).is_err());
        }
        set(&theirs);
        rename(&link, &store.join("moved")).unwrap();
        assert!(store.join("moved").is_symlink());
        remove(&store.join("moved")).unwrap();
        // A folder that contains links loses them, not what they lead to.
        fs::create_dir_all(store.join("folder/in")).unwrap();
        symlink(&theirs, store.join("folder/in/all")).unwrap();
        remove(&store.join("folder")).unwrap();
        assert!(!store.join("folder").exists());
        untouched(&theirs);
    }

    #[test]
    fn contents_are_listed_without_entering_links() {
        let (_folder, theirs, store) = places();
        fs::create_dir_all(store.join("b/c")).unwrap();
        fs::write(store.join("b/c/file"), "").unwrap();
        symlink(&theirs, store.join("b/link")).unwrap();
        let found = contents(&store).unwrap();
        let names: Vec<_> = found.iter().map(|(path, kind)| (path.to_str().unwrap(), kind)).collect();
        let wanted = [
            ("b", &EntryKind::Folder),
            ("b/c", &EntryKind::Folder),
            ("b/c/file", &EntryKind::File),
            ("b/link", &EntryKind::Link),
        ];
        assert_eq!(names, wanted);
    }
}
