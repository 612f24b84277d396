//! The files of a function as its key saw them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use searchmill_engine::operator::{Context, OperatorError};

use super::function::{PythonFunction, absolute};
use super::imports::{Looked, look};

/// The files of a function as its key saw them.
pub(super) struct Known {
    pub(super) words: Vec<String>,
    pub(super) version: String,
    pub(super) files: BTreeSet<PathBuf>,
    pub(super) directory: PathBuf,
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
        if let Some(error) = &found.syntax_error {
            return Err(OperatorError::pipeline(format!("{}:{}: {}", function.file, error.line, error.message)));
        }
        let mut files: BTreeSet<PathBuf> = found.files.iter().cloned().collect();
        for name in &function.files {
            let seen = context.source_files(name).unwrap_or_else(|| vec![directory.join(name)]);
            files.extend(seen.iter().map(|path| absolute(path)));
        }
        Ok(Known { words: found.words.clone(), version: found.version.clone(), files, directory })
    }
}
