//! Operator params, and secrets in them.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::diagnostic::Word;

/// Requirements for a params type.
///
/// A field that must not enter the key (an endpoint's URL, an API key reference) has the attribute
/// `#[schemars(extend("x-searchmill-key" = false))]`.
pub trait Params: Serialize + DeserializeOwned + JsonSchema + Clone + Send + Sync + 'static {}

impl<T: Serialize + DeserializeOwned + JsonSchema + Clone + Send + Sync + 'static> Params for T {}

/// A problem of a param that its type cannot express.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamIssue {
    /// Place of the param, as a dotted path below `with:` (`policy.endpoint.base_url`, `files.0`).
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
    /// Word of the param that is wrong, if its value is a text.
    pub word: Option<Word>,
}

impl ParamIssue {
    /// Creates an issue at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into(), help: None, word: None }
    }

    /// Adds the word of the param that is wrong.
    pub fn about(self, word: Option<Word>) -> Self {
        Self { word, ..self }
    }

    /// Adds help.
    pub fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

/// Returns all texts in params, each with its dotted path.
pub(crate) fn texts(params: &Value) -> Vec<(String, &str)> {
    let (mut texts, mut pending) = (Vec::new(), vec![(String::new(), params)]);
    while let Some((path, value)) = pending.pop() {
        let start = if path.is_empty() { String::new() } else { format!("{path}.") };
        match value {
            Value::String(text) => texts.push((path, text.as_str())),
            Value::Array(items) => {
                pending.extend(items.iter().enumerate().map(|(index, item)| (format!("{start}{index}"), item)));
            }
            Value::Object(fields) => pending.extend(fields.iter().map(|(key, value)| (format!("{start}{key}"), value))),
            _ => {}
        }
    }
    // The stack gives the parts of a value from the last to the first.
    texts.sort_unstable();
    texts
}

/// Reads params.
///
/// # Errors
/// Returns the path of the value that does not fit.
pub fn read_params<T: DeserializeOwned>(value: Value) -> Result<T, ParamIssue> {
    serde_path_to_error::deserialize(value)
        // The path is `files[0]` here; paths of issues have dots only.
        .map_err(|error| ParamIssue::new(error.path().to_string().replace(['[', ']'], "."), error.inner().to_string()))
}

/// A secret reference (`${secret:NAME}`), resolved where the node runs; its value is never stored, shown or hashed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("x-searchmill-key" = false, "x-searchmill-secret" = true))]
pub struct Secret(String);

impl Secret {
    /// Creates a reference to the secret of that name.
    pub fn reference(name: &str) -> Self {
        Self(format!("${{secret:{name}}}"))
    }

    /// Returns the name referred to, or `None` if the YAML contains the secret itself (which the plan rejects).
    pub fn name(&self) -> Option<&str> {
        self.0.strip_prefix("${secret:")?.strip_suffix('}')
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({})", self.name().unwrap_or("…"))
    }
}
