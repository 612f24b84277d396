//! What identifies a function: its sources.

use std::collections::BTreeSet;
use std::path::Path;

use searchmill_engine::diagnostic::Word;
use searchmill_engine::operator::{Context, OperatorError, ParamIssue, Source, where_links_lead};
use searchmill_engine::suggest;

use super::environment::Interpreter;
use super::function::{PythonFunction, written};
use super::imports::{Looked, interpreter, look};
use super::signature::Signature;

impl PythonFunction {
    /// Lists what identifies the function.
    pub fn sources(&self, directory: &Path) -> Vec<Source> {
        let (mut sources, mut links) = (Vec::new(), BTreeSet::new());
        if let Some(file) = &self.file {
            sources.push(Source::Path(file.clone()));
            links.extend(where_links_lead(Path::new(file), directory));
        }
        match look(self, directory) {
            Looked::Found(found) => {
                let own = self.path(directory);
                for path in &found.files {
                    links.extend(where_links_lead(path, directory));
                    if Some(path) != own.as_ref() {
                        sources.push(Source::Path(written(path, directory)));
                    }
                }
                sources.extend(found.entry.iter().map(|entry| Source::Identity(entry.identity.clone())));
                sources.push(Source::Identity(format!("Python {}", found.version)));
                if !found.packages.is_empty() {
                    sources.push(Source::Identity(format!("packages {}", found.packages.join(", "))));
                }
            }
            Looked::Awaited(address) => sources.push(Source::Awaited { address }),
            // The function cannot be started either.
            Looked::Failed(error) => sources.push(Source::Identity(format!("no Python: {}", error.message))),
        }
        sources.extend(links);
        sources.extend(self.locks(directory));
        let named: BTreeSet<&String> = self.files.iter().collect();
        for path in named {
            // What lies in a folder, or matches a pattern, the function sees by its path.
            let is_one = directory.join(path).is_file();
            sources.push(if is_one { Source::Path(path.clone()) } else { Source::Argument(path.clone()) });
        }
        sources
    }

    /// Prepares the environment of a file with a PEP 723 block.
    ///
    /// # Errors
    /// Fails if `uv` is missing or cannot install the dependencies.
    pub fn fetch(&self, context: &Context) -> Result<(), OperatorError> {
        match interpreter(self, &context.resolve("")) {
            Interpreter::Script(script) => script.prepare(|line| context.progress().log(line)),
            Interpreter::Words(_) => Ok(()),
        }
    }

    /// Returns why the file cannot be called, as far as its text says, at the param `path` whose value ends with the name
    /// of the function.
    pub fn file_issue(&self, path: &str, written: &str, directory: &Path) -> Option<ParamIssue> {
        // The params are reported where they are split.
        if self.function.is_empty() {
            return None;
        }
        let Looked::Found(found) = look(self, directory) else { return None };
        if let Some(entry) = &found.entry
            && let Some(wrong) = &entry.wrong
        {
            let issue = ParamIssue::new(path, wrong.as_str());
            let names: Vec<&str> = entry.names.iter().map(String::as_str).collect();
            return Some(match names.as_slice() {
                [] => issue.with_help(format!("write the file and the function: `steps/clean.py:{}`", self.function)),
                names if names.contains(&self.function.as_str()) => issue,
                names => issue.with_help(suggest(&self.function, names, "installed operators")),
            });
        }
        let file = match &self.file {
            Some(file) if self.path(directory)?.is_file() => file,
            Some(_) => return None,
            None => &self.function,
        };
        if let Some(error) = &found.syntax_error {
            return Some(ParamIssue::new(path, format!("{file}:{}: {}", error.line, error.message)));
        }
        if let Some(wrong) = found.signature.as_ref().and_then(|signature| signature.wrong.as_ref()) {
            let issue = ParamIssue::new(path, format!("{file}:{}: {}", wrong.line, wrong.message));
            let help = "a function that is marked with `map` returns a `TypedDict` of its file, a list of them or None: its \
                        fields are the columns; or remove the mark and write `output`";
            return Some(issue.with_help(help));
        }
        let known: Vec<&str> = found.lacking.as_ref()?.iter().map(String::as_str).collect();
        let name = found.entry.as_ref().map_or(&self.function, |entry| &entry.function);
        let issue = ParamIssue::new(path, format!("`{file}` has no function `{name}`"));
        let start = written.len().checked_sub(self.function.len())?;
        Some(issue.about(Word::at(written, start)).with_help(suggest(name, &known, "functions in it")))
    }

    /// Returns what a function that is marked for `map` says of its columns. `None`: it is not marked, or wrong.
    pub fn signature(&self, directory: &Path) -> Option<Signature> {
        let Looked::Found(found) = look(self, directory) else { return None };
        found.signature.clone().filter(|signature| signature.wrong.is_none())
    }

    /// Says for `validate` what the key does not cover.
    pub fn unseen(&self) -> String {
        let variables = match self.environment.as_slice() {
            [] => String::new(),
            names => format!(", and the values of {}", names.join(", ")),
        };
        let covered = match &self.file {
            Some(file) => format!("`{file}`, what it imports from the project"),
            None => format!("the package that brings `{}`", self.function),
        };
        format!(
            "the cache key covers {covered}, and lock files; it does not cover packages that no lock file pins, and what it \
             reads under `writes`{variables}"
        )
    }

    /// Lists the lock files that would decide which packages are used.
    fn locks(&self, directory: &Path) -> Vec<Source> {
        let Some(file) = &self.file else { return Vec::new() };
        let mut locks = vec![Source::Optional(format!("{file}.lock"))];
        // The packages of a script are in its own lock file.
        if matches!(interpreter(self, directory), Interpreter::Words(_)) {
            let folder = Path::new(file).parent().unwrap_or(Path::new(""));
            for name in ["uv.lock", "requirements.txt"] {
                locks.push(Source::Optional(folder.join(name).to_string_lossy().into_owned()));
            }
        }
        locks
    }
}
