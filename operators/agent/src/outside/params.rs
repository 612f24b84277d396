//! Parameters of the tools of a rollout.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use searchmill_data::program::{Command, variable_issues, write_issues};
use searchmill_data::python::PythonFunction;
use searchmill_engine::operator::{EndpointUse, Limits, ParamIssue, Prices, Secret, Source, is_web_address};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::function_params::{self, FunctionParams, max_chars};
use super::prompt_params::PromptToolParams;
use super::template::{self, at_path};
use crate::protocol::ToolOffer;

/// A tool of a rollout, beside its search tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolParams {
    /// Opens a document, or a section of it, by an id that a search of the same conversation showed. Reads the input
    /// `documents`.
    Open(OpenParams),
    /// A search or fetch service over HTTP.
    Http(Box<HttpParams>),
    /// The tools of an MCP server.
    Mcp(Box<McpParams>),
    /// A Python function.
    Python(Box<FunctionParams>),
    /// A prompt to another language model.
    Prompt(Box<PromptToolParams>),
}

/// The tool that opens documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "snake_case")]
pub struct OpenParams {
    /// Name of the tool.
    pub name: String,
    /// Description that the model reads.
    pub description: String,
    /// Characters per page of a long document (at most). The model asks for further pages.
    pub page_chars: usize,
}

impl Default for OpenParams {
    fn default() -> Self {
        let description = "Open a document, or a section of it, by an id that a search result shows. Long documents \
            have pages.";
        Self { name: "open".to_owned(), description: description.to_owned(), page_chars: 8000 }
    }
}

impl OpenParams {
    /// The tool as the model sees it.
    pub fn offer(&self) -> ToolOffer {
        let parameters = json!({
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "An id that a search result shows."},
                "page": {"type": "integer", "description": "Page of a long document, from 1 (default: 1)."},
            },
            "required": ["id"],
        });
        ToolOffer { name: self.name.clone(), description: self.description.clone(), parameters }
    }
}

/// An HTTP method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpMethod {
    /// GET: the arguments are in the URL.
    #[default]
    Get,
    /// POST: the arguments are in the body.
    Post,
}

/// A search or fetch service over HTTP. Each different call is paid once: its answer is remembered by the service, the
/// templates and the arguments, for all rollouts of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct HttpParams {
    /// Name of the tool.
    pub name: String,
    /// Description that the model reads.
    pub description: String,
    /// JSON Schema of the arguments: an object. Calls are checked against its types, its `required` and its `enum`s.
    pub parameters: Value,
    /// URL of the service. `{name}` stands for an argument, percent-encoded; `{+name}` keeps reserved characters (for
    /// a URL in a path). Scheme and host must be fixed. Part of the cache key, unless `service` is set.
    #[schemars(extend("x-searchmill-key" = false))]
    pub url: String,
    /// Name of the service in cache keys, in place of `url`: set it if the address may change.
    #[serde(default)]
    pub service: Option<String>,
    /// HTTP method: `GET` or `POST`.
    #[serde(default)]
    pub method: HttpMethod,
    /// JSON body of a POST. A text `"{name}"` becomes the argument's value with its type; a field whose argument is
    /// not given is left out.
    #[serde(default)]
    pub body: Option<Value>,
    /// Headers sent with every call.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are secrets; write `${secret:NAME}`.
    #[serde(default)]
    pub secret_headers: BTreeMap<String, Secret>,
    /// API key, sent as bearer token; write `${secret:NAME}`.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub api_key: Option<Secret>,
    /// Where the results are in a JSON answer. Without it, the model reads the answer's text.
    #[serde(default)]
    pub results: Option<ResultPlaces>,
    /// Maximum number of characters that the model reads of one call.
    #[serde(default = "max_chars")]
    pub max_chars: usize,
    /// Timeout of one call in seconds. Not part of the cache key.
    #[serde(default = "timeout_seconds")]
    #[schemars(extend("x-searchmill-key" = false))]
    pub timeout_seconds: f64,
    /// Prices, for the cost report and budgets: `{call: 0.001}`. Not part of the cache key.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub prices: Option<Prices>,
    /// Rate limits: `{requests_per_minute: …, concurrency: …}`. Not part of the cache key.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub limits: Limits,
}

/// Places in a JSON answer, as JSON Pointers (RFC 6901).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct ResultPlaces {
    /// The list of results, for example `/organic`. Without it, the answer is one result. The other places are below a
    /// result.
    #[serde(default)]
    pub list: Option<String>,
    /// Id or address of a result (`/link`). Default: derived from its text.
    #[serde(default)]
    pub id: Option<String>,
    /// Title of a result (`/title`).
    #[serde(default)]
    pub title: Option<String>,
    /// Text of a result (`/snippet`).
    pub text: String,
    /// Score of a result, a number (default: 0).
    #[serde(default)]
    pub score: Option<String>,
}

/// The tools of an MCP server (streamable HTTP or stdio). Their list is read once, when the node first opens, and
/// remembered: all rollouts of the store see the same definitions until `--force`. Each different call is paid once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct McpParams {
    /// URL of the server's MCP endpoint. Part of the cache key, unless `service` is set.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub url: Option<String>,
    /// Program that speaks MCP on stdin and stdout, and its arguments; no shell is involved. Part of the cache key, with
    /// the content of your files that it names, unless `service` is set.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub command: Option<Vec<String>>,
    /// More files and folders of yours that decide what the program answers. A file of yours that it reads and that is not
    /// part of the key is an error, unless `service` is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Files and folders that the program writes, or that it reads without an effect on its answers (logs, caches).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    /// Environment variables passed to the program besides `PATH` and `HOME`. Their values are not part of the cache
    /// key.
    #[serde(default)]
    pub environment: Vec<String>,
    /// Name of the server in cache keys, in place of `url` or `command` and its files: set it if the address may change.
    #[serde(default)]
    pub service: Option<String>,
    /// Headers sent with every request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are secrets; write `${secret:NAME}`.
    #[serde(default)]
    pub secret_headers: BTreeMap<String, Secret>,
    /// API key, sent as bearer token; write `${secret:NAME}`.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub api_key: Option<Secret>,
    /// Names of the tools offered to the model (default: all of the server).
    #[serde(default)]
    pub tools: Option<Vec<String>>,
    /// Text before the names of the tools, for servers with equal names.
    #[serde(default)]
    pub prefix: String,
    /// Maximum number of characters that the model reads of one call.
    #[serde(default = "max_chars")]
    pub max_chars: usize,
    /// Timeout of one request in seconds. Not part of the cache key.
    #[serde(default = "timeout_seconds")]
    #[schemars(extend("x-searchmill-key" = false))]
    pub timeout_seconds: f64,
    /// Prices, for the cost report and budgets: `{call: 0.001}`. Not part of the cache key.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub prices: Option<Prices>,
    /// Rate limits: `{requests_per_minute: …, concurrency: …}`. Not part of the cache key.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub limits: Limits,
}

fn timeout_seconds() -> f64 {
    30.0
}

/// Maximum length of a tool's name in the chat API.
const MOST_NAME: usize = 64;

/// What [`is_tool_name`] demands.
pub const TOOL_NAME: &str = "must be 1 to 64 letters, digits, `_` or `-`, as the chat API demands";

/// Whether a name fits the chat API.
pub fn is_tool_name(name: &str) -> bool {
    let is_short = (1..=MOST_NAME).contains(&name.len());
    is_short && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

impl ToolParams {
    /// The tool's name, if the params say it.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Open(open) => Some(&open.name),
            Self::Http(http) => Some(&http.name),
            Self::Python(python) => Some(&python.name),
            Self::Prompt(prompt) => Some(&prompt.name),
            Self::Mcp(_) => None,
        }
    }

    /// The service that the tool calls, for the engine.
    pub fn service(&self) -> Option<EndpointUse> {
        let (name, address, identity, limits, prices) = match self {
            Self::Open(_) => return None,
            Self::Python(python) => return Some(function_params::service(&python.function, &python.function())),
            Self::Prompt(prompt) => return prompt.asks().service(),
            Self::Http(http) => {
                // Tools of one host share its limits, whatever their paths.
                let host = at_path(&http.url).0;
                (host.to_owned(), host, http.identity(), &http.limits, &http.prices)
            }
            Self::Mcp(mcp) => (mcp.who(), mcp.address(), mcp.identity(), &mcp.limits, &mcp.prices),
        };
        Some(EndpointUse {
            // A service has no model: its calls are estimated by its own name.
            model: name.clone(),
            name,
            address: address.to_owned(),
            identity,
            limits: limits.clone(),
            prices: prices.clone(),
            stall_after: Duration::from_mins(1),
        })
    }

    /// The tool as the model sees it, if the params say it.
    pub fn offer(&self) -> Option<ToolOffer> {
        let (name, description, parameters) = match self {
            Self::Open(open) => return Some(open.offer()),
            Self::Http(http) => (&http.name, &http.description, &http.parameters),
            Self::Python(python) => (&python.name, &python.description, &python.parameters),
            Self::Prompt(prompt) => (&prompt.name, &prompt.description, &prompt.parameters),
            Self::Mcp(_) => return None,
        };
        Some(ToolOffer { name: name.clone(), description: description.clone(), parameters: parameters.clone() })
    }

    /// Whether the tool is a program.
    pub fn is_program(&self) -> bool {
        matches!(self, Self::Mcp(mcp) if mcp.command.is_some()) || self.function().is_some()
    }

    /// The Python function of the tool.
    pub fn function(&self) -> Option<PythonFunction> {
        let Self::Python(python) = self else { return None };
        Some(python.function())
    }

    /// Returns the user's files behind the tool, other than those of a Python function.
    pub fn files(&self, directory: &Path) -> Vec<Source> {
        let Self::Mcp(mcp) = self else { return Vec::new() };
        mcp.sources(directory)
    }

    /// Returns why the file of its Python function cannot be called, with a path below the tool.
    pub fn file_issue(&self, directory: &Path) -> Option<ParamIssue> {
        let Self::Python(python) = self else { return None };
        python.function().file_issue("python.function", &python.function, directory)
    }

    /// Returns issues, with paths below the tool.
    pub fn check(&self) -> Vec<ParamIssue> {
        let mut issues = Issues(Vec::new());
        match self {
            Self::Open(open) => {
                issues.require("open.name", is_tool_name(&open.name), TOOL_NAME);
                issues.require("open.page_chars", open.page_chars > 0, "must be at least 1");
            }
            Self::Http(http) => http.check(&mut issues),
            Self::Mcp(mcp) => mcp.check(&mut issues),
            Self::Python(python) => {
                issues.described("python", &python.name, &python.description, &python.parameters);
                issues.require("python.max_chars", python.max_chars > 0, "must be at least 1");
                for issue in function_params::issues(&python.function, "function", &python.function()) {
                    issues.0.push(ParamIssue { path: format!("python.{}", issue.path), ..issue });
                }
            }
            Self::Prompt(prompt) => {
                issues.described("prompt", &prompt.name, &prompt.description, &prompt.parameters);
                issues.0.extend(prompt.issues());
            }
        }
        issues.0
    }
}

/// How to mend a name that is too long.
pub(super) const SHORTER: &str = "write a shorter `prefix`, or name other tools in `tools`";
const URL: &str = "must be a URL such as `https://api.example.org/search`";

/// Problems found so far.
struct Issues(Vec<ParamIssue>);

impl Issues {
    fn require(&mut self, path: &str, fine: bool, message: &str) {
        if !fine {
            self.0.push(ParamIssue::new(path, message));
        }
    }

    /// What all services have.
    fn shared(&mut self, path: &str, timeout: f64, chars: usize, limits: &Limits, prices: Option<&Prices>) {
        let patient = timeout > 0.0 && timeout <= 86_400.0;
        self.require(&format!("{path}.timeout_seconds"), patient, "must be above 0 and at most 86400 (a day)");
        self.require(&format!("{path}.max_chars"), chars > 0, "must be at least 1");
        if let Some(name) = limits.fault() {
            self.require(&format!("{path}.limits.{name}"), false, "must be above 0");
        }
        if let Some(name) = prices.and_then(Prices::fault) {
            self.require(&format!("{path}.prices.{name}"), false, "must not be negative");
        }
    }

    fn described(&mut self, path: &str, name: &str, description: &str, parameters: &Value) -> bool {
        self.require(&format!("{path}.name"), is_tool_name(name), TOOL_NAME);
        let described = !description.trim().is_empty();
        let message = "must say what the tool does: the model reads it";
        self.require(&format!("{path}.description"), described, message);
        let fault = schema_fault(parameters);
        if let Some((below, message)) = &fault {
            self.require(&format!("{path}.parameters{below}"), false, message);
        }
        fault.is_none()
    }

    fn headers(&mut self, path: &str, headers: &BTreeMap<String, String>, secrets: &BTreeMap<String, Secret>) {
        for (name, value) in headers {
            let fine = HeaderName::try_from(name.as_str()).is_ok() && HeaderValue::try_from(value.as_str()).is_ok();
            self.require(&format!("{path}.headers.{name}"), fine, "is not a header: a name and one line of ASCII");
        }
        for name in secrets.keys() {
            let fine = HeaderName::try_from(name.as_str()).is_ok();
            self.require(&format!("{path}.secret_headers.{name}"), fine, "is not the name of a header");
            // Header names are case-insensitive (RFC 9110, section 5.1): one of the two values would be lost.
            let twice = headers.keys().any(|other| other.eq_ignore_ascii_case(name));
            self.require(&format!("{path}.secret_headers.{name}"), !twice, "is also in `headers`");
        }
    }
}

fn is_web(url: &str) -> bool {
    // The address of a service (`${service.NAME}`) is no URL before the run: `is_web_address` has checked it.
    is_web_address(url) && url::Url::parse(url).map_or(true, |url| url.has_host())
}

impl HttpParams {
    /// Identity of the service: what is sent to it for given arguments.
    fn identity(&self) -> Value {
        // A name stands for the host alone: another path is another service.
        let service = match &self.service {
            Some(service) => json!([service, at_path(&self.url).1]),
            None => json!(self.url),
        };
        json!({"http": service, "method": self.method, "body": self.body, "headers": self.headers})
    }

    /// Names of the arguments that the templates use.
    pub(super) fn used(&self) -> BTreeSet<&str> {
        let mut names = template::names(&self.url);
        names.extend(self.body.iter().flat_map(template::names_in));
        names
    }

    fn check(&self, issues: &mut Issues) {
        let has_schema = issues.described("http", &self.name, &self.description, &self.parameters);
        // Braces are not allowed in URLs: it is checked with empty arguments.
        issues.require("http.url", is_web(&template::url(&self.url, &serde_json::Map::new())), URL);
        let fixed = !template::chooses_host(&self.url);
        issues.require("http.url", fixed, "scheme and host must be fixed: the model would choose where to call");
        // With a schema that is no schema, every name would be reported as well.
        if has_schema {
            let known = self.parameters.get("properties").and_then(Value::as_object);
            let body = self.body.as_ref().map(template::names_in).unwrap_or_default();
            for (path, names) in [("http.url", template::names(&self.url)), ("http.body", body)] {
                for name in names {
                    let is_known = known.is_some_and(|known| known.contains_key(name));
                    issues.require(path, is_known, &format!("`{{{name}}}` is no property of `parameters`"));
                }
            }
        }
        let no_body = self.method == HttpMethod::Post || self.body.is_none();
        issues.require("http.body", no_body, "only a POST has a body: write `method: POST`");
        if let Some(places) = &self.results {
            let ResultPlaces { list, id, title, text, score } = places;
            let named = [("list", list), ("id", id), ("title", title), ("score", score), ("text", &Some(text.clone()))];
            for (name, place) in named {
                let fine = place.as_ref().is_none_or(|place| place.is_empty() || place.starts_with('/'));
                let path = format!("http.results.{name}");
                issues.require(&path, fine, "must be a JSON Pointer, such as `/results` (RFC 6901)");
            }
        }
        issues.headers("http", &self.headers, &self.secret_headers);
        issues.shared("http", self.timeout_seconds, self.max_chars, &self.limits, self.prices.as_ref());
    }
}

/// What is wrong with a JSON Schema of arguments, and where.
pub(super) fn schema_fault(schema: &Value) -> Option<(String, String)> {
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        return Some((String::new(), "must be a JSON Schema of type `object`".to_owned()));
    }
    let properties = match schema.get("properties") {
        None => None,
        Some(Value::Object(properties)) => Some(properties),
        Some(_) => return Some((".properties".to_owned(), "must be an object of JSON Schemas".to_owned())),
    };
    if let Some((name, _)) = properties.into_iter().flatten().find(|(_, schema)| !schema.is_object()) {
        return Some((format!(".properties.{name}"), "must be a JSON Schema".to_owned()));
    }
    let required = match schema.get("required") {
        None => return None,
        Some(Value::Array(required)) => required,
        Some(_) => return Some((".required".to_owned(), "must be a list of names".to_owned())),
    };
    for written in required {
        let name = written.as_str().unwrap_or_default();
        if !written.is_string() || !properties.is_some_and(|properties| properties.contains_key(name)) {
            return Some((".required".to_owned(), format!("{written} is no property")));
        }
    }
    None
}

impl McpParams {
    /// The name of the server in messages: its URL, or the whole command, as launchers such as `npx` start many.
    pub(super) fn who(&self) -> String {
        self.url.clone().unwrap_or_else(|| self.command.as_deref().unwrap_or_default().join(" "))
    }

    /// What is wrong with the name under which the model would call a tool, if it is too long.
    pub(super) fn too_long(&self, tool: &str) -> Option<String> {
        let name = self.offered(tool);
        let length = name.len();
        if length <= MOST_NAME {
            return None;
        }
        Some(format!("the tool `{name}` would have a name of {length} characters; the chat API allows {MOST_NAME}"))
    }

    /// The name under which the model calls a tool of the server.
    pub(super) fn offered(&self, tool: &str) -> String {
        format!("{}{tool}", self.prefix)
    }

    /// The address in the keys of calls. A program has none: its first word.
    fn address(&self) -> &str {
        self.url.as_ref().or(self.command.iter().flatten().next()).map_or("", String::as_str)
    }

    /// Returns the user's files that decide what the program answers; none if `service` stands for them.
    pub(super) fn sources(&self, directory: &Path) -> Vec<Source> {
        let Some(words) = self.command.as_deref().filter(|_| self.service.is_none()) else { return Vec::new() };
        let command = Command { program: words, arguments: &[], version: None, writes: &self.writes };
        let mut sources = command.sources(directory);
        // A launcher (`npx`) stands in the command itself: another version of it is no other server.
        sources.retain(|source| match source {
            Source::Executable(path) => path.starts_with(directory),
            source => matches!(source, Source::Argument(_)),
        });
        sources.extend(self.files.iter().cloned().map(Source::Argument));
        sources
    }

    fn identity(&self) -> Value {
        // Without the headers that are secrets: with another key it is still the same server.
        match &self.service {
            Some(service) => json!({"mcp": service, "headers": self.headers}),
            None => json!({"mcp": self.url, "command": self.command, "headers": self.headers}),
        }
    }

    fn check(&self, issues: &mut Issues) {
        let one = self.url.is_some() != self.command.is_some();
        issues.require("mcp", one, "needs either `url` or `command`");
        issues.require("mcp.url", self.url.as_deref().is_none_or(is_web), URL);
        let program = self.command.as_ref().is_none_or(|command| command.first().is_some_and(|name| !name.is_empty()));
        issues.require("mcp.command", program, "names no program");
        issues.0.extend(variable_issues("mcp.environment", &self.environment));
        issues.0.extend(write_issues("mcp.writes", &self.writes));
        let some = self.tools.as_ref().is_none_or(|tools| !tools.is_empty());
        issues.require("mcp.tools", some, "names no tool: leave it out to offer all");
        let prefix = self.prefix.is_empty() || is_tool_name(&self.prefix);
        issues.require("mcp.prefix", prefix, "may have at most 64 letters, digits, `_` and `-`");
        if let Some(message) = self.tools.iter().flatten().find_map(|tool| self.too_long(tool)) {
            issues.0.push(ParamIssue::new("mcp.prefix", message).with_help(SHORTER));
        }
        let http = self.command.is_none();
        let headers = self.headers.is_empty() && self.secret_headers.is_empty() && self.api_key.is_none();
        issues.require("mcp.headers", http || headers, "a program takes no headers or keys: name `environment`");
        let files = self.files.is_empty() && self.writes.is_empty();
        issues.require("mcp.files", !http || files, "only a `command` reads files");
        issues.headers("mcp", &self.headers, &self.secret_headers);
        issues.shared("mcp", self.timeout_seconds, self.max_chars, &self.limits, self.prices.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(value: Value) -> Vec<String> {
        let params: ToolParams = serde_json::from_value(value).expect("a tool");
        params.check().into_iter().map(|issue| issue.path).collect()
    }

    fn http(change: Value) -> Value {
        let mut http = json!({"name": "web", "description": "Searches.", "url": "https://h/s?q={query}",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}});
        for (name, value) in change.as_object().expect("changes") {
            http[name] = value.clone();
        }
        json!({"http": http})
    }

    #[test]
    fn impossible_services_are_named_by_field() {
        assert_eq!(paths(http(json!({}))), [""; 0]);
        assert_eq!(paths(http(json!({"name": "a b", "description": " "}))), ["http.name", "http.description"]);
        assert_eq!(paths(http(json!({"url": "https://h/?q={q}"}))), ["http.url"]);
        assert_eq!(paths(http(json!({"url": "{+query}"}))), ["http.url", "http.url"]);
        assert_eq!(paths(http(json!({"body": {"q": "{nope}"}}))), ["http.body", "http.body"]);
        assert_eq!(paths(http(json!({"parameters": {"type": "array"}}))), ["http.parameters"]);
        let schema = json!({"parameters": {"type": "object", "properties": {"query": {}}, "required": ["q"]}});
        assert_eq!(paths(http(schema)), ["http.parameters.required"]);
        assert_eq!(paths(http(json!({"results": {"text": "snippet", "list": "/x"}}))), ["http.results.text"]);
        assert_eq!(paths(http(json!({"headers": {"a b": "x"}}))), ["http.headers.a b"]);
        assert_eq!(paths(http(json!({"timeout_seconds": 0, "max_chars": 0}))).len(), 2);
        assert_eq!(paths(json!({"mcp": {}})), ["mcp"]);
        let long = json!({"mcp": {"url": "https://h/mcp", "prefix": "p".repeat(60), "tools": ["abcd", "abcde"]}});
        assert_eq!(paths(long), ["mcp.prefix"], "a name of 65 characters");
        assert_eq!(paths(json!({"mcp": {"command": [], "api_key": "${secret:K}"}})), ["mcp.command", "mcp.headers"]);
        assert_eq!(paths(json!({"open": {"name": "", "page_chars": 0}})), ["open.name", "open.page_chars"]);
    }

    #[test]
    fn a_service_has_one_identity_wherever_it_is_and_no_secret_in_it() {
        let identity = |change: Value| {
            let tool: ToolParams = serde_json::from_value(http(change)).expect("a tool");
            tool.service().expect("a service").identity
        };
        let named = json!({"service": "web-1", "url": "https://one/s?q={query}"});
        let moved = json!({"service": "web-1", "url": "https://two/s?q={query}", "api_key": "${secret:KEY}"});
        assert_eq!(identity(named), identity(moved));
        assert_ne!(identity(json!({})), identity(json!({"url": "https://two/s?q={query}"})));
        let other_path = json!({"service": "web-1", "url": "https://one/news?q={query}"});
        assert_ne!(identity(json!({"service": "web-1", "url": "https://one/s?q={query}"})), identity(other_path));
        assert_eq!(at_path("https://h:80/s?q={query}"), ("https://h:80", "/s?q={query}"));
        let local: ToolParams =
            serde_json::from_value(http(json!({"url": "${service.kb}/s?q={query}"}))).expect("a tool");
        assert!(local.check().is_empty(), "{:?}", local.check());
        assert_eq!(local.service().expect("a service").address, "${service.kb}");
    }

    #[test]
    fn programs_of_one_launcher_are_told_apart_and_their_keys_stay() {
        let service = |command: &[&str]| {
            let tool: ToolParams = serde_json::from_value(json!({"mcp": {"command": command}})).expect("a tool");
            tool.service().expect("a service")
        };
        let (one, other) = (service(&["npx", "-y", "one"]), service(&["npx", "-y", "other"]));
        assert_eq!((one.name.as_str(), other.name.as_str()), ("npx -y one", "npx -y other"));
        assert_eq!((one.address.as_str(), other.address.as_str()), ("npx", "npx"));
    }
}
