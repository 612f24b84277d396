//! The values of the environment variables that a program gets by name: secrets, whatever their names.

use arrow::array::{Array, ArrayData, RecordBatch};
use searchmill_engine::operator::{Context, OperatorError, is_setting};

/// Shortest value in bytes that rows are searched for: shorter ones occur in ordinary text.
const SHORTEST: usize = 8;

/// Values of environment variables, with their names.
pub struct Passed(Vec<(String, String)>);

impl Passed {
    /// Returns the values of the variables, and lets the run strike them out of messages and logs.
    #[must_use]
    pub fn of(names: &[String], context: &Context) -> Self {
        let mut values = Vec::new();
        for name in names {
            context.redactor().learn_variable(name);
            if let Ok(value) = std::env::var(name) {
                let value = value.trim();
                if value.len() >= SHORTEST && !is_setting(value) {
                    values.push((name.clone(), value.to_owned()));
                }
            }
        }
        Self(values)
    }

    /// Returns the name of the variable whose value a text of JSON contains.
    #[must_use]
    pub fn named_in_json(&self, text: &[u8]) -> Option<&str> {
        for (name, value) in &self.0 {
            // Searched for as JSON writes it: a quotation mark in it has a backslash there.
            let quoted = serde_json::Value::from(value.as_str()).to_string();
            let escaped = &quoted.as_bytes()[1..quoted.len() - 1];
            if memchr::memmem::find(text, escaped).is_some() {
                return Some(name);
            }
        }
        None
    }

    /// Fails if a column contains the value of a variable: stored rows are passed on.
    ///
    /// # Errors
    /// Fails with the name of the variable.
    pub fn check(&self, batch: &RecordBatch) -> Result<(), OperatorError> {
        for (name, value) in &self.0 {
            if batch.columns().iter().any(|column| contains(&column.to_data(), value.as_bytes())) {
                return Err(OperatorError::pipeline(repeated(name))
                    .with_help("the params name it as one that the program gets: rows are stored and passed on"));
            }
        }
        Ok(())
    }
}

/// Returns the message about rows with the value of a variable.
pub(crate) fn repeated(name: &str) -> String {
    format!("the rows contain the value of the environment variable `{name}`, which is kept secret")
}

fn contains(data: &ArrayData, value: &[u8]) -> bool {
    data.buffers().iter().any(|buffer| memchr::memmem::find(buffer.as_slice(), value).is_some())
        || data.child_data().iter().any(|child| contains(child, value))
}
