//! Derives a command's sources, the part of the cache key: its programs, and the files and folders its words name.
//!
//! All programs follow the same rules. Own scripts and programs are identified by content. Programs in system folders
//! and interpreters are identified by their `--version` output, or by a `version` in the params. The interpreter of a
//! script counts too.
//!
//! A word, the text after a `=`, a word inside a word (the script of `sh -c`) and a module of `-m` are sources if they
//! name a file, a folder, a pattern that matches files, or an own program on `PATH`. Relative paths start at the
//! pipeline's working directory, like the program.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use searchmill_engine::operator::{Source, open_regular, where_links_lead};

use super::words::{LONGEST, modules, path, plain, texts};

/// A command as written in the params.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// The program and the words before its arguments.
    pub program: &'a [String],
    /// The arguments.
    pub arguments: &'a [String],
    /// The version stated in the params.
    pub version: Option<&'a str>,
    /// Files and folders that it writes; words that name them are not sources.
    pub writes: &'a [String],
}

/// Returns what identifies a command without a stated version.
pub fn command_sources(words: &[String], directory: &Path) -> Vec<Source> {
    Command { program: words, arguments: &[], version: None, writes: &[] }.sources(directory)
}

/// Returns a program's path: relative to the working directory, or the first match on `PATH`.
pub(crate) fn located(word: &str, directory: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    Places { directory, path: &path }.located(word)
}

impl Command<'_> {
    /// Returns everything that identifies the command.
    pub fn sources(&self, directory: &Path) -> Vec<Source> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        self.found(&Places { directory, path: &path }).into_iter().collect()
    }

    fn found(&self, places: &Places<'_>) -> BTreeSet<Source> {
        let mut found: BTreeSet<Source> = BTreeSet::new();
        let words: Vec<&str> = self.program.iter().chain(self.arguments).map(String::as_str).collect();
        let (first, rest) = words.split_at(words.len().min(1));
        for word in first {
            self.program(word, places, &mut found);
            if STARTERS.contains(&word.rsplit('/').next().unwrap_or_default()) {
                // Options and `NAME=value` may precede the program that it starts.
                let mut started = rest.iter().filter(|word| !word.contains('=') && !word.starts_with('-'));
                if let Some(word) = started.find(|word| places.located(word).is_some()) {
                    self.program(word, places, &mut found);
                }
            }
        }
        // Searched with the arguments so that `sh -c` is recognised, then removed: the program is not an argument.
        for source in named(words.iter().copied(), places.directory) {
            if !first.contains(&source.written().as_str()) && !self.writes_to(&source, places.directory) {
                found.insert(source);
            }
        }
        if self.version.is_none() {
            found.extend(texts(&words).iter().filter_map(|text| places.own_tool(text)).map(Source::Executable));
        }
        // A link enters the key too: another target is another program.
        let mut links = Vec::new();
        for source in &found {
            if let Some(code) = code_of(source, places.directory) {
                links.extend(where_links_lead(&code, places.directory));
            }
        }
        found.extend(links);
        found
    }

    /// Whether the program writes the source. A folder that contains the working directory says nothing about reads.
    fn writes_to(&self, source: &Source, directory: &Path) -> bool {
        let directory = plain(directory);
        let path = plain(&directory.join(source.written()));
        self.writes.iter().any(|written| {
            let written = plain(&directory.join(written));
            path.starts_with(&written) && !directory.starts_with(&written)
        })
    }

    fn program(&self, word: &str, places: &Places<'_>, found: &mut BTreeSet<Source>) {
        let Some(path) = places.located(word) else {
            // It cannot be started either.
            found.insert(Source::Identity(format!("program {word}")));
            return;
        };
        let is_on_path = places.folders().any(|folder| Some(folder.as_path()) == path.parent());
        if is_on_path && self.version.is_some() {
            return;
        }
        found.insert(if is_on_path { known(path.clone()) } else { Source::Executable(path.clone()) });
        // A version in the params stands for the interpreter too.
        if self.version.is_none()
            && let Some(interpreter) = interpreter(&path)
            && let Some(path) = places.located(&interpreter)
        {
            found.insert(known(path));
        }
    }
}

/// Returns the positions of invalid entries: a folder that contains the working directory would remove every word from
/// the key.
pub(super) fn wrong_writes(writes: &[String]) -> impl Iterator<Item = usize> + '_ {
    writes.iter().enumerate().filter_map(|(index, written)| {
        let has_name = plain(Path::new(written)).components().any(|part| matches!(part, Component::Normal(_)));
        if has_name { None } else { Some(index) }
    })
}

/// Programs that start the program named by their words.
const STARTERS: [&str; 7] = ["env", "timeout", "nice", "nohup", "stdbuf", "time", "xargs"];

/// Interpreters, identified by version even if a small wrapper script starts them.
const INTERPRETERS: [&str; 12] =
    ["python", "pypy", "node", "ruby", "perl", "julia", "Rscript", "java", "deno", "bun", "php", "lua"];

/// Endings of the names of scripts.
const SCRIPTS: [&str; 16] =
    ["py", "pyw", "sh", "bash", "zsh", "pl", "rb", "js", "mjs", "ts", "R", "r", "jl", "lua", "php", "awk"];

/// Folders of programs that belong to the system. `/usr/local` is excluded: users install their own programs there.
const SYSTEM: [&str; 9] =
    ["/usr", "/bin", "/sbin", "/opt", "/nix", "/snap", "/run/current-system", "/System", "/Library"];

/// Only system programs and interpreters are asked for their version: other programs may treat `--version` as work.
fn known(path: PathBuf) -> Source {
    let of_system = SYSTEM.iter().any(|folder| path.starts_with(folder)) && !path.starts_with("/usr/local");
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // With or without a version (`python3.12`), but not `lua-filter`.
    let is_interpreter = INTERPRETERS.contains(&name.trim_end_matches(|ch: char| ch.is_ascii_digit() || ch == '.'));
    let is_program = is_interpreter || of_system && first_line(&path).is_none();
    if is_program { Source::Program(path) } else { Source::Executable(path) }
}

/// Where programs are searched.
struct Places<'a> {
    directory: &'a Path,
    path: &'a OsStr,
}

impl Places<'_> {
    /// Returns a program's path: relative to the working directory, or the first match on `PATH`.
    fn located(&self, word: &str) -> Option<PathBuf> {
        if word.contains('/') {
            return Some(self.directory.join(word)).filter(|path| path.is_file());
        }
        self.folders().map(|folder| folder.join(word)).find(|path| is_executable(path))
    }

    fn folders(&self) -> impl Iterator<Item = PathBuf> {
        std::env::split_paths(self.path).map(|folder| self.directory.join(folder))
    }

    /// Returns the program of that name on `PATH`, if it is identified by content.
    fn own_tool(&self, name: &str) -> Option<PathBuf> {
        if name.contains('/') || name.starts_with(['-', '.']) {
            return None;
        }
        let path = self.located(name)?;
        if matches!(known(path.clone()), Source::Executable(_)) { Some(path) } else { None }
    }
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Returns the first line of a script without `#!`.
fn first_line(path: &Path) -> Option<String> {
    let mut start = [0; 256];
    let read = open_regular(path).ok()?.read(&mut start).ok()?;
    let line = start[..read].strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Some(String::from_utf8_lossy(line).trim().to_owned())
}

/// Returns the interpreter that a script names.
fn interpreter(path: &Path) -> Option<String> {
    let line = first_line(path)?;
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if !first.ends_with("/env") {
        return Some(first.to_owned());
    }
    words.find(|word| !word.starts_with('-') && !word.contains('=')).map(str::to_owned)
}

/// Returns the files and folders that words name.
pub fn named<'a>(words: impl Iterator<Item = &'a str>, directory: &Path) -> Vec<Source> {
    let words: Vec<&str> = words.collect();
    let texts = texts(&words);
    let mut candidates: BTreeSet<String> = texts.iter().map(|text| path(text)).collect();
    candidates.extend(modules(&texts));
    candidates.retain(|candidate| names_files(candidate, directory));
    candidates.into_iter().map(Source::Argument).collect()
}

/// Returns the files and folders that words name by absolute paths: what a node gives its program, and what a key covers
/// already.
pub(super) fn absolute_paths(words: &[String], directory: &Path) -> Vec<PathBuf> {
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| word.len() <= LONGEST).collect();
    let paths = texts(&words).into_iter().map(|text| plain(Path::new(&path(&text))));
    paths.filter(|path| path.is_absolute() && path.exists() && !holds(path, directory)).collect()
}

/// Returns the file of a source if it is a program or a script: it may look for other files beside itself.
fn code_of(source: &Source, directory: &Path) -> Option<PathBuf> {
    match source {
        Source::Executable(path) => Some(path.clone()),
        Source::Argument(path) => {
            let path = directory.join(path);
            let ending = path.extension().and_then(OsStr::to_str).unwrap_or_default();
            let is_code = path.is_file() && (SCRIPTS.contains(&ending) || first_line(&path).is_some());
            if is_code { Some(path) } else { None }
        }
        _ => None,
    }
}

/// Whether a word names a regular file, a folder, or a pattern that matches files. Folders that contain the working
/// directory do not count: they contain the store.
fn names_files(word: &str, directory: &Path) -> bool {
    if word.is_empty() || word.contains('\0') || word.contains("://") {
        return false;
    }
    let path = directory.join(word);
    if let Ok(found) = std::fs::metadata(&path) {
        return found.is_file() || found.is_dir() && !holds(&path, directory);
    }
    if !word.contains(['*', '?', '[']) {
        return false;
    }
    // The working directory is no pattern, whatever characters its name has.
    let folder = glob::Pattern::escape(&directory.to_string_lossy());
    let pattern = if word.starts_with('/') { word.to_owned() } else { format!("{folder}/{word}") };
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..glob::MatchOptions::new() };
    let found = glob::glob_with(&pattern, options).ok();
    found.is_some_and(|found| found.filter_map(Result::ok).any(|path| path.is_file()))
}

fn holds(folder: &Path, directory: &Path) -> bool {
    match (folder.canonicalize(), std::path::absolute(directory).and_then(|path| path.canonicalize())) {
        (Ok(folder), Ok(directory)) => directory.starts_with(folder),
        _ => false,
    }
}

/// Says for `validate` what the key of a command does not cover.
pub fn unseen(command: &Command<'_>, environment: &[String]) -> String {
    let name = command.program.first().map_or("the program", String::as_str);
    let variables = match environment {
        [] => String::new(),
        names => format!(", and the values of {}", names.join(", ")),
    };
    format!(
        "the cache key does not cover all that `{name}` reads: modules and data that neither its words nor `files` \
         name{variables}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn shown(sources: &[Source]) -> Vec<String> {
        sources.iter().map(Source::written).collect()
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        for name in ["config.yaml", "data/a.txt", "trainer.sh", "x.py"] {
            std::fs::write(folder.path().join(name), "#!/bin/sh\n").unwrap();
        }
        folder
    }

    #[test]
    fn words_name_files_and_folders_wherever_they_stand() {
        let folder = folder();
        let of = |given: &[&str]| shown(&named(given.iter().copied(), folder.path()));
        assert_eq!(of(&["--config=config.yaml", "--fast", "nothing"]), ["config.yaml"]);
        assert_eq!(of(&["--data", "data", "."]), ["data"], "the working directory holds the store");
        assert_eq!(of(&["sh", "-c", "cat 'data/a.txt'; sort <config.yaml|head"]), ["config.yaml", "data/a.txt"]);
        assert_eq!(of(&["cat data/*.txt"]), ["data/*.txt"]);
        assert_eq!(of(&["cat data/[ab].txt"]), ["data/[ab].txt"]);
        let script = "cat x.py > 'config.yaml'; echo >>trainer.sh 2>&1; cat data/a.txt";
        assert_eq!(of(&["sh", "-c", script]), ["data/a.txt", "x.py"]);
        std::fs::write(folder.path().join("my file.txt"), "").unwrap();
        assert_eq!(of(&["sh", "-c", "grep -q '>' config.yaml; cat 'my file.txt'"]), ["config.yaml", "my file.txt"]);
        assert_eq!(of(&["python3", "-m", "x"]), ["x.py"]);
        assert_eq!(of(&["sh", "-c", "python3 -m data.main"]), ["data"], "a package");
        assert_eq!(of(&["..", "/", "/dev/null"]), [""; 0]);
        assert_eq!(of(&["--sets=config.yaml,data/a.txt"]), ["config.yaml", "data/a.txt"]);
        assert_eq!(of(&["data.files=[config.yaml,data/a.txt]", "-fx.py"]), ["config.yaml", "data/a.txt", "x.py"]);
        assert_eq!(of(&["sh", "-c", "cat data/{a,b}.txt"]), ["data/a.txt"]);
    }

    #[test]
    fn programs_are_known_by_content_or_version() {
        let folder = folder();
        let of = |program: &[&str], version| {
            let (program, arguments) = (words(program), words(&["x.py"]));
            Command { program: &program, arguments: &arguments, version, writes: &[] }.sources(folder.path())
        };
        let own = of(&["./trainer.sh"], None);
        let script = Source::Executable(folder.path().join("./trainer.sh"));
        assert!(own.contains(&script) && own.contains(&Source::Argument("x.py".to_owned())), "{own:?}");
        assert!(own.iter().any(|source| matches!(source, Source::Program(path) if path.ends_with("sh"))), "{own:?}");
        assert!(
            of(&["cat"], None).iter().any(|source| matches!(source, Source::Program(path) if path.ends_with("cat")))
        );
        assert_eq!(shown(&of(&["cat"], Some("9.4"))), ["x.py"], "the params state the version");
        assert!(of(&["./trainer.sh"], Some("1")).contains(&script), "content counts all the same");
        assert_eq!(shown(&of(&["no-such-program"], None)), ["x.py", "program no-such-program"]);
        for starter in [&["env", "-u", "B", "A=1", "cat"][..], &["timeout", "9", "cat"]] {
            let found = of(starter, None);
            assert_eq!(found.iter().filter(|source| matches!(source, Source::Program(_))).count(), 2, "{found:?}");
        }
    }

    #[test]
    fn tools_of_ones_own_are_known_by_content_wherever_they_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for (name, text) in [("lua-filter", "#!/bin/sh\n"), ("compiled", "\u{7f}ELF"), ("python3.12", "\u{7f}ELF")] {
            std::fs::write(bin.join(name), text).unwrap();
            std::fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755)).unwrap();
        }
        let path = std::env::join_paths([bin.as_path(), Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
        let of = |given: &[&str]| {
            let program = words(given);
            let command = Command { program: &program, arguments: &[], version: None, writes: &[] };
            command.found(&Places { directory: folder.path(), path: &path })
        };
        let script = Source::Executable(bin.join("lua-filter"));
        for given in [
            &["lua-filter"][..],
            &["sh", "-c", "true && lua-filter x"],
            &["timeout", "9", "lua-filter"],
            &["env", "-u", "X", "lua-filter"],
        ] {
            assert!(of(given).contains(&script), "{given:?}: {:?}", of(given));
        }
        assert!(of(&["compiled"]).contains(&Source::Executable(bin.join("compiled"))), "never started");
        assert!(of(&["python3.12"]).contains(&Source::Program(bin.join("python3.12"))));
        assert!(!of(&["sh", "-c", "cat x"]).iter().any(|source| source.written().ends_with("/cat")));
    }

    #[test]
    fn what_a_program_writes_is_no_source() {
        let folder = folder();
        let (program, arguments) = (words(&["cat"]), words(&["--log=config.yaml", "data/a.txt", "x.py"]));
        let writes = words(&["./config.yaml", "data"]);
        let command = Command { program: &program, arguments: &arguments, version: Some("1"), writes: &writes };
        assert_eq!(shown(&command.sources(folder.path())), ["x.py"]);
        let all = words(&[".", folder.path().to_str().unwrap()]);
        let command = Command { writes: &all, ..command };
        assert_eq!(shown(&command.sources(folder.path())), ["config.yaml", "data/a.txt", "x.py"]);
        let wrong = words(&["log", ".", "a/..", "../..", "/", "", "../log"]);
        assert_eq!(wrong_writes(&wrong).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_script_names_its_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        for (line, wanted) in [
            ("#!/usr/bin/env -S python3 -O\n", Some("python3")),
            ("#!/bin/sh -e\necho", Some("/bin/sh")),
            ("\u{7f}ELF", None),
        ] {
            std::fs::write(&path, line).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            assert_eq!(interpreter(&path).as_deref(), wanted);
        }
    }
}
