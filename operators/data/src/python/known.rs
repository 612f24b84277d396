//! The files of a function as its key saw them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use searchmill_engine::operator::{Context, OperatorError};

use super::function::{PythonFunction, absolute};
use super::imports::{Looked, look};
use super::seen::Seen;

/// The files of a function as its key saw them.
pub(super) struct Known {
    /// The file of the function, and its name there.
    pub(super) file: PathBuf,
    pub(super) function: String,
    /// The package that brings it.
    pub(super) package: Option<Package>,
    pub(super) words: Vec<String>,
    pub(super) version: String,
    pub(super) files: BTreeSet<PathBuf>,
    pub(super) directory: PathBuf,
}

/// An installed package that brings an operator.
pub(super) struct Package {
    pub(super) module: String,
    pub(super) identity: String,
    /// Its files that are known by its identity alone.
    pub(super) seen: Seen,
}

impl Known {
    /// Returns the function's files and its interpreter, as the key saw them.
    ///
    /// # Errors
    /// Fails if Python cannot be asked, or the file is no Python.
    pub(super) fn of(function: &PythonFunction, context: &Context) -> Result<Known, OperatorError> {
        let directory = absolute(&context.resolve(""));
        let found = match look(function, &directory) {
            Looked::Found(found) => found,
            Looked::Awaited(address) => return Err(OperatorError::machine(format!("{address} are not installed"))),
            Looked::Failed(error) => return Err(error),
        };
        // Validation reports it at the param; the file may have changed since.
        if let Some(error) = &found.syntax_error {
            let file = function.file.as_deref().unwrap_or(&function.function);
            return Err(OperatorError::pipeline(format!("{file}:{}: {}", error.line, error.message)));
        }
        let (file, name, package) = match &found.entry {
            None => (function.path(&directory).unwrap_or_default(), function.function.clone(), None),
            Some(entry) => {
                let Some(file) = &entry.file else {
                    return Err(OperatorError::pipeline(entry.wrong.clone().unwrap_or_default()));
                };
                let (module, identity) = (entry.module.clone(), entry.identity.clone());
                let package = Package { module, identity, seen: Seen::at(entry.files.iter().cloned()) };
                (file.clone(), entry.function.clone(), Some(package))
            }
        };
        let mut files: BTreeSet<PathBuf> = found.files.iter().cloned().collect();
        for name in &function.files {
            let seen = context.source_files(name).unwrap_or_else(|| vec![directory.join(name)]);
            files.extend(seen.iter().map(|path| absolute(path)));
        }
        let (words, version) = (found.words.clone(), found.version.clone());
        Ok(Known { file, function: name, package, words, version, files, directory })
    }
}
