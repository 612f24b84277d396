//! The external files of a node as its key saw them, and their later comparison with the file system.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use super::digest::{Digest, hash_reader};
use crate::operator::listing::{FileStat, files_of, links_on};
use crate::operator::{Source, SourceFiles};

/// A file as the key saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenFile {
    /// Name in the key.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Its metadata in the file system.
    pub stat: FileStat,
    /// Digest of its content; `None` for a program identified by its version.
    pub digest: Option<Digest>,
    /// Whether it is so recent that it may have changed within the resolution of its time stamp.
    pub young: bool,
}

/// A source as the key saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenSource {
    /// The source as written.
    pub written: String,
    /// Its files, in path order.
    pub files: Vec<SeenFile>,
    /// Folders that were listed.
    pub folders: Vec<(PathBuf, FileStat)>,
    /// Entries other than files.
    pub notes: Vec<(String, String)>,
}

impl SeenSource {
    /// A source without local files.
    pub fn empty(written: String) -> Self {
        Self { written, ..Self::default() }
    }

    /// Returns the folders whose lists enter the key: those of a folder, and the working directory, of which `*` takes
    /// all that is visible.
    fn listed(&self) -> Vec<&Path> {
        let mut folders: Vec<&Path> = self.folders.iter().map(|(folder, _)| folder.as_path()).collect();
        if matches!(self.written.as_str(), "*" | "./*") {
            folders.extend(self.files.iter().filter_map(|file| file.path.parent()));
        }
        folders
    }

    /// Returns the name of something that differs now, if any.
    fn difference(&self, source: &Source, directory: &Path) -> Option<String> {
        if source.written() != self.written {
            return Some(self.written.clone());
        }
        // What had no files is a URL or an identity. Only an optional file may have appeared since.
        if self.files.is_empty() && self.folders.is_empty() && !matches!(source, Source::Optional(_)) {
            return None;
        }
        // What cannot be listed any more has changed.
        let Ok(now) = files_of(source, directory, &|| false) else { return Some(self.written.clone()) };
        let is_same_list = now.files.len() == self.files.len()
            && now.notes == self.notes
            && now.files.iter().zip(&self.files).all(|(now, seen)| now.1 == seen.path);
        if !is_same_list {
            return Some(self.written.clone());
        }
        let files = self.files.iter().map(|file| (&file.path, &file.stat));
        for (path, stat) in files.chain(self.folders.iter().map(|(path, stat)| (path, stat))) {
            if FileStat::of(path).ok().as_ref() != Some(stat) {
                return Some(path.display().to_string());
            }
        }
        None
    }
}

/// All sources of a node as its key saw them.
#[derive(Debug, Default)]
pub struct SeenSources {
    sources: Vec<Source>,
    seen: Vec<SeenSource>,
    directory: PathBuf,
    /// Digests of the files in the key: a folder of many files looks up each of them.
    digests: BTreeMap<PathBuf, Digest>,
    /// Files that were read completely and matched the key's digest.
    read: Mutex<BTreeSet<PathBuf>>,
    /// The first change that was found.
    changed: Mutex<Option<String>>,
    /// Paths of all files and listed folders, as the key wrote them, and without links.
    covered: OnceLock<BTreeSet<PathBuf>>,
    real: OnceLock<BTreeSet<PathBuf>>,
    /// The working directory without links.
    real_directory: OnceLock<PathBuf>,
}

impl SeenSources {
    /// `seen` describes `sources`, in order; relative paths start at `directory`.
    pub fn new(sources: Vec<Source>, seen: Vec<SeenSource>, directory: &Path) -> Self {
        let files = seen.iter().flat_map(|source| &source.files);
        let digests = files.filter_map(|file| Some((file.path.clone(), file.digest?))).collect();
        Self { sources, seen, directory: directory.to_owned(), digests, ..Self::default() }
    }

    /// Returns what was seen of each source.
    pub fn seen(&self) -> &[SeenSource] {
        &self.seen
    }

    /// Returns a change since then, by file metadata only: fast enough for every row.
    pub fn changed(&self) -> Option<String> {
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        if changed.is_none() {
            let mut pairs = self.sources.iter().zip(&self.seen);
            let more = self.sources.get(self.seen.len()).map(Source::written);
            let fewer = self.seen.get(self.sources.len()).map(|seen| seen.written.clone());
            let differs = pairs.find_map(|(source, seen)| seen.difference(source, &self.directory));
            *changed = differs.or(more).or(fewer);
        }
        changed.clone()
    }

    /// Returns a change since then; `sources` are those that the operator names now.
    pub fn differs(&self, sources: &[Source]) -> Option<String> {
        // A program or a pattern may name other files than when the key was computed.
        if sources != self.sources {
            let new = sources.iter().find(|source| !self.sources.contains(source));
            let gone = self.sources.iter().find(|source| !sources.contains(source));
            return Some(new.or(gone).map(Source::written).unwrap_or_default());
        }
        self.changed()
    }

    /// Returns a change at the end of a run. Files too recent for their time stamps to be reliable are read again.
    pub fn changed_at_end(&self, sources: &[Source]) -> Option<String> {
        if let Some(change) = self.differs(sources) {
            return Some(change);
        }
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        for file in self.seen.iter().flat_map(|source| &source.files) {
            // The operator read these bytes: it need not be done twice.
            if !file.young || file.digest.is_none() || read.contains(&file.path) {
                continue;
            }
            if File::open(&file.path).and_then(hash_reader).ok() != file.digest {
                return Some(file.path.display().to_string());
            }
        }
        None
    }

    /// Checks the digest of a file that was read completely against the key's digest.
    fn was_read(&self, path: &Path, digest: Digest) -> std::io::Result<()> {
        if self.digests.get(path) == Some(&digest) {
            self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
            return Ok(());
        }
        let shown = path.display().to_string();
        let message = format!("{shown} changed while it was read");
        // The file may be as before when the run ends: the change is remembered.
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(shown);
        Err(std::io::Error::other(message))
    }

    /// Returns the paths of all files and listed folders, as the key wrote them.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let files = self.seen.iter().flat_map(|source| &source.files).map(|file| file.path.as_path());
        files.chain(self.seen.iter().flat_map(SeenSource::listed))
    }
}

impl SourceFiles for SeenSources {
    fn files(&self, written: &str) -> Option<Vec<PathBuf>> {
        let source = self.seen.iter().find(|source| source.written == written)?;
        Some(source.files.iter().map(|file| file.path.clone()).collect())
    }

    fn covers(&self, path: &Path) -> Option<bool> {
        let written = self.covered.get_or_init(|| self.paths().map(Path::to_owned).collect());
        let real_directory = self.real_directory.get_or_init(|| self.directory.canonicalize().unwrap_or_default());
        let mut is_covered = written.contains(path);
        // A path of the system may begin with the working directory without links, where the key has it as given.
        if !real_directory.as_os_str().is_empty()
            && let Ok(below) = path.strip_prefix(real_directory)
        {
            is_covered |= written.contains(&self.directory.join(below));
        }
        if is_covered {
            return Some(true);
        }
        // The key has what lies behind a link, but not where the link leads, unless a folder in the key has the link.
        for link in links_on(path, &self.directory) {
            let mut folders = self.seen.iter().flat_map(|seen| &seen.folders);
            if !folders.any(|(folder, _)| Some(folder.as_path()) == link.parent()) {
                return Some(false);
            }
        }
        // Otherwise the key may have named the file through a link.
        let Ok(path) = path.canonicalize() else { return Some(false) };
        let real = self.real.get_or_init(|| self.paths().filter_map(|path| path.canonicalize().ok()).collect());
        Some(real.contains(&path))
    }

    fn watched(self: Arc<Self>, path: &Path, bytes: Box<dyn Read + Send>) -> Box<dyn Read + Send> {
        if !self.digests.contains_key(path) {
            return bytes;
        }
        Box::new(Watched { bytes, path: path.to_owned(), hasher: Some(blake3::Hasher::new()), sources: self })
    }
}

/// Hashes bytes while they are read, and compares the digest with the key's at the end.
struct Watched {
    bytes: Box<dyn Read + Send>,
    path: PathBuf,
    hasher: Option<blake3::Hasher>,
    sources: Arc<SeenSources>,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.bytes.read(buffer)?;
        if count > 0 {
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&buffer[..count]);
            }
        } else if let Some(hasher) = self.hasher.take().filter(|_| !buffer.is_empty()) {
            self.sources.was_read(&self.path, Digest::from_bytes(*hasher.finalize().as_bytes()))?;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::fingerprint::SourceDigests;

    fn seen(folder: &Path, sources: &[Source]) -> Arc<SeenSources> {
        let digests = SourceDigests::new(std::collections::BTreeMap::new(), |_| None);
        let (_, seen) = digests.identify(sources, folder).unwrap();
        Arc::new(SeenSources::new(sources.to_vec(), seen, folder))
    }

    #[test]
    fn a_file_that_was_changed_and_put_back_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "one").unwrap();
        let sources = [Source::Path("a".into())];
        let seen = seen(folder.path(), &sources);
        assert_eq!((seen.changed(), seen.changed_at_end(&sources)), (None, None));
        let time = fs::metadata(folder.path().join("a")).unwrap().modified().unwrap();
        fs::write(folder.path().join("a"), "two").unwrap();
        fs::write(folder.path().join("a"), "one").unwrap();
        File::options().write(true).open(folder.path().join("a")).unwrap().set_modified(time).unwrap();
        assert!(seen.changed().is_some_and(|what| what.ends_with("/a")));
    }

    #[test]
    fn files_that_come_and_go_in_a_folder_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("f")).unwrap();
        fs::write(folder.path().join("f/a"), "one").unwrap();
        let sources = [Source::Path("f".into()), Source::Optional("beside".into())];
        let before = seen(folder.path(), &sources);
        fs::write(folder.path().join("f/b"), "two").unwrap();
        fs::remove_file(folder.path().join("f/b")).unwrap();
        assert!(before.changed().is_some(), "the folder's own time changed");
        let before = seen(folder.path(), &sources);
        fs::write(folder.path().join("beside"), "new").unwrap();
        assert_eq!(before.changed().as_deref(), Some("beside"));
        let before = seen(folder.path(), &sources);
        assert_eq!(before.changed_at_end(&sources[..1]).as_deref(), Some("beside"), "the operator names other sources");
    }

    #[test]
    fn bytes_are_compared_on_their_way_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "one").unwrap();
        let seen = seen(folder.path(), &[Source::Path("a".into())]);
        let read = |bytes: &'static [u8]| {
            let mut text = String::new();
            Arc::clone(&seen).watched(&path, Box::new(bytes)).read_to_string(&mut text).map(|_| text)
        };
        assert_eq!(read(b"one").unwrap(), "one");
        assert_eq!(seen.changed(), None);
        assert!(read(b"one and more").unwrap_err().to_string().contains("changed while it was read"));
        assert!(seen.changed().is_some());
    }
}
