//! Parameters of the reranker: a Python function or a prompt.

use schemars::JsonSchema;
use searchmill_data::python::PythonFunction;
use searchmill_engine::operator::{EndpointUse, ParamIssue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::function_params::{issues, named, service};
use super::prompt_params::RerankPromptParams;

/// A step between a search and what the model sees: a Python function or another language model orders the passages anew.
/// Each different call is made once: its answer is remembered by the query, the passages, and the code or the prompt with
/// its settings. It counts as a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct RerankParams {
    /// The function, as `file.py:name`: `def rerank(query, documents)`. `documents` is a list of `{id, document_id, title,
    /// text, score}`, best first. It returns `{"scores": […]}`, a number for each, higher is better; or those to show in
    /// their order, as a list of `{"id": …, "score": …}`. Like the function of `map`, it may be a class with `setup`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// A prompt instead of a function: `{user: "{{ query }} … {% for d in documents %}[{{ d.number }}] {{ d.text }}{% endfor
    /// %}", policy: {endpoint: {…}}}`. The model answers with an order, `[2] > [1]` or `{"order": [2, 1]}` (passages that it
    /// leaves out are not shown), or with `{"scores": […]}`. A prompt that reads `document` is asked about each passage alone
    /// and answers with a number or `{"score": …}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Box<RerankPromptParams>>,
    /// Passages that the model sees (at most, default: all that the reranker returns).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<usize>,
    /// More keyword arguments of the function, or of the class.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub arguments: Map<String, Value>,
    /// Program and arguments that start Python (default: as in `map`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<Vec<String>>,
    /// More files and folders that decide what the function returns, such as a model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Files and folders that the function writes, or that it reads without an effect on what it returns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    /// Environment variables passed to the function besides `PATH` and `HOME`. Their values are not part of the cache
    /// key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    /// Timeout of one call of the function in seconds (0 = none). Not part of the cache key.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub timeout_seconds: u64,
}

impl RerankParams {
    /// Returns the function, if it is one.
    pub fn function(&self) -> Option<PythonFunction> {
        Some(PythonFunction {
            interpreter: self.interpreter.clone(),
            files: self.files.clone(),
            writes: self.writes.clone(),
            arguments: self.arguments.clone(),
            environment: self.environment.clone(),
            seconds: self.timeout_seconds,
            ..named(self.python.as_deref()?)
        })
    }

    /// The function or the endpoint as a service, for the engine.
    pub fn service(&self) -> Option<EndpointUse> {
        match (&self.python, &self.prompt) {
            (Some(name), _) => Some(service(name, &self.function()?)),
            (None, prompt) => prompt.as_ref()?.asks().service(),
        }
    }

    /// Returns issues, with paths below the params.
    pub fn check(&self) -> Vec<ParamIssue> {
        let none = (self.keep == Some(0)).then(|| ParamIssue::new("keep", "must be at least 1"));
        let one = self.python.is_some() != self.prompt.is_some();
        let one = (!one).then(|| ParamIssue::new("", "write either `python` or `prompt`"));
        let mut found: Vec<ParamIssue> = none.into_iter().chain(one).collect();
        if let (Some(name), Some(function)) = (&self.python, self.function()) {
            found.extend(issues(name, "python", &function));
            return found;
        }
        found.extend(self.prompt.iter().flat_map(|prompt| prompt.issues()));
        let of_python = [
            ("arguments", !self.arguments.is_empty()),
            ("interpreter", self.interpreter.is_some()),
            ("files", !self.files.is_empty()),
            ("writes", !self.writes.is_empty()),
            ("environment", !self.environment.is_empty()),
            ("timeout_seconds", self.timeout_seconds > 0),
        ];
        let given = of_python.into_iter().filter(|(_, given)| *given && self.prompt.is_some());
        found.extend(given.map(|(name, _)| ParamIssue::new(name, "belongs to `python`: a prompt has no such setting")));
        found
    }
}
