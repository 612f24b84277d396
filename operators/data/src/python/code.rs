//! The code of a function or a program, as its calls are remembered by it.

use searchmill_engine::fingerprint::{hash_bytes, hash_file};
use searchmill_engine::operator::{Context, OperatorError, Source};
use serde_json::json;

use super::function::PythonFunction;
use super::seen::Seen;

/// The sources of a function or a program: an answer is remembered with them, so that other code does not get it.
pub struct Code {
    digest: String,
    seen: Seen,
}

impl Code {
    /// Reads the sources of a function.
    ///
    /// # Errors
    /// Fails if one of its files cannot be read.
    pub fn of(function: &PythonFunction, context: &Context) -> Result<Self, OperatorError> {
        Self::of_sources(function.sources(&context.resolve("")), context)
    }

    /// Reads sources.
    ///
    /// # Errors
    /// Fails if one of their files cannot be read.
    pub fn of_sources(sources: Vec<Source>, context: &Context) -> Result<Self, OperatorError> {
        let directory = context.resolve("");
        let (mut content, mut paths) = (Vec::new(), Vec::new());
        for source in sources {
            let written = source.written();
            let is_argument = matches!(source, Source::Argument(_) | Source::Executable(_));
            let is_file = is_argument || matches!(source, Source::Path(_) | Source::Optional(_));
            content.push(json!(written));
            if !is_file {
                continue;
            }
            for path in context.source_files(&written).unwrap_or_else(|| vec![directory.join(&written)]) {
                if is_argument {
                    // A program sees the names of files, too.
                    content.push(json!(path.to_string_lossy()));
                }
                match hash_file(&path) {
                    Ok(digest) => content.push(json!(digest.to_string())),
                    Err(_) if matches!(source, Source::Optional(_)) => {}
                    Err(error) => {
                        let message = format!("cannot read {}: {error}", path.display());
                        return Err(OperatorError::machine(message));
                    }
                }
                paths.push(path);
            }
        }
        Ok(Self { digest: hash_bytes(json!(content).to_string().as_bytes()).to_string(), seen: Seen::at(paths) })
    }

    /// Identifies the sources.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Whether no file has changed since.
    pub fn holds(&self) -> bool {
        self.seen.holds()
    }
}
