//! Reads the settings of a command from a file.

use std::path::Path;

use serde_json::Value;

use super::failure::Failure;
use super::open::Session;
use crate::diagnostic::{Diagnostic, SourceMap};
use crate::operator::ParamIssue;
use crate::spec::{Spanned, locate, settings};

/// The settings of a command, and their places in the file.
#[derive(Debug)]
pub struct Settings {
    /// The settings, typed by their schema.
    pub values: Value,
    text: Spanned,
    sources: SourceMap,
}

impl Settings {
    /// Returns the error of a setting, at its place in the file.
    pub fn refuse(&self, issue: ParamIssue) -> Failure {
        let error = Diagnostic::error("bad-param", issue.message).at(locate(&self.text, &issue.path).0, "");
        Failure::Pipeline(vec![error.help_some(issue.help)], Box::new(self.sources.clone()))
    }
}

impl Session {
    /// Reads a YAML file with the settings of a command, by their JSON Schema. Relative paths start at the session's
    /// directory.
    ///
    /// # Errors
    /// Fails with all errors of the file.
    pub fn settings(&self, file: &Path, schema: &Value, command: &str) -> Result<Settings, Failure> {
        let mut sources = SourceMap::new();
        match settings(&self.directory().join(file), schema, command, &mut sources) {
            Ok((text, values)) => Ok(Settings { values, text, sources }),
            Err(problems) => Err(Failure::Pipeline(problems, Box::new(sources))),
        }
    }
}
