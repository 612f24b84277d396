//! Messages of a chat, as clients send them. JSON `null` counts as absent.

use searchmill_models::inference::{Message, Said};
use serde::Deserialize;
use serde_json::Value;

use crate::serve::http::refusal::Refusal;

#[derive(Deserialize)]
pub(crate) struct Given {
    role: String,
    content: Option<Value>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<GivenCall>>,
    tool_call_id: Option<String>,
    function_call: Option<Value>,
    audio: Option<Value>,
}

#[derive(Deserialize)]
struct GivenCall {
    id: Option<String>,
    function: GivenFunction,
}

#[derive(Deserialize)]
struct GivenFunction {
    name: String,
    arguments: Option<Value>,
}

impl From<GivenCall> for Said {
    fn from(call: GivenCall) -> Self {
        let arguments = match call.function.arguments {
            None => "{}".to_owned(),
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
        };
        Self { id: call.id.unwrap_or_default(), name: call.function.name, arguments }
    }
}

/// Converts messages for the chat template.
pub(crate) fn messages(given: Vec<Given>) -> Result<Vec<Message>, Refusal> {
    if given.is_empty() {
        return Err(Refusal::value("messages", "there are no messages"));
    }
    given.into_iter().enumerate().map(|(place, given)| given.message(&format!("messages[{place}]"))).collect()
}

impl Given {
    fn message(self, path: &str) -> Result<Message, Refusal> {
        // Rejected, not ignored: the model would read another conversation than the client sent.
        for (name, part) in [("function_call", &self.function_call), ("audio", &self.audio)] {
            if part.is_some() {
                return Err(Refusal::unsupported(format!("{path}.{name}"), format!("`{name}` is not supported")));
            }
        }
        Ok(Message {
            role: role(self.role, path)?,
            content: content(self.content, path)?,
            reasoning: self.reasoning_content,
            calls: self.tool_calls.into_iter().flatten().map(Said::from).collect(),
            call_id: self.tool_call_id,
        })
    }
}

fn role(role: String, path: &str) -> Result<String, Refusal> {
    match role.as_str() {
        "system" | "user" | "assistant" | "tool" => Ok(role),
        // The API's newer name, which chat templates do not know.
        "developer" => Ok("system".to_owned()),
        _ => Err(Refusal::value(
            format!("{path}.role"),
            format!("unknown role `{role}`: expected system, developer, user, assistant or tool"),
        )),
    }
}

/// Returns a content's text: as it is, or in parts.
fn content(content: Option<Value>, path: &str) -> Result<String, Refusal> {
    match content {
        // An assistant message with nothing but calls has null content.
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text),
        Some(Value::Array(parts)) => {
            if let Some(text) = parts.iter().map(|part| part["text"].as_str()).collect() {
                return Ok(text);
            }
        }
        Some(_) => {}
    }
    Err(Refusal::value(format!("{path}.content"), "a message's content must be text, or parts of text"))
}
