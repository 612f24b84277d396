//! The user's files that a program opened for reading, the folders that it listed, and their comparison with its cache
//! key.
//!
//! A file is the user's if it lies in the working directory, in the home folder or on another disk, but not in a folder
//! of the system, an environment of an interpreter, a cache, or the store. Files that the program made itself, or that
//! `writes` names, do not count. Nor do folders that are listed to find modules, and those that build tools look through
//! without need: the working directory and those above it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use searchmill_engine::operator::{Context, OperatorError};

use super::words::plain;

/// Folders of the system.
const SYSTEM: [&str; 19] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/opt", "/proc", "/run", "/sbin",
    "/snap", "/sys", "/usr", "/var", "/System", "/Library",
];
/// Folders of packages, of version control and of bytecode, wherever they are.
const OF_TOOLS: [&str; 7] =
    ["site-packages", "dist-packages", "node_modules", "__pycache__", ".git", "lib-dynload", ".ipynb_checkpoints"];
/// Settings that choose an interpreter or its packages, which have keys of their own.
const SETTINGS: [&str; 13] = [
    ".python-version",
    ".tool-versions",
    "mise.toml",
    ".mise.toml",
    "pyproject.toml",
    "uv.toml",
    "uv.lock",
    "setup.cfg",
    "pyvenv.cfg",
    "package.json",
    "package-lock.json",
    ".npmrc",
    ".gitignore",
];
/// Starts of names of folders for temporary files in which compilers and servers keep what they made.
const CACHES: [&str; 6] = ["torchinductor_", "triton", "ray", "vllm", "matplotlib-", "."];
/// The flag of `open` with which nothing is read.
#[cfg(target_os = "linux")]
const NOTHING: i32 = libc::O_PATH;
#[cfg(not(target_os = "linux"))]
const NOTHING: i32 = 0;
/// The clock of file systems goes in ticks: what was made just now may look older by one (100 Hz at the least).
const TICK: Duration = Duration::from_millis(10);
/// How `files` names the list of the working directory: a pattern, which leaves the store and hidden files out.
const LISTED_HERE: &str = "\"*\"";
/// Files that a message names (at most).
const NAMED: usize = 5;

/// What a program asks to open.
pub(super) struct Asked {
    /// Absolute.
    pub(super) path: PathBuf,
    /// Flags of `open`.
    pub(super) flags: i32,
    /// The process that asks; `None`: a function says what its own code opened.
    pub(super) process: Option<u32>,
}

/// The user's files that one start of a program opened.
pub(crate) struct Opened {
    places: Places,
    /// Files and folders that do not count.
    exempt: Vec<PathBuf>,
    /// The working directory.
    directory: PathBuf,
    start: SystemTime,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Files that were read, and folders that were listed.
    read: BTreeSet<PathBuf>,
    /// What of `read` was not compared with the key yet.
    fresh: Vec<PathBuf>,
    /// Files that the program created.
    created: BTreeSet<PathBuf>,
}

impl Opened {
    /// `variables` are the names of the variables that the program gets, `writes` the files and folders that it writes,
    /// `exempt` those that its words name by absolute paths.
    pub(super) fn new(context: &Context, variables: &[String], writes: &[String], mut exempt: Vec<PathBuf>) -> Self {
        let directory = std::path::absolute(context.resolve("")).unwrap_or_else(|_| context.resolve(""));
        exempt.extend(writes.iter().map(|path| plain(&directory.join(path))));
        let (places, directory) = (Places::of(&directory, context.scratch(), variables), plain(&directory));
        Self { places, exempt, directory, start: SystemTime::now() - TICK, state: Mutex::default() }
    }

    /// Whether a file may be the user's, and is not noted yet. Asks no file system.
    pub(super) fn concerns(&self, asked: &Asked) -> bool {
        let path = plain(&asked.path);
        if asked.flags & NOTHING != 0 || !self.places.may_be_users(&path) {
            return false;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        !state.read.contains(&path) && !state.created.contains(&path)
    }

    /// Notes a file that is about to be opened. Returns whether the program may see it: not so bytecode of the user's
    /// modules.
    pub(super) fn note(&self, asked: Asked) -> bool {
        let Asked { path, flags, process } = asked;
        let path = plain(&path);
        let only_reads = flags & libc::O_ACCMODE == libc::O_RDONLY;
        // Bytecode of an older source would be run, and the key has the source.
        if only_reads && let Some(source) = source_of(&path) {
            return !self.places.are_users(&source) || !source.is_file();
        }
        if !self.places.are_users(&path) || self.exempt.iter().any(|exempt| path.starts_with(exempt)) {
            return true;
        }
        // Programs written in Go, and those that list an open folder, do not say that it is one.
        if !path.is_dir() {
            self.read(&path, flags);
        } else if only_reads {
            self.listed(&path, process);
        }
        true
    }

    fn read(&self, path: &Path, flags: i32) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.read.contains(path) || state.created.contains(path) {
            return;
        }
        let found = std::fs::metadata(path);
        if flags & libc::O_CREAT != 0 && found.is_err() || flags & libc::O_TRUNC != 0 {
            state.created.insert(path.to_owned());
            return;
        }
        let Ok(found) = found else { return };
        // Made by the program, and then renamed.
        let is_new = found.created().is_ok_and(|created| created > self.start);
        if found.is_file() && flags & libc::O_ACCMODE != libc::O_WRONLY && !is_new {
            state.read.insert(path.to_owned());
            state.fresh.push(path.to_owned());
        }
    }

    /// Notes a folder that is about to be listed.
    fn listed(&self, folder: &Path, process: Option<u32>) {
        if let Some(process) = process {
            let is_looked_through = self.directory.starts_with(folder);
            if is_looked_through || is_python(process) && has_modules(folder) {
                return;
            }
        }
        let Ok(found) = std::fs::metadata(folder) else { return };
        // Made by the program.
        if !found.is_dir() || found.created().is_ok_and(|created| created > self.start) {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.read.insert(folder.to_owned()) {
            state.fresh.push(folder.to_owned());
        }
    }

    /// Compares what was read since the last call with the key. `name` is the program's.
    ///
    /// # Errors
    /// Fails with the files that the key does not cover.
    pub(crate) fn check(&self, name: &str, covers: impl Fn(&Path) -> bool) -> Result<(), OperatorError> {
        let fresh = std::mem::take(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).fresh);
        let unknown: BTreeSet<PathBuf> = fresh.into_iter().filter(|path| !covers(path)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let mut shown = Vec::new();
        for path in &unknown {
            // A listed folder stands for what is in it.
            if !path.parent().is_some_and(|folder| unknown.contains(folder)) {
                shown.push(self.places.shown(path));
            }
        }
        // The order in which processes open files differs from run to run.
        shown.sort();
        let more = shown.len().saturating_sub(NAMED);
        shown.truncate(NAMED);
        let shown = shown.join(", ");
        let named = shown.replace(LISTED_HERE, "the list of the working directory");
        let others = if more > 0 { format!(" and {more} more files") } else { String::new() };
        // Whoever calls again, after this error, hears of the same files.
        self.state.lock().unwrap_or_else(PoisonError::into_inner).fresh.extend(unknown);
        let message = format!("`{name}` read {named}{others}, which its cache key does not contain");
        Err(OperatorError::pipeline(message).with_help(format!(
            "add what decides the result to the node's `files`: `files: [{shown}]`; and what does not (logs, caches, \
             credentials) to its `writes`"
        )))
    }
}

/// Returns the source of a module's bytecode, as Python names it: `__pycache__/NAME.TAG.pyc` beside `NAME.py`.
fn source_of(path: &Path) -> Option<PathBuf> {
    let folder = path.parent()?;
    if folder.file_name()? != "__pycache__" {
        return None;
    }
    let name = path.file_name()?.to_str()?.strip_suffix(".pyc")?;
    Some(folder.parent()?.join(format!("{}.py", name.split('.').next()?)))
}

/// Which files are the user's.
struct Places {
    /// Folders with files of the user.
    own: Vec<PathBuf>,
    /// Folders without, unless one of `own` lies deeper.
    others: Vec<PathBuf>,
    home: Option<PathBuf>,
    temporary: PathBuf,
    start: SystemTime,
    /// Folders that are environments of interpreters, or stores, as far as it was asked.
    known: Mutex<BTreeMap<PathBuf, bool>>,
}

impl Places {
    fn of(directory: &Path, scratch: &Path, variables: &[String]) -> Self {
        let mut own = vec![plain(directory)];
        own.extend(directory.canonicalize().ok());
        let mut others: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
        others.extend(std::path::absolute(scratch).ok().map(|path| plain(&path)));
        others.extend(scratch.canonicalize().ok());
        for name in variables {
            if name.ends_with("_HOME") || name.contains("CACHE") {
                others.extend(std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute()));
            }
        }
        let (home, temporary) = (std::env::home_dir(), std::env::temp_dir());
        Self { own, others, home, temporary, start: SystemTime::now() - TICK, known: Mutex::default() }
    }

    /// Whether a path says that a file may be the user's.
    fn may_be_users(&self, path: &Path) -> bool {
        let (own, mut others) = (deepest(&self.own, path), deepest(&self.others, path));
        // A hidden folder of the home folder is none of the user's, unless the working directory lies in it.
        if let Some(home) = &self.home
            && let Ok(rest) = path.strip_prefix(home)
            && rest.iter().next().is_some_and(is_hidden)
        {
            others = others.max(Some(home.components().count() + 1));
        }
        // Outside the working directory, hidden folders hold settings, caches and interpreters, whoever's home it is.
        let is_outside = own.is_none() && path.iter().any(is_hidden);
        !is_outside && others <= own
    }

    fn are_users(&self, path: &Path) -> bool {
        if !self.may_be_users(path) {
            return false;
        }
        for part in path {
            let part = part.to_string_lossy();
            if OF_TOOLS.contains(&part.as_ref()) || part.ends_with(".egg-info") || part.ends_with(".dist-info") {
                return false;
            }
        }
        let own = deepest(&self.own, path);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if has_library_of_python(path) || SETTINGS.contains(&name.as_ref()) {
            return false;
        }
        // The loader looks for shared libraries where the environment says.
        let ending = path.extension().and_then(OsStr::to_str);
        let is_library = matches!(ending, Some("so" | "dylib")) || name.contains(".so.");
        if own.is_none() && (is_library || self.is_temporary(path)) {
            return false;
        }
        // The working directory itself may be an environment, or lie in one.
        let inside = own.unwrap_or_default();
        let mut folders = path.ancestors().skip(1).take_while(|folder| folder.components().count() > inside);
        !folders.any(|folder| self.is_made(folder))
    }

    /// Whether a file outside the working directory is one of those that compilers and servers keep among temporary
    /// files.
    fn is_temporary(&self, path: &Path) -> bool {
        let Ok(rest) = path.strip_prefix(&self.temporary) else { return false };
        let first = rest.iter().next().unwrap_or_default().to_string_lossy();
        let created = std::fs::metadata(path).and_then(|found| found.created());
        CACHES.iter().any(|start| first.starts_with(start)) || created.is_ok_and(|created| created > self.start)
    }

    /// Whether a folder is the environment of an interpreter, or a store.
    fn is_made(&self, folder: &Path) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(is) = known.get(folder) {
            return *is;
        }
        let is_environment = folder.join("pyvenv.cfg").is_file() || folder.join("conda-meta").is_dir();
        let is = is_environment || folder.join("format").is_file() && folder.join("artifacts").is_dir();
        *known.entry(folder.to_owned()).or_insert(is)
    }

    /// Returns a path as it can be written in a pipeline; a listed folder ends with a slash.
    fn shown(&self, path: &Path) -> String {
        let inside = self.own.iter().find_map(|folder| path.strip_prefix(folder).ok());
        match inside.unwrap_or(path).display().to_string() {
            shown if shown.is_empty() => LISTED_HERE.to_owned(),
            shown if path.is_dir() => format!("{shown}/"),
            shown => shown,
        }
    }
}

/// Returns the number of parts of the deepest of these folders that contains a path.
fn deepest(folders: &[PathBuf], path: &Path) -> Option<usize> {
    folders.iter().filter(|folder| path.starts_with(folder)).map(|folder| folder.components().count()).max()
}

/// Whether a process is an interpreter of Python.
fn is_python(process: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("python") || name.starts_with("pypy")
}

/// Whether Python may look for modules in a folder: they lie in it, or in packages in it.
fn has_modules(folder: &Path) -> bool {
    let inside = entries(folder);
    has_module(&inside) || inside.iter().any(|package| has_module(&entries(package)))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn has_module(paths: &[PathBuf]) -> bool {
    paths.iter().any(|path| path.extension().is_some_and(|ending| ending == "py"))
}

/// Whether a path lies in `lib/python3.12` of an interpreter, wherever it is installed.
fn has_library_of_python(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().map(OsStr::to_string_lossy).collect();
    let mut pairs = parts.windows(2);
    pairs.any(|pair| pair[0].starts_with("lib") && ["python2", "python3"].iter().any(|name| pair[1].starts_with(name)))
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}
