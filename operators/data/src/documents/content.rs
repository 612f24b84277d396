//! What is read of one file.

use serde_json::{Map, Value};

use crate::source::record::Fault;

/// The text of a document and what is known about it.
#[derive(Debug, PartialEq)]
pub(super) struct Content {
    pub(super) title: Option<String>,
    pub(super) text: String,
    /// Further facts, for `metadata`.
    pub(super) details: Map<String, Value>,
}

impl Content {
    /// Adds facts; those that are there already win.
    pub(super) fn with(mut self, further: Map<String, Value>) -> Self {
        for (name, value) in further {
            self.details.entry(name).or_insert(value);
        }
        self
    }
}

/// A file that is damaged.
pub(super) fn damaged(message: impl Into<String>) -> Fault {
    Fault { kind: "damaged", message: message.into() }
}

/// A file without text.
pub(super) fn no_text(message: impl Into<String>) -> Fault {
    Fault { kind: "no_text", message: message.into() }
}

/// A file that is not what its name says, or that no reader is for.
pub(super) fn wrong_type(message: impl Into<String>) -> Fault {
    Fault { kind: "wrong_type", message: message.into() }
}

/// A file, or what it unpacks to, beyond the limit.
pub(super) fn too_large(what: &str, limit: u64) -> Fault {
    let message = format!("{what} has more than {limit} bytes, the limit; raise `max_bytes` to read it");
    Fault { kind: "too_large", message }
}
