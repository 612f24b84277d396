//! A function of the user, as the params name it.

use std::path::{Path, PathBuf};

use searchmill_engine::operator::ParamIssue;
use serde_json::{Map, Value};

use crate::program::{plain, variable_issues, write_issues};

/// A function, or a class whose objects can be called: in a file of the user, or an operator of an installed package.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PythonFunction {
    /// Path of the file. `None`: `function` is an operator of an installed package.
    pub file: Option<String>,
    /// Name of the function or class, or of the operator (an entry point of the group `searchmill.operators`).
    pub function: String,
    /// Program and arguments that start Python. `None`: `uv` for a file with a PEP 723 block, else `python3`.
    pub interpreter: Option<Vec<String>>,
    /// More files and folders whose content determines the output.
    pub files: Vec<String>,
    /// Files and folders that it writes, or that do not decide the output.
    pub writes: Vec<String>,
    /// Keyword arguments of the function beside the columns, or of the class.
    pub arguments: Map<String, Value>,
    /// Environment variables passed on.
    pub environment: Vec<String>,
    /// Timeout of a call in seconds (0 = none).
    pub seconds: u64,
    /// Whether the function takes a `pyarrow.RecordBatch` instead of a row.
    pub batch: bool,
}

impl PythonFunction {
    /// Splits `file.py:function`, or returns the name of an operator alone.
    ///
    /// # Errors
    /// Fails with the reason if a part is missing.
    pub fn split(text: &str) -> Result<(Option<String>, String), String> {
        let Some((file, function)) = text.rsplit_once(':') else {
            // Names of entry points may have dashes.
            let is_name = !text.is_empty() && text.chars().all(|ch| ch.is_alphanumeric() || matches!(ch, '_' | '-'));
            return if is_name { Ok((None, text.to_owned())) } else { Err("names no function".to_owned()) };
        };
        if file.is_empty() {
            return Err("names no file".to_owned());
        }
        let is_name = function.chars().all(|ch| ch.is_alphanumeric() || ch == '_');
        if !is_name || !function.starts_with(|ch: char| !ch.is_numeric()) {
            return Err(format!("`{function}` is not the name of a function"));
        }
        Ok((Some(file.to_owned()), function.to_owned()))
    }

    /// Reports problems of the interpreter and the environment variables, with their positions.
    pub fn issues(&self) -> Vec<ParamIssue> {
        let mut issues: Vec<ParamIssue> = variable_issues("environment", &self.environment).collect();
        issues.extend(write_issues("writes", &self.writes));
        if self.interpreter.as_ref().is_some_and(|words| words.first().is_none_or(String::is_empty)) {
            let issue = ParamIssue::new("interpreter", "names no program");
            issues.push(issue.with_help("write the program and its arguments as a list: `[python3]`"));
        }
        issues
    }

    /// Returns the absolute path of the file.
    pub(super) fn path(&self, directory: &Path) -> Option<PathBuf> {
        Some(plain(&absolute(directory).join(self.file.as_ref()?)))
    }

    /// Returns it as the params name it.
    pub(super) fn written(&self) -> String {
        match &self.file {
            Some(file) => format!("{file}:{}", self.function),
            None => self.function.clone(),
        }
    }
}

/// Returns a path as a source: relative to the working directory if it lies in it.
pub(super) fn written(path: &Path, directory: &Path) -> String {
    path.strip_prefix(absolute(directory)).unwrap_or(path).to_string_lossy().into_owned()
}

/// Returns an absolute path without `.` and `..`, without file access, like Python's `abspath`.
pub(super) fn absolute(path: &Path) -> PathBuf {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    plain(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}
