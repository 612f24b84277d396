//! Parameters of the Python functions that a rollout calls.

use std::time::Duration;

use schemars::JsonSchema;
use searchmill_data::python::PythonFunction;
use searchmill_engine::operator::{EndpointUse, Limits, ParamIssue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A tool that calls a Python function with the model's arguments. Each different call is made once: its answer is
/// remembered by the arguments, the code and the settings, for all rollouts of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct FunctionParams {
    /// Name of the tool.
    pub name: String,
    /// Description that the model reads.
    pub description: String,
    /// JSON Schema of the arguments: an object. Calls are checked against its types, its `required` and its `enum`s.
    pub parameters: Value,
    /// The function, as `file.py:name`, or as in `map` the name of one of an installed package. It gets the arguments by name (those that the model leaves out are None), and
    /// returns `{text: …}`, or a list of results `{id: …, title: …, text: …, score: …}`. Like the function of `map`, it may
    /// be a class with `setup`.
    pub function: String,
    /// More keyword arguments of the function, or of the class.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub arguments: Map<String, Value>,
    /// Program and arguments that start Python (default: as in `map`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<Vec<String>>,
    /// More files and folders that decide what the function returns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Files and folders that the function writes, or that it reads without an effect on what it returns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    /// Environment variables passed to the function besides `PATH` and `HOME`. Their values are not part of the cache
    /// key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    /// Maximum number of characters that the model reads of one call.
    #[serde(default = "max_chars")]
    pub max_chars: usize,
    /// Timeout of one call in seconds (0 = none). Not part of the cache key.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub timeout_seconds: u64,
}

/// Characters that the model reads of one call of any tool, by default.
pub(super) fn max_chars() -> usize {
    20_000
}

/// Returns the function; a name that cannot be split was reported by [`issues`].
pub(super) fn named(name: &str) -> PythonFunction {
    let (file, function) = PythonFunction::split(name).unwrap_or_default();
    PythonFunction { file, function, ..PythonFunction::default() }
}

/// Returns issues of a function whose name stands at the field `field`.
pub(super) fn issues(name: &str, field: &str, function: &PythonFunction) -> Vec<ParamIssue> {
    let split = PythonFunction::split(name).err().map(|message| {
        ParamIssue::new(field, message).with_help(format!("write the file and the function: `{field}: tools.py:name`"))
    });
    split.into_iter().chain(function.issues()).collect()
}

/// Returns the function as a service, for the engine.
pub(super) fn service(name: &str, function: &PythonFunction) -> EndpointUse {
    let PythonFunction { interpreter, arguments, files, environment, .. } = function;
    EndpointUse {
        name: name.to_owned(),
        address: name.to_owned(),
        model: name.to_owned(),
        identity: json!({"python": name, "interpreter": interpreter, "arguments": arguments, "files": files,
            "environment": environment}),
        limits: Limits::default(),
        prices: None,
        // A function may compute for long: the warning comes later than that of other services.
        stall_after: Duration::from_mins(10),
    }
}

impl FunctionParams {
    /// Returns the function.
    pub fn function(&self) -> PythonFunction {
        PythonFunction {
            interpreter: self.interpreter.clone(),
            files: self.files.clone(),
            writes: self.writes.clone(),
            arguments: self.arguments.clone(),
            environment: self.environment.clone(),
            seconds: self.timeout_seconds,
            ..named(&self.function)
        }
    }
}
