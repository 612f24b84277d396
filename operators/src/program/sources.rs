//! What of a command enters the key: the program, and the files and folders that its words name.
//!
//! One rule for all programs. A program of the pipeline's own (a path outside the folders of `PATH`) is known by its content,
//! a script of the system too; other programs of the system by what they answer to `--version`, or by a `version` that the
//! params state. A script's own interpreter counts as well. Every word, what stands behind a `=`, and every word inside a
//! shell's script that names a file, folder or pattern with files is a source. Relative paths start at the pipeline's working
//! directory, as the program does.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use searchmill_engine::operator::Source;

/// A command as the params name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command<'a> {
    /// The program and what comes before its arguments.
    pub(crate) program: &'a [String],
    /// Its arguments.
    pub(crate) arguments: &'a [String],
    /// The version that the params state.
    pub(crate) version: Option<&'a str>,
    /// Files and folders that it writes: words that name them are no sources.
    pub(crate) writes: &'a [String],
}

impl Command<'_> {
    /// All that identifies the command.
    pub(crate) fn sources(&self, directory: &Path) -> Vec<Source> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut found: BTreeSet<Source> = BTreeSet::new();
        let (first, rest) = self.program.split_at(self.program.len().min(1));
        for word in first {
            self.program(word, directory, &path, &mut found);
        }
        let is_env = first.first().is_some_and(|word| word == "env" || word.ends_with("/env"));
        let words: Vec<&String> = rest.iter().chain(self.arguments).collect();
        if let Some(word) = words.iter().find(|word| !word.contains('=') && !word.starts_with('-')).filter(|_| is_env) {
            self.program(word, directory, &path, &mut found);
        }
        let named = named(words.into_iter().map(String::as_str), directory);
        found.extend(named.into_iter().filter(|source| !self.writes_to(source, directory)));
        found.into_iter().collect()
    }

    fn writes_to(&self, source: &Source, directory: &Path) -> bool {
        let plain = |path: &str| directory.join(path).components().collect::<PathBuf>();
        let place = plain(&source.written());
        self.writes.iter().any(|written| place.starts_with(plain(written)))
    }

    fn program(&self, word: &str, directory: &Path, path: &OsString, found: &mut BTreeSet<Source>) {
        let Some(place) = located(word, directory, path) else {
            // It cannot be started either.
            found.insert(Source::Identity(format!("program {word}")));
            return;
        };
        if !is_of_system(&place, path) {
            found.insert(Source::Path(word.to_owned()));
        } else if self.version.is_some() {
            return;
        } else if is_script(&place) && !is_interpreter(&place) {
            found.insert(Source::Path(place.display().to_string()));
        } else {
            found.insert(Source::Program(place.clone()));
        }
        if let Some(interpreter) = interpreter(&place).filter(|_| self.version.is_none())
            && let Some(place) = located(&interpreter, directory, path)
        {
            found.insert(Source::Program(place));
        }
    }
}

/// Names of interpreters: what they are is their version, even where a small script stands before them.
const INTERPRETERS: [&str; 12] =
    ["python", "pypy", "node", "ruby", "perl", "julia", "Rscript", "java", "deno", "bun", "php", "lua"];

fn is_interpreter(place: &Path) -> bool {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    INTERPRETERS.iter().any(|known| name.starts_with(known))
}

/// Where a program lies: a path from the working directory, or the first of that name on `PATH`.
fn located(word: &str, directory: &Path, path: &OsString) -> Option<PathBuf> {
    if word.contains('/') {
        return Some(directory.join(word)).filter(|place| place.is_file());
    }
    std::env::split_paths(path).map(|folder| folder.join(word)).find(|place| place.is_file())
}

fn is_of_system(place: &Path, path: &OsString) -> bool {
    let folder = place.parent().unwrap_or(Path::new(""));
    std::env::split_paths(path).any(|known| known.is_absolute() && known == folder)
}

/// The first line of a script, without its mark.
fn first_line(place: &Path) -> Option<String> {
    let mut start = [0; 256];
    let read = std::fs::File::open(place).and_then(|mut file| file.read(&mut start)).ok()?;
    let line = start[..read].strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Some(String::from_utf8_lossy(line).trim().to_owned())
}

fn is_script(place: &Path) -> bool {
    first_line(place).is_some()
}

/// The interpreter that a script names.
fn interpreter(place: &Path) -> Option<String> {
    let line = first_line(place)?;
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if !first.ends_with("/env") {
        return Some(first.to_owned());
    }
    words.find(|word| !word.starts_with('-') && !word.contains('=')).map(str::to_owned)
}

/// The files and folders that words name.
pub(crate) fn named<'a>(words: impl Iterator<Item = &'a str>, directory: &Path) -> Vec<Source> {
    let mut found = BTreeSet::new();
    for word in words {
        let after = word.split_once('=').map(|(_, value)| value);
        for part in std::iter::once(word).chain(after).chain(parts(word)) {
            if names_files(part, directory) {
                found.insert(Source::Path(part.to_owned()));
            }
        }
    }
    found.into_iter().collect()
}

/// The words inside a word, but for those that a shell writes to (`> log.txt`).
fn parts(word: &str) -> Vec<&str> {
    let (mut found, mut rest, mut written) = (Vec::new(), word, false);
    let ends = |ch: char| ch.is_whitespace() || "'\"`;|&()<>$={},:@".contains(ch);
    while !rest.is_empty() {
        let end = rest.find(ends).unwrap_or(rest.len());
        if end > 0 {
            if !written {
                found.push(&rest[..end]);
            }
            written = false;
        }
        let Some(mark) = rest[end..].chars().next() else { break };
        // Quotes, spaces and a second mark may stand before what is written to.
        written = mark == '>' || written && (mark.is_whitespace() || "'\"|&".contains(mark));
        rest = &rest[end + mark.len_utf8()..];
    }
    found
}

/// Does a word name a regular file, a folder, or a pattern that files match? Folders in which the working directory lies are
/// none: they hold the store.
fn names_files(word: &str, directory: &Path) -> bool {
    if word.is_empty() || word.contains('\0') || word.contains("://") {
        return false;
    }
    let path = directory.join(word);
    match std::fs::metadata(&path) {
        Ok(found) if found.is_file() => true,
        Ok(found) => found.is_dir() && !holds(&path, directory),
        Err(_) => matches_files(word, directory),
    }
}

fn matches_files(word: &str, directory: &Path) -> bool {
    if !word.contains(['*', '?']) {
        return false;
    }
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

/// What of a command nobody can see, for `validate`.
pub(crate) fn unseen(command: &Command<'_>, environment: &[String]) -> String {
    let name = command.program.first().map_or("the program", String::as_str);
    let variables = match environment {
        [] => String::new(),
        names => format!(", and the values of {}", names.join(", ")),
    };
    format!(
        "the key does not see what `{name}` reads beyond its command: modules and data that no word and no entry of `files` \
         names{variables}"
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
        assert_eq!(of(&["-c", "cat 'data/a.txt'; sort <config.yaml|head"]), ["config.yaml", "data/a.txt"]);
        assert_eq!(of(&["cat data/*.txt"]), ["data/*.txt"]);
        assert_eq!(of(&["cat x.py > 'config.yaml'; echo >>trainer.sh 2>&1; cat data/a.txt"]), ["data/a.txt", "x.py"]);
        assert_eq!(of(&["..", "/", "/dev/null"]), [""; 0]);
        assert_eq!(of(&["--sets=config.yaml,data/a.txt"]), ["config.yaml", "data/a.txt"]);
    }

    #[test]
    fn programs_are_known_by_content_or_version() {
        let folder = folder();
        let of = |program: &[&str], version| {
            let (program, arguments) = (words(program), words(&["x.py"]));
            Command { program: &program, arguments: &arguments, version, writes: &[] }.sources(folder.path())
        };
        let own = of(&["./trainer.sh"], None);
        assert!(
            own.contains(&Source::Path("./trainer.sh".to_owned())) && own.contains(&Source::Path("x.py".to_owned()))
        );
        assert!(own.iter().any(|source| matches!(source, Source::Program(path) if path.ends_with("sh"))), "{own:?}");
        assert!(
            of(&["cat"], None).iter().any(|source| matches!(source, Source::Program(path) if path.ends_with("cat")))
        );
        assert_eq!(shown(&of(&["cat"], Some("9.4"))), ["x.py"], "the params state the version");
        assert_eq!(shown(&of(&["./trainer.sh"], Some("1"))), ["./trainer.sh", "x.py"], "content counts all the same");
        assert_eq!(shown(&of(&["no-such-program"], None)), ["x.py", "program no-such-program"]);
        let env = of(&["env", "A=1", "cat"], None);
        assert_eq!(env.iter().filter(|source| matches!(source, Source::Program(_))).count(), 2, "{env:?}");
    }

    #[test]
    fn what_a_program_writes_is_no_source() {
        let folder = folder();
        let (program, arguments) = (words(&["cat"]), words(&["--log=config.yaml", "data/a.txt", "x.py"]));
        let writes = words(&["./config.yaml", "data"]);
        let command = Command { program: &program, arguments: &arguments, version: Some("1"), writes: &writes };
        assert_eq!(shown(&command.sources(folder.path())), ["x.py"]);
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
