//! The tools of one MCP server, as a rollout uses them.

use std::collections::BTreeSet;

use std::time::Duration;

use searchmill_data::python::Code;
use searchmill_engine::operator::{
    Attempt, CallFailure, Context, Counts, FailureKind, OperatorError, Prices, RowFailure,
};
use serde_json::{Value, json};

use super::super::params::{McpParams, SHORTER, is_tool_name, schema_fault};
use super::super::results;
use super::super::service::{Exchange, Service};
use super::super::wire::Wire;
use super::client::{Client, Server};
use super::http::HttpServer;
use super::message::text_of;
use super::program::ProgramServer;
use crate::protocol::{OfferedCall, ToolOffer};
use crate::tool::{Called, ToolResult};

/// Tools of one server (at most), and bytes of their definitions.
const MOST_TOOLS: usize = 256;
const MOST_DEFINITIONS: usize = 1 << 20;

/// The tools of one server.
pub(crate) struct McpTool {
    params: McpParams,
    service: Service,
    client: Client,
    /// The user's files behind a program, if there are some.
    code: Option<Code>,
}

impl McpTool {
    /// Prepares the client, without a request. `place` is the service's in the declaration.
    pub(crate) fn open(params: &McpParams, place: usize, context: &Context) -> Result<Self, OperatorError> {
        let timeout = Duration::from_secs_f64(params.timeout_seconds);
        let server = match &params.url {
            Some(url) => {
                let (headers, secrets) = (&params.headers, &params.secret_headers);
                let wire = Wire::open(headers, secrets, params.api_key.as_ref(), params.timeout_seconds, context)?;
                Server::Http(HttpServer { url: url.clone(), wire, http: context.http().clone() })
            }
            None => Server::Program(Box::new(ProgramServer::new(params, timeout, context.clone()))),
        };
        let sources = params.sources(&context.resolve(""));
        let code = if sources.is_empty() { None } else { Some(Code::of_sources(sources, context)?) };
        let service = Service { place, prices: params.prices.clone().unwrap_or_default() };
        Ok(Self { params: params.clone(), service, client: Client::new(server), code })
    }

    /// Returns the tools that the rollouts are told: the remembered list of the server, or its list now.
    ///
    /// # Errors
    /// If the server cannot be reached, or lists what no model can be offered.
    pub(crate) async fn offers(&self, context: &Context) -> Result<Vec<ToolOffer>, OperatorError> {
        // The list itself costs nothing.
        let free = Service { prices: Prices::default(), ..self.service.clone() };
        let asked = match &self.code {
            Some(code) => format!("tools/list {}", code.digest()),
            None => "tools/list".to_owned(),
        };
        let tools = match free.ask(self, asked, context).await {
            Ok(tools) => tools,
            Err(failure) if failure.kind == FailureKind::Cancelled => return Err(OperatorError::cancelled()),
            Err(failure) => return Err(self.unusable(&failure.message)),
        };
        let tools = self.chosen(tools).map_err(|message| self.unusable(&message))?;
        let offers = tools.iter().map(|tool| self.offer(tool)).collect();
        // Of the chosen ones alone: a change of another tool concerns no rollout.
        self.client.told.get_or_init(|| tools);
        offers
    }

    /// The tools that the params name, of those that the server has.
    fn chosen(&self, all: Vec<Value>) -> Result<Vec<Value>, String> {
        let Some(names) = &self.params.tools else { return Ok(all) };
        let mut chosen = Vec::new();
        // Sorted and without repetitions: the order in which they are named changes nothing.
        for name in BTreeSet::from_iter(names) {
            let Some(tool) = all.iter().find(|tool| tool["name"] == *name) else {
                let known: Vec<&str> = all.iter().filter_map(|tool| tool["name"].as_str()).collect();
                return Err(format!("it has no tool `{name}`; its tools are `{}`", known.join("`, `")));
            };
            chosen.push(tool.clone());
        }
        Ok(chosen)
    }

    fn offer(&self, tool: &Value) -> Result<ToolOffer, OperatorError> {
        let name = tool["name"].as_str().unwrap_or_default();
        if let Some(message) = self.params.too_long(name) {
            let message = format!("the MCP server `{}`: {message}", self.params.who());
            return Err(OperatorError::pipeline(message).with_help(SHORTER));
        }
        let description = tool["description"].as_str().unwrap_or_default().to_owned();
        let parameters = tool.get("inputSchema").cloned().unwrap_or(json!({"type": "object"}));
        Ok(ToolOffer { name: self.params.offered(name), description, parameters })
    }

    /// Runs a call.
    pub(crate) async fn call(&self, call: OfferedCall<'_>, context: &Context) -> Result<Called, RowFailure> {
        // The prefix is for the model alone: it enters neither the request nor its key.
        let name = call.tool.strip_prefix(self.params.prefix.as_str()).unwrap_or(call.tool);
        let calling = Calling { tool: self, name, arguments: call.arguments };
        let mut request = json!({"arguments": call.arguments, "tool": name});
        if let Some(code) = &self.code {
            request["code"] = json!(code.digest());
        }
        self.service.call(call.tool, &calling, request.to_string(), context).await
    }

    /// Fails if a file of the program has changed: an answer of other code counts for nothing.
    fn unchanged(&self) -> Result<(), CallFailure> {
        if self.code.as_ref().is_none_or(Code::holds) {
            return Ok(());
        }
        let message = "a file of the MCP server changed while it was called".to_owned();
        Err(CallFailure::new(FailureKind::Cancelled, message, None))
    }

    fn unusable(&self, message: &str) -> OperatorError {
        let message = format!("the tools of the MCP server `{}` cannot be used: {message}", self.params.who());
        OperatorError::machine(message).with_help("check the server, then run again: nothing that was paid is lost")
    }
}

/// Checks a server's list of tools.
fn check(tools: &[Value]) -> Result<(), String> {
    if tools.is_empty() || tools.len() > MOST_TOOLS {
        return Err(format!("it lists {} tools, expected 1 to {MOST_TOOLS}", tools.len()));
    }
    let mut names = BTreeSet::new();
    for tool in tools {
        let Some(name) = tool.get("name").and_then(Value::as_str).filter(|name| is_tool_name(name)) else {
            return Err(format!("it lists a tool with the name {}, which no model can call", tool["name"]));
        };
        if !names.insert(name) {
            return Err(format!("it lists the tool `{name}` twice"));
        }
        if !matches!(tool["description"], Value::Null | Value::String(_)) {
            return Err(format!("the description of its tool `{name}` is no text"));
        }
        if let Some((place, message)) = tool.get("inputSchema").and_then(schema_fault) {
            return Err(format!("`inputSchema{place}` of its tool `{name}` {message}"));
        }
    }
    Ok(())
}

/// The exchange about the list of tools.
impl Exchange for McpTool {
    type Answer = Vec<Value>;

    async fn attempt(&self, _: &Context, attempt: &Attempt) -> Result<String, CallFailure> {
        let tools = self.client.list(attempt).await?;
        self.unchanged()?;
        Ok(Value::Array(tools).to_string())
    }

    fn read(&self, text: &str) -> Result<Vec<Value>, String> {
        if text.len() > MOST_DEFINITIONS {
            return Err(format!("its definitions have {} bytes, at most {MOST_DEFINITIONS} can be used", text.len()));
        }
        let tools: Vec<Value> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        check(&tools)?;
        Ok(tools)
    }
}

/// One call of a tool.
struct Calling<'a> {
    tool: &'a McpTool,
    name: &'a str,
    arguments: &'a Value,
}

impl Exchange for Calling<'_> {
    type Answer = ToolResult;

    async fn attempt(&self, _: &Context, attempt: &Attempt) -> Result<String, CallFailure> {
        let result = self.tool.client.call(self.name, self.arguments, attempt).await?;
        self.tool.unchanged()?;
        match text_of(&result) {
            // The tool itself says that the call failed: the next try would, too.
            Err(message) if result.get("isError") == Some(&Value::Bool(true)) => {
                let failure = CallFailure::new(FailureKind::Refused, message, None);
                Err(CallFailure { counts: Counts::Never, ..failure })
            }
            _ => Ok(result.to_string()),
        }
    }

    fn read(&self, text: &str) -> Result<ToolResult, String> {
        let result: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Ok(Ok(results::whole(&text_of(&result)?, self.tool.params.max_chars)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_no_model_can_be_offered_are_refused() {
        let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
        let fault = |tools: Value| check(tools.as_array().expect("a list")).err();
        assert_eq!(fault(json!([tool("a"), tool("b")])), None);
        for (wrong, said) in [
            (json!([]), "0 tools"),
            (json!([tool("a b")]), "which no model can call"),
            (json!([tool("a"), tool("a")]), "twice"),
            (json!([{"name": "a", "inputSchema": {"type": "string"}}]), "`inputSchema` of its tool `a`"),
            (json!([{"name": "a", "inputSchema": {"type": "object", "required": ["q"]}}]), "`inputSchema.required`"),
            (json!([{"name": "a", "description": 3}]), "is no text"),
        ] {
            let message = fault(wrong).unwrap_or_default();
            assert!(message.contains(said), "{message}");
        }
    }
}
