//! Parameters of the prompts that a rollout asks: a tool, and a reranker.

use schemars::JsonSchema;
use searchmill_engine::operator::{EndpointUse, ParamIssue};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::function_params::max_chars;
use crate::policy::{Api, EndpointParams, PolicyParams};
use crate::prompt::{Output, Parts, Prompt, PromptMessage, Prompts, missing};

/// A tool that asks a language model: its prompt is a Jinja template over the arguments of the call, its answer is what the
/// model reads. Each different call is paid once: its answer is remembered by the rendered messages, the model and its
/// settings, for all rollouts of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct PromptToolParams {
    /// Name of the tool.
    pub name: String,
    /// Description that the model reads.
    pub description: String,
    /// JSON Schema of the arguments: an object. Calls are checked against its types, its `required` and its `enum`s.
    pub parameters: Value,
    /// Template of the system's message. In a template, `{{ name }}` is an argument, `{% for %}` and `{% if %}` work as in
    /// Jinja; an argument that the model leaves out is `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Template of the user's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// All messages, instead of `system` and `user`; the last one must be the user's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<PromptMessage>,
    /// The model that is asked: `{endpoint: {base_url: …, model: …}}`.
    pub policy: PolicyParams,
    /// What the model answers. Without it: plain text. A map or a list of maps, as in `map`: a JSON object with these
    /// fields, which the caller reads as JSON. Unless the prompt contains `{{ output_schema }}`, the fields are described at
    /// the end of its last message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// How often the model is asked again after an answer that does not fit `output`.
    #[serde(default = "two")]
    pub repairs: u32,
    /// Sends the JSON Schema of `output` to the endpoint (`response_format`), for servers that can constrain answers to it.
    #[serde(default)]
    pub constrained: bool,
    /// Maximum number of characters that the model reads of one call.
    #[serde(default = "max_chars")]
    pub max_chars: usize,
}

/// A language model as reranker. A prompt that reads `documents` is asked once per search and answers with their order, or
/// with a score for each; one that reads `document` is asked about each passage alone and answers with its score. Each
/// different call is paid once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct RerankPromptParams {
    /// Template of the system's message. In a template, `{{ query }}` is the query; `documents` is a list of `{number, id,
    /// document_id, title, text, score}`, best first, numbered from 1; `document` is one of them, without `number`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Template of the user's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// All messages, instead of `system` and `user`; the last one must be the user's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<PromptMessage>,
    /// The model that is asked: `{endpoint: {base_url: …, model: …}}`.
    pub policy: PolicyParams,
    /// How often the model is asked again after an answer that is no order or score. The form is described at the end of the
    /// last message, unless the prompt contains `{{ output_schema }}`.
    #[serde(default = "two")]
    pub repairs: u32,
    /// Sends the JSON Schema of the answer to the endpoint (`response_format`), for servers that can constrain answers to it.
    #[serde(default)]
    pub constrained: bool,
}

fn two() -> u32 {
    2
}

/// Argument names that a template cannot read.
const TAKEN: &str = "output_schema";

/// A prompt, its model, and how often it is asked again.
pub(super) struct Asks<'a> {
    pub(super) prompt: Prompt,
    pub(super) policy: &'a PolicyParams,
    pub(super) repairs: u32,
    pub(super) constrained: bool,
}

impl Asks<'_> {
    /// Returns the endpoint; another policy was reported by [`Self::check`].
    pub(super) fn endpoint(&self) -> Option<&EndpointParams> {
        match self.policy {
            PolicyParams::Endpoint(endpoint) => Some(endpoint),
            PolicyParams::Evidence(_) | PolicyParams::Model(_) => None,
        }
    }

    /// Returns the endpoint as a service, for the engine.
    pub(super) fn service(&self) -> Option<EndpointUse> {
        self.endpoint().map(EndpointParams::endpoint)
    }

    /// Returns issues of everything but the templates, with paths from `prompt`.
    fn check(&self) -> Vec<ParamIssue> {
        let mut issues: Vec<ParamIssue> = self.policy.check().into_iter().map(below_prompt).collect();
        if self.endpoint().is_none() {
            let message = "only an endpoint can be asked here: a model of this pipeline must be served";
            let help = "write `policy: {endpoint: {base_url: \"${service.NAME}/v1\", model: …}}`, and serve the model with \
                        `services` of the node";
            issues.push(ParamIssue::new("prompt.policy", message).with_help(help));
        }
        if self.policy.api() != Api::Chat {
            issues.push(ParamIssue::new("prompt.policy.endpoint.api", "a prompt needs `api: chat`"));
        }
        if self.repairs > 20 {
            issues.push(ParamIssue::new("prompt.repairs", "must be at most 20"));
        }
        issues
    }
}

fn below_prompt(issue: ParamIssue) -> ParamIssue {
    ParamIssue { path: format!("prompt.{}", issue.path), ..issue }
}

impl PromptToolParams {
    pub(super) fn asks(&self) -> Asks<'_> {
        let (system, user, messages) = (self.system.clone(), self.user.clone(), self.messages.clone());
        let prompt = Prompt::Parts(Parts { system, user, messages });
        Asks { prompt, policy: &self.policy, repairs: self.repairs, constrained: self.constrained }
    }

    /// Reads `output`.
    pub(super) fn answer(&self) -> Result<Output, ParamIssue> {
        // The name of the column plays no part: a tool shows its text alone.
        Output::new(self.output.as_ref().unwrap_or(&json!("answer")), None)
    }

    /// Returns issues beside those of name, description and `parameters`, with paths from `prompt`.
    pub(super) fn issues(&self) -> Vec<ParamIssue> {
        let asks = self.asks();
        let mut issues = asks.check();
        if self.max_chars == 0 {
            issues.push(ParamIssue::new("prompt.max_chars", "must be at least 1"));
        }
        let properties = self.parameters.get("properties").and_then(Value::as_object);
        let arguments: Vec<&str> = properties.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        if arguments.contains(&TAKEN) {
            let message =
                "in a prompt, `output_schema` describes the fields of `output`: give the argument another name";
            issues.push(ParamIssue::new(format!("prompt.parameters.properties.{TAKEN}"), message));
        }
        match Prompts::new(&asks.prompt) {
            Ok(prompts) => {
                let readers = prompts.readers();
                let lacks = "is no property of `parameters`";
                issues.extend(missing(&readers, &arguments, |name| format!("`{name}` {lacks}"), "arguments"));
                issues.extend(prompts.unknown_names());
            }
            Err(issue) => issues.push(issue),
        }
        match self.answer() {
            Ok(output) if self.constrained && output.response_format().is_none() => {
                issues.push(ParamIssue::new("prompt.constrained", "`output` is plain text: it has no schema"));
            }
            Ok(_) => {}
            Err(issue) => issues.push(below_prompt(issue)),
        }
        issues
    }
}

impl RerankPromptParams {
    pub(super) fn asks(&self) -> Asks<'_> {
        let (system, user, messages) = (self.system.clone(), self.user.clone(), self.messages.clone());
        let prompt = Prompt::Parts(Parts { system, user, messages });
        Asks { prompt, policy: &self.policy, repairs: self.repairs, constrained: self.constrained }
    }

    /// Returns issues, with paths from `prompt`.
    pub(super) fn issues(&self) -> Vec<ParamIssue> {
        let asks = self.asks();
        let mut issues = asks.check();
        let prompts = match Prompts::new(&asks.prompt) {
            Ok(prompts) => prompts,
            Err(issue) => {
                issues.push(issue);
                return issues;
            }
        };
        let known = [QUERY, DOCUMENTS, DOCUMENT];
        let readers = prompts.readers();
        let lacks = "a reranker's prompt knows no";
        issues.extend(missing(&readers, &known, |name| format!("{lacks} `{name}`"), "names"));
        issues.extend(prompts.unknown_names());
        let message = match (readers.contains_key(DOCUMENTS), readers.contains_key(DOCUMENT)) {
            (true, true) => "reads both `documents` and `document`",
            (false, false) => "shows no passages: it reads neither `documents` nor `document`",
            _ => return issues,
        };
        let help =
            "read `documents` to order all passages of a search with one call, or `document` to score each alone";
        issues.push(ParamIssue::new("prompt", message).with_help(help));
        issues
    }
}

/// Names that the prompt of a reranker can read.
pub(super) const QUERY: &str = "query";
pub(super) const DOCUMENTS: &str = "documents";
pub(super) const DOCUMENT: &str = "document";

#[cfg(test)]
mod tests {
    use super::super::params::ToolParams;
    use super::super::rerank_params::RerankParams;
    use super::*;

    /// A value with changed fields; `null` removes one.
    fn with(mut value: Value, change: &Value) -> Value {
        for (name, changed) in change.as_object().expect("changes") {
            match changed {
                Value::Null => drop(value.as_object_mut().expect("an object").remove(name)),
                changed => value[name] = changed.clone(),
            }
        }
        value
    }

    fn endpoint() -> Value {
        json!({"endpoint": {"base_url": "http://h/v1", "model": "m"}})
    }

    fn tool(change: &Value) -> ToolParams {
        let prompt = json!({"name": "ask", "description": "Asks.", "user": "{{ about }}", "policy": endpoint(),
            "parameters": {"type": "object", "properties": {"about": {"type": "string"}}}});
        serde_json::from_value(json!({"prompt": with(prompt, change)})).expect("a tool")
    }

    fn paths(issues: Vec<ParamIssue>) -> Vec<String> {
        issues.into_iter().map(|issue| issue.path).collect()
    }

    #[test]
    fn impossible_tools_are_named_by_field() {
        let wrong = |change: Value| paths(tool(&change).check());
        assert_eq!(wrong(json!({})), [""; 0]);
        assert_eq!(wrong(json!({"name": "a b", "description": ""})), ["prompt.name", "prompt.description"]);
        assert_eq!(wrong(json!({"user": "{{ abuot }}{{ range(2) }}"})), ["prompt.user"]);
        assert_eq!(wrong(json!({"system": "{% if %}"})), ["prompt.system"]);
        assert_eq!(wrong(json!({"user": null})), ["prompt"], "no message of the user");
        let messages = json!([{"role": "user", "content": "{{ about }}"}]);
        assert_eq!(wrong(json!({"messages": messages})), ["prompt.messages"], "beside `user`");
        assert_eq!(wrong(json!({"messages": messages, "user": null})), [""; 0]);
        assert_eq!(wrong(json!({"policy": "model"})), ["prompt.policy"]);
        assert_eq!(wrong(json!({"policy": {"evidence": {"attempts": 0}}})).len(), 2);
        let completions = json!({"endpoint": {"base_url": "h", "model": "m", "api": "completions"}});
        let at = ["prompt.policy.endpoint.base_url", "prompt.policy.endpoint.api"];
        assert_eq!(wrong(json!({"policy": completions})), at);
        assert_eq!(wrong(json!({"repairs": 21, "max_chars": 0})), ["prompt.repairs", "prompt.max_chars"]);
        assert_eq!(wrong(json!({"constrained": true})), ["prompt.constrained"]);
        assert_eq!(wrong(json!({"constrained": true, "output": {"a": "text"}})), [""; 0]);
        assert_eq!(wrong(json!({"output": {"a": "integer"}})), ["prompt.output"]);
        let taken = json!({"type": "object", "properties": {"about": {}, "output_schema": {}}});
        assert_eq!(wrong(json!({"parameters": taken})), ["prompt.parameters.properties.output_schema"]);
    }

    #[test]
    fn a_reranker_is_a_function_or_a_prompt() {
        let wrong = |change: Value| {
            let prompt =
                json!({"user": "{{ query }}{% for d in documents %}{{ d.text }}{% endfor %}", "policy": endpoint()});
            let params = with(json!({"prompt": with(prompt, &change["prompt"])}), &change["rerank"]);
            let params: RerankParams = serde_json::from_value(params).expect("params");
            paths(params.check())
        };
        let rerank = |change: Value| wrong(json!({"rerank": change, "prompt": {}}));
        let prompt = |change: Value| wrong(json!({"rerank": {}, "prompt": change}));
        assert_eq!(rerank(json!({})), [""; 0]);
        assert_eq!(rerank(json!({"python": "a.py:b"})), [""], "both");
        assert_eq!(rerank(json!({"prompt": null})), [""], "neither");
        assert_eq!(
            rerank(json!({"keep": 0, "files": ["a"], "timeout_seconds": 1})),
            ["keep", "files", "timeout_seconds"]
        );
        assert_eq!(prompt(json!({"user": "{{ query }}"})), ["prompt"]);
        assert_eq!(prompt(json!({"user": "{{ documents }}{{ document }}"})), ["prompt"]);
        assert_eq!(prompt(json!({"user": "{{ document.text }}{{ question }}"})), ["prompt.user"]);
        assert_eq!(prompt(json!({"policy": "evidence"})), ["prompt.policy"]);
    }

    #[test]
    fn an_asked_model_has_the_identity_of_a_policy() {
        let service = tool(&json!({})).service().expect("a service");
        assert_eq!(service.identity, json!({"model": "m", "revision": null, "url": null}));
        assert_eq!(service.address, "http://h/v1");
        assert!(tool(&json!({"policy": "model"})).service().is_none());
    }
}
