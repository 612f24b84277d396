//! Errors of the file system with the path that they are about.

use std::path::Path;

use searchmill_engine::operator::OperatorError;

/// Returns the error of a file operation with the path: the system's own message names none.
pub fn on_path(path: &Path) -> impl FnOnce(std::io::Error) -> OperatorError {
    move |error| OperatorError::machine(format!("{}: {error}", path.display()))
}
