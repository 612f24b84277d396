//! Operations on files whose errors name the path.

use std::path::{Path, PathBuf};

use searchmill_engine::operator::OperatorError;

/// Returns the error of a file operation with the path: the system's own message names none.
pub fn on_path(path: &Path) -> impl FnOnce(std::io::Error) -> OperatorError {
    move |error| OperatorError::machine(format!("{}: {error}", path.display()))
}

/// Returns the error of a file whose content cannot be used.
pub(crate) fn broken(path: &Path, problem: impl std::fmt::Display) -> OperatorError {
    OperatorError::data(format!("{}: {problem}", path.display()))
}

/// Returns the paths in a folder, sorted.
///
/// # Errors
/// If the folder cannot be read.
pub fn paths_in(folder: &Path) -> Result<Vec<PathBuf>, OperatorError> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(on_path(folder))? {
        paths.push(entry.map_err(on_path(folder))?.path());
    }
    // A file system lists its entries in an order of its own.
    paths.sort();
    Ok(paths)
}
