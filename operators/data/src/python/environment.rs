//! The interpreter of a function, and environments that `uv` makes for files with a PEP 723 block.

use std::path::{Path, PathBuf};
use std::time::Duration;

use searchmill_engine::operator::OperatorError;
use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::captured::{Captured, captured};
use super::seen::Seen;

/// First and last line of a PEP 723 block.
const BLOCK: (&str, &str) = ("# /// script", "# ///");
/// Timeout of a question to `uv`.
const ASKING: Duration = Duration::from_secs(30);
/// Timeout of an installation.
const INSTALLING: Duration = Duration::from_hours(1);

/// What starts Python.
pub(super) enum Interpreter {
    /// A program with arguments.
    Words(Vec<String>),
    /// The interpreter of an environment that `uv` makes.
    Script(Script),
}

impl Interpreter {
    /// `words` are the words of the params.
    pub(super) fn of(words: Option<&[String]>, file: Option<&Path>) -> Self {
        if let Some(words) = words {
            return Self::Words(words.to_vec());
        }
        // A pipe would be waited for.
        if let Some(file) = file
            && file.is_file()
            && let Ok(text) = std::fs::read_to_string(file)
            && let Some(block) = block(&text)
        {
            return Self::Script(Script { file: file.to_owned(), block });
        }
        Self::Words(vec!["python3".to_owned()])
    }
}

/// Returns the PEP 723 block of a file.
fn block(text: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim_end).skip_while(|line| *line != BLOCK.0);
    lines.next()?;
    let inside: Vec<&str> = lines.take_while(|line| line.starts_with('#') && *line != BLOCK.1).collect();
    Some(inside.join("\n"))
}

/// A file with a PEP 723 block.
pub(super) struct Script {
    file: PathBuf,
    block: String,
}

/// An environment that was made for a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Prepared {
    block: String,
    lock: Option<String>,
    python: PathBuf,
    /// The interpreter and the configuration of the environment.
    seen: Seen,
}

impl Script {
    /// Returns the interpreter of the environment; `None` if it has to be made, or made anew.
    pub(super) fn python(&self) -> Option<PathBuf> {
        let prepared: Prepared = self.cache().read()?;
        let same = prepared.block == self.block && prepared.lock == self.lock() && prepared.seen.holds();
        if same { Some(prepared.python) } else { None }
    }

    /// Whether a lock file pins the packages.
    pub(super) fn is_locked(&self) -> bool {
        self.lock().is_some()
    }

    /// Returns what is awaited, for messages.
    pub(super) fn address(&self) -> String {
        format!("the packages of {}", self.file.display())
    }

    /// Makes the environment: without the network, if all packages are in the cache of `uv`.
    ///
    /// # Errors
    /// Fails if `uv` is missing or fails.
    pub(super) fn prepare(&self, log: impl Fn(&str) + Sync) -> Result<(), OperatorError> {
        // Another process may have made it meanwhile.
        if self.python().is_some() {
            return Ok(());
        }
        let file = self.file.to_string_lossy().into_owned();
        let mut words = ["uv", "sync", "--script", &file].map(str::to_owned).to_vec();
        if self.is_locked() {
            words.push("--locked".to_owned());
        }
        let mut offline = words.clone();
        offline.push("--offline".to_owned());
        // Silently: what is missing is installed next.
        if !uv(&offline, INSTALLING, |_| ())?.status.success() {
            log(&format!("uv installs the packages of {file}"));
            let done = uv(&words, INSTALLING, log)?;
            if !done.status.success() {
                let message = format!("`uv sync --script {file}` failed{}", done.last_output);
                let help = "check the `# /// script` block of the file, and its lock file if there is one (`uv lock --script`)";
                return Err(OperatorError::pipeline(message).with_help(help));
            }
        }
        let words = ["uv", "python", "find", "--offline", "--script", &file].map(str::to_owned);
        let found = uv(&words, ASKING, |_| ())?;
        let python = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
        if !found.status.success() || !python.is_file() {
            let message = format!("`uv python find --script {file}` names no interpreter{}", found.last_output);
            return Err(OperatorError::machine(message));
        }
        let settings = python.ancestors().nth(2).map(|folder| folder.join("pyvenv.cfg"));
        let seen = Seen::at([python.clone()].into_iter().chain(settings));
        self.cache().write(&Prepared { block: self.block.clone(), lock: self.lock(), python, seen });
        Ok(())
    }

    fn lock(&self) -> Option<String> {
        std::fs::read_to_string(format!("{}.lock", self.file.display())).ok()
    }

    fn cache(&self) -> Cache {
        Cache::of(&("environment", &self.file))
    }
}

/// Runs `uv` with the whole environment: it finds its cache, its configuration and proxies there.
fn uv(words: &[String], patience: Duration, log: impl Fn(&str) + Sync) -> Result<Captured, OperatorError> {
    let names: Vec<String> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
    let directory = std::env::current_dir()
        .map_err(|error| OperatorError::machine(format!("cannot find the current directory: {error}")))?;
    let done = captured(words, names.iter().map(String::as_str), &directory, patience, |line| log(line));
    let help = "install uv (https://docs.astral.sh/uv/): the file lists its packages in a `# /// script` block. Or set \
                `interpreter: [python3]` and install them there";
    done.map_err(|error| error.with_help(help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_found_by_its_lines() {
        let text = "#!/usr/bin/env python\n# /// script\n# dependencies = [\"numpy\"]\n# ///\nimport numpy\n";
        assert_eq!(block(text).as_deref(), Some("# dependencies = [\"numpy\"]"));
        assert_eq!(block("text = '# /// script'\n"), None);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f.py");
        std::fs::write(&file, text).unwrap();
        let words = ["python3.12".to_owned()];
        assert!(matches!(Interpreter::of(None, Some(&file)), Interpreter::Script(_)));
        assert!(matches!(Interpreter::of(Some(&words), Some(&file)), Interpreter::Words(found) if found == words));
        std::fs::write(&file, "import numpy\n").unwrap();
        assert!(matches!(Interpreter::of(None, Some(&file)), Interpreter::Words(found) if found == ["python3"]));
    }
}
