//! What identifies a function: its sources.

use std::collections::BTreeSet;
use std::path::Path;

use searchmill_engine::diagnostic::Word;
use searchmill_engine::operator::{Context, OperatorError, ParamIssue, Source, where_links_lead};
use searchmill_engine::suggest;

use super::environment::Interpreter;
use super::function::{PythonFunction, written};
use super::imports::{Looked, interpreter, look};

impl PythonFunction {
    /// Lists what identifies the function.
    pub fn sources(&self, directory: &Path) -> Vec<Source> {
        let mut sources = vec![Source::Path(self.file.clone())];
        let mut links: BTreeSet<Source> = where_links_lead(Path::new(&self.file), directory).into_iter().collect();
        match look(self, directory) {
            Looked::Found(found) => {
                links.extend(found.files.iter().flat_map(|path| where_links_lead(path, directory)));
                let places = found.files.iter().filter(|path| **path != self.path(directory));
                sources.extend(places.map(|path| Source::Path(written(path, directory))));
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
        let Looked::Found(found) = look(self, directory) else { return None };
        if !self.path(directory).is_file() {
            return None;
        }
        if let Some(error) = &found.syntax_error {
            return Some(ParamIssue::new(path, format!("{}:{}: {}", self.file, error.line, error.message)));
        }
        let known: Vec<&str> = found.lacking.as_ref()?.iter().map(String::as_str).collect();
        let issue = ParamIssue::new(path, format!("`{}` has no function `{}`", self.file, self.function));
        let place = written.len().checked_sub(self.function.len())?;
        Some(issue.about(Word::at(written, place)).with_help(suggest(&self.function, &known, "functions in it")))
    }

    /// Says for `validate` what the key does not cover.
    pub fn unseen(&self) -> String {
        let variables = match self.environment.as_slice() {
            [] => String::new(),
            names => format!(", and the values of {}", names.join(", ")),
        };
        format!(
            "the cache key covers `{}`, what it imports from the project, and lock files; it does not cover packages that \
             no lock file pins, and what it reads under `writes`{variables}",
            self.file
        )
    }

    /// Lists the lock files that would decide which packages are used.
    fn locks(&self, directory: &Path) -> Vec<Source> {
        let beside = |name: &str| {
            let folder = Path::new(&self.file).parent().unwrap_or(Path::new(""));
            Source::Optional(folder.join(name).to_string_lossy().into_owned())
        };
        let own = Source::Optional(format!("{}.lock", self.file));
        match interpreter(self, directory) {
            Interpreter::Script(_) => vec![own],
            Interpreter::Words(_) => vec![own, beside("uv.lock"), beside("requirements.txt")],
        }
    }
}
