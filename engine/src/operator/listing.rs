//! Lists the local files behind a source: the files that a path, pattern or folder names, and their metadata.
//!
//! Only regular files are sources. A folder reached twice through symbolic links is listed once and noted again; a
//! dangling link is noted, and an error where a pattern matches it; searchmill stores, sockets, pipes and devices inside
//! folders are skipped.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::sources::{Source, SourceProblem};

/// Metadata of a file. No program can set the time of its last change (`ctime`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    pub(crate) size: u64,
    pub(crate) mtime_ns: u128,
    pub(crate) inode: u64,
    pub(crate) ctime_ns: i128,
    /// Files on two file systems may have the same inode and times.
    #[serde(default)]
    pub(crate) device: u64,
}

impl FileStat {
    pub(crate) fn of(file: &Path) -> std::io::Result<Self> {
        let metadata = std::fs::metadata(file)?;
        let mtime = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (device, inode) = (metadata.dev(), metadata.ino());
        Ok(Self { size: metadata.len(), mtime_ns: mtime.as_nanos(), inode, ctime_ns: ctime_ns(&metadata), device })
    }

    /// Returns the time since the last change; `None` if it lies in the future (another machine's clock).
    pub(crate) fn age(self) -> Option<Duration> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        // A program can set the first one back, not the second.
        let changed = self.mtime_ns.max(u128::try_from(self.ctime_ns).unwrap_or_default());
        now.checked_sub(changed).map(|age| Duration::from_nanos(u64::try_from(age).unwrap_or(u64::MAX)))
    }
}

fn ctime_ns(metadata: &std::fs::Metadata) -> i128 {
    i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec())
}

/// The files behind one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// Name in the key and path, sorted by name.
    pub(crate) files: Vec<(String, PathBuf)>,
    /// Folders read.
    pub(crate) folders: Vec<PathBuf>,
    /// Entries that are not files: name and description.
    pub(crate) notes: Vec<(String, String)>,
}

/// Which files of a folder count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// All files.
    All,
    /// All files, named by their paths from the working directory, and empty folders: as a program sees them.
    Seen,
    /// Visible files whose names have one of these endings.
    Visible(&'static [&'static str]),
    /// The same; files of a pattern are named by their paths from the pattern's folder.
    Named(&'static [&'static str]),
}

impl Wanted {
    fn folder(self, name: &str) -> bool {
        !matches!(self, Self::Visible(_) | Self::Named(_)) || !name.starts_with('.')
    }

    /// Returns the name of a file in the key.
    fn name(self, path: &Path, directory: &Path) -> String {
        match self {
            Self::Seen => path.strip_prefix(directory).unwrap_or(path).to_string_lossy().into_owned(),
            Self::Named(_) => match path.strip_prefix(directory) {
                Ok(below) if below.file_name().is_some() => below.to_string_lossy().into_owned(),
                _ => file_name(path),
            },
            Self::All | Self::Visible(_) => file_name(path),
        }
    }

    fn file(self, name: &str) -> bool {
        match self {
            Self::All | Self::Seen => true,
            Self::Visible(endings) | Self::Named(endings) => {
                // The endings are in lower case; a name such as `README.MD` need not be.
                let lower = name.to_lowercase();
                !name.starts_with('.') && endings.iter().any(|ending| lower.ends_with(ending))
            }
        }
    }
}

/// Lists the files that a local source names now.
pub(crate) fn files_of(
    source: &Source,
    directory: &Path,
    stopped: &dyn Fn() -> bool,
) -> Result<Listing, SourceProblem> {
    let (name, path) = match source {
        Source::Path(path) => return list(path, Wanted::All, directory, stopped),
        Source::Argument(path) => return list(path, Wanted::Seen, directory, stopped),
        Source::Data { path, endings } => return list(path, Wanted::Visible(endings), directory, stopped),
        Source::Named { path, endings } => return list(path, Wanted::Named(endings), directory, stopped),
        Source::Optional(path) => {
            return match list(path, Wanted::All, directory, stopped) {
                Err(SourceProblem::NotFound(_)) => Ok(Listing::default()),
                found => found,
            };
        }
        Source::Fetched { path, .. } if path.is_file() => (file_name(path), path),
        Source::Fetched { address, .. } | Source::Awaited { address } => {
            return Err(SourceProblem::NotFetched(address.clone()));
        }
        Source::Program(path) | Source::Executable(path) => (format!("program {}", file_name(path)), path),
        Source::Identity(_) => return Ok(Listing::default()),
    };
    Ok(Listing { files: vec![(name, path.clone())], ..Listing::default() })
}

/// Lists the files that a path, pattern or folder names; relative paths start at `directory`. Ends early once `stopped`
/// returns `true`.
pub(crate) fn list(
    written: &str,
    wanted: Wanted,
    directory: &Path,
    stopped: &dyn Fn() -> bool,
) -> Result<Listing, SourceProblem> {
    let plain = written.strip_prefix("file://").unwrap_or(written);
    let path = directory.join(plain);
    match std::fs::metadata(&path) {
        Ok(found) if found.is_dir() => {
            Walk::new(&path, wanted, directory, stopped).all().map_err(|error| match error.kind() {
                std::io::ErrorKind::TimedOut => SourceProblem::Stopped,
                _ => unreadable(written, &error),
            })
        }
        Ok(found) if found.is_file() => {
            let folder = if matches!(wanted, Wanted::Named(_)) { &path } else { directory };
            Ok(Listing { files: vec![(wanted.name(&path, folder), path)], ..Listing::default() })
        }
        Ok(_) => Err(SourceProblem::NotAFile(written.to_owned())),
        // Only if there is no such path: a name may contain these characters itself.
        Err(_) if plain.contains(['*', '?', '[']) => matching(written, plain, wanted, directory),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(SourceProblem::NotFound(written.to_owned())),
        Err(error) => Err(unreadable(written, &error)),
    }
}

fn unreadable(path: &str, error: &std::io::Error) -> SourceProblem {
    SourceProblem::Unreadable { path: path.to_owned(), reason: error.to_string() }
}

/// Returns the files that a pattern matches, in path order. As in shells, only a literal dot matches a leading dot.
fn matching(written: &str, plain: &str, wanted: Wanted, directory: &Path) -> Result<Listing, SourceProblem> {
    let pattern = if Path::new(plain).is_absolute() {
        plain.to_owned()
    } else {
        let Some(folder) = directory.to_str() else { return Err(SourceProblem::NotFound(written.to_owned())) };
        // Marks in the folder's own name are no wildcards.
        format!("{}/{plain}", glob::Pattern::escape(folder).trim_end_matches('/'))
    };
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::new() };
    let found = glob::glob_with(&pattern, options).map_err(|error| SourceProblem::Unreadable {
        path: written.to_owned(),
        reason: format!("it is not a pattern: {}", error.msg),
    })?;
    // Who lists the working directory sees its folders, too.
    let is_here = matches!(plain, "*" | "./*") && matches!(wanted, Wanted::Seen);
    let (mut files, mut notes) = (Vec::new(), Vec::new());
    for file in found {
        // A file that cannot be read, such as a link to nothing, is an error: the rest is not what the pattern names.
        let file = file.map_err(|error| unreadable(&error.path().display().to_string(), error.error()))?;
        let metadata = std::fs::metadata(&file).map_err(|error| unreadable(&file.display().to_string(), &error))?;
        if metadata.is_file() {
            files.push(file);
        } else if is_here && metadata.is_dir() {
            notes.push((wanted.name(&file, directory), "a folder".to_owned()));
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(SourceProblem::NotFound(written.to_owned()));
    }
    let folder = match wanted {
        Wanted::Named(_) => directory.join(pattern_folder(plain)),
        _ => directory.to_owned(),
    };
    let files = files.into_iter().map(|file| (wanted.name(&file, &folder), file)).collect();
    Ok(Listing { files, notes, ..Listing::default() })
}

/// Returns the folder that a pattern starts in: the part before the first wildcard, up to its last `/`.
pub fn pattern_folder(pattern: &str) -> &str {
    let wild = pattern.find(['*', '?', '[']).unwrap_or(pattern.len());
    pattern[..wild].rfind('/').map_or("", |end| if end == 0 { "/" } else { &pattern[..end] })
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the links on a path, deepest first: those that a user may lead elsewhere. Links on the way to the working
/// directory and those in the root folder do not count.
pub(crate) fn links_on(path: &Path, directory: &Path) -> Vec<PathBuf> {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let real = directory.canonicalize().unwrap_or_else(|_| directory.clone());
    let path = directory.join(path);
    let mut links = Vec::new();
    for part in path.ancestors() {
        let is_above = directory.starts_with(part) || real.starts_with(part);
        let is_of_system = part.parent().is_none_or(|folder| folder.parent().is_none());
        if !is_above && !is_of_system && std::fs::symlink_metadata(part).is_ok_and(|found| found.is_symlink()) {
            links.push(part.to_owned());
        }
    }
    links
}

/// Returns sources that say where the links on the path of a program or function lead: it may look for its files there.
pub fn where_links_lead(path: &Path, directory: &Path) -> Vec<Source> {
    let real = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let mut sources = Vec::new();
    for link in links_on(path, directory) {
        let target = link.canonicalize().unwrap_or_default();
        let link = link.strip_prefix(&absolute).unwrap_or(&link).display().to_string();
        let target = target.strip_prefix(&real).unwrap_or(&target).display().to_string();
        sources.push(Source::Identity(format!("{link} leads to {target}")));
    }
    sources
}

/// A walk through a folder.
struct Walk<'a> {
    root: &'a Path,
    /// Names are relative to this folder.
    names: &'a Path,
    wanted: Wanted,
    stopped: &'a dyn Fn() -> bool,
    /// Visited folders by device and inode, with the name of the first visit.
    seen: BTreeMap<(u64, u64), String>,
    listing: Listing,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Path, wanted: Wanted, directory: &'a Path, stopped: &'a dyn Fn() -> bool) -> Self {
        let names = if matches!(wanted, Wanted::Seen) { directory } else { root };
        Self { root, names, wanted, stopped, seen: BTreeMap::new(), listing: Listing::default() }
    }

    fn all(mut self) -> std::io::Result<Listing> {
        let mut pending = vec![self.root.to_owned()];
        while let Some(folder) = pending.pop() {
            pending.extend(self.folder(folder)?);
        }
        self.listing.files.sort();
        self.listing.notes.sort();
        Ok(self.listing)
    }

    fn name(&self, path: &Path) -> String {
        path.strip_prefix(self.names).unwrap_or(path).to_string_lossy().into_owned()
    }

    /// Lists a folder; returns its subfolders in reverse order, so that the first is popped first.
    fn folder(&mut self, folder: PathBuf) -> std::io::Result<Vec<PathBuf>> {
        if (self.stopped)() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let (name, metadata) = (self.name(&folder), std::fs::metadata(&folder)?);
        let known = (metadata.dev(), metadata.ino());
        // A link may lead to a folder above it; (0, 0) is unknown, on file systems without inodes.
        if let Some(first) = self.seen.get(&known).filter(|_| known != (0, 0)) {
            self.listing.notes.push((name, format!("the folder `{first}` again")));
            return Ok(Vec::new());
        }
        // A searchmill store changes during a run.
        let is_store = folder.join("format").is_file() && folder.join("results").is_dir();
        if is_store && folder.join("artifacts").is_dir() {
            return Ok(Vec::new());
        }
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&folder)? {
            entries.push(entry?.path());
        }
        // File systems list a folder in any order.
        entries.sort();
        if entries.is_empty() && matches!(self.wanted, Wanted::Seen) {
            self.listing.notes.push((name.clone(), "an empty folder".to_owned()));
        }
        self.seen.insert(known, name);
        self.listing.folders.push(folder);
        let mut folders = Vec::new();
        for path in entries {
            let own = file_name(&path);
            match std::fs::metadata(&path) {
                Ok(found) if found.is_dir() && self.wanted.folder(&own) => folders.push(path),
                Ok(found) if found.is_dir() => {}
                Ok(found) if found.is_file() && self.wanted.file(&own) => {
                    self.listing.files.push((self.name(&path), path));
                }
                Err(_) if self.wanted.file(&own) => {
                    self.listing.notes.push((self.name(&path), "a link to nothing".to_owned()));
                }
                Ok(_) | Err(_) => {}
            }
        }
        folders.reverse();
        Ok(folders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(listing: &Listing) -> Vec<&str> {
        listing.files.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn cycles_end_and_folders_are_listed_once() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "1").unwrap();
        std::fs::write(root.join("a/.hidden.jsonl"), "1").unwrap();
        std::os::unix::fs::symlink("..", root.join("a/b/up")).unwrap();
        std::os::unix::fs::symlink("a", root.join("c")).unwrap();
        std::os::unix::fs::symlink("nowhere", root.join("dangling")).unwrap();
        let found = list("", Wanted::All, root, &|| false).unwrap();
        assert_eq!(names(&found), ["a/.hidden.jsonl", "a/b/file"]);
        let notes: Vec<_> = found.notes.iter().map(|(name, what)| format!("{name}: {what}")).collect();
        let again = "the folder `a` again";
        assert_eq!(
            notes,
            [format!("a/b/up: {again}"), format!("c: {again}"), "dangling: a link to nothing".to_owned()]
        );
        assert!(names(&list("", Wanted::Visible(&[".jsonl"]), root, &|| false).unwrap()).is_empty());
        assert_eq!(list("", Wanted::All, root, &|| true), Err(SourceProblem::Stopped));
    }

    #[test]
    fn only_regular_files_are_listed_and_a_pipe_by_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        std::fs::write(folder.path().join("file"), "1").unwrap();
        assert_eq!(names(&list("", Wanted::All, folder.path(), &|| false).unwrap()), ["file"]);
        assert_eq!(names(&list("*", Wanted::All, folder.path(), &|| false).unwrap()), ["file"]);
        let refused = list("socket", Wanted::All, folder.path(), &|| false).unwrap_err();
        assert_eq!(refused, SourceProblem::NotAFile("socket".to_owned()));
        assert!(refused.to_string().contains("is not a regular file"), "{refused}");
        drop(socket);
        std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
        let looped = list("loop", Wanted::All, folder.path(), &|| false).unwrap_err();
        assert!(matches!(looped, SourceProblem::Unreadable { .. }), "it is there: {looped}");
    }

    #[test]
    fn links_of_the_user_are_told_from_those_that_lead_to_the_project() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("disk/project/v1")).unwrap();
        std::os::unix::fs::symlink("disk/project", root.join("project")).unwrap();
        std::os::unix::fs::symlink("v1", root.join("project/cur")).unwrap();
        let project = root.join("project");
        for directory in [&project, &root.join("disk/project")] {
            for path in [Path::new("cur/f.py"), &project.join("cur/f.py"), &root.join("disk/project/cur")] {
                let found = links_on(path, directory);
                assert!(found.len() == 1 || found.len() == 2 && found[1] == project, "{found:?}");
                assert!(found[0].ends_with("project/cur"), "{found:?}");
            }
            assert_eq!(links_on(Path::new("v1/f.py"), directory), Vec::<PathBuf>::new());
        }
        let told = where_links_lead(Path::new("cur/f.py"), &project);
        assert_eq!(told, [Source::Identity("cur leads to v1".to_owned())]);
    }

    #[test]
    fn a_program_sees_paths_and_empty_folders() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in ["a/empty", "g/one"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::write(root.join("a/x"), "1").unwrap();
        std::fs::write(root.join("g/one/f.txt"), "1").unwrap();
        let seen = |path: &str| files_of(&Source::Argument(path.to_owned()), root, &|| false).unwrap();
        assert_eq!(names(&seen("a")), ["a/x"]);
        assert_eq!(seen("./a").notes, [("a/empty".to_owned(), "an empty folder".to_owned())]);
        assert_eq!((names(&seen("g/*/f.txt")), names(&seen("a/x"))), (vec!["g/one/f.txt"], vec!["a/x"]));
        let whole = root.join("a/x").display().to_string();
        assert_eq!(
            files_of(&Source::Argument(whole.clone()), Path::new("/elsewhere"), &|| false).unwrap().files[0].0,
            whole
        );
        assert_eq!(names(&files_of(&Source::Path("g/*/f.txt".into()), root, &|| false).unwrap()), ["f.txt"]);
    }

    #[test]
    fn a_store_inside_a_folder_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["store/results", "store/artifacts"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("store/format"), "1").unwrap();
        std::fs::write(folder.path().join("file"), "1").unwrap();
        assert_eq!(names(&list("", Wanted::All, folder.path(), &|| false).unwrap()), ["file"]);
    }

    #[test]
    fn patterns_start_at_a_folder_with_brackets_and_leave_hidden_files_out() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("data [1]");
        std::fs::create_dir(&odd).unwrap();
        for name in ["b.jsonl", "a.jsonl", ".c.jsonl"] {
            std::fs::write(odd.join(name), "").unwrap();
        }
        assert_eq!(names(&list("*.jsonl", Wanted::All, &odd, &|| false).unwrap()), ["a.jsonl", "b.jsonl"]);
        assert!(matches!(list("*.csv", Wanted::All, &odd, &|| false), Err(SourceProblem::NotFound(_))));
        std::os::unix::fs::symlink("nowhere", odd.join("c.jsonl")).unwrap();
        let told = list("*.jsonl", Wanted::All, &odd, &|| false).unwrap_err().to_string();
        assert!(told.contains("c.jsonl` cannot be read"), "{told}");
    }

    #[test]
    fn files_of_a_pattern_are_named_from_its_folder_where_names_are_results() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for name in ["notes/a/x.md", "notes/b/x.md"] {
            std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            std::fs::write(root.join(name), "1").unwrap();
        }
        let named = |path: &str| {
            let source = Source::Named { path: path.to_owned(), endings: &[".md"] };
            files_of(&source, root, &|| false).unwrap().files.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(named("notes/*/x.md"), ["a/x.md", "b/x.md"]);
        assert_eq!(named("./notes/**/*.md"), ["a/x.md", "b/x.md"]);
        assert_eq!(named("notes/a/x.md"), ["x.md"]);
        assert_eq!(named("notes"), ["a/x.md", "b/x.md"]);
        assert_eq!(named(&root.join("notes/*/x.md").display().to_string()), ["a/x.md", "b/x.md"]);
        assert_eq!(names(&list("notes/*/x.md", Wanted::Visible(&[".md"]), root, &|| false).unwrap()), ["x.md", "x.md"]);
        assert_eq!(["a/b*/c", "*", "/x*", "a/b/c?.md"].map(pattern_folder), ["a", "", "/", "a/b"]);
    }
}
