//! Contract of a protocol.

use searchmill_schemas::Message;
use serde_json::Value;

use crate::tool::ToolResult;

/// Answer if the passages do not support any other.
pub(crate) const INSUFFICIENT: &str = "Insufficient Information";

/// Defines how a model requests tools, sees their results, and marks its answer. A protocol does no I/O and parses
/// only text that the model wrote.
pub trait Protocol: Send + Sync {
    /// Name recorded in trajectories.
    fn name(&self) -> &'static str;

    /// Messages before the model's first message.
    fn opening(&self, question: &str) -> Vec<Message>;

    /// Definitions of the tools offered to the model, as a JSON list.
    fn tools(&self) -> &str;

    /// Whether the model can search. A protocol whose calls are plain text defines no tools and decides this itself.
    fn searches(&self) -> bool {
        self.tools() != "[]"
    }

    /// Texts that end a message of the model, in addition to its end-of-turn token.
    fn stop(&self) -> &[String] {
        &[]
    }

    /// Returns the actions that a message of the model requests, in order.
    fn parse(&self, message: &Message) -> Vec<Action>;

    /// Returns the message that shows the model the result of an action.
    fn render(&self, action: &Action, result: ToolResult) -> Message;

    /// Returns the message that asks for the final answer, before the last turn.
    fn request_answer(&self) -> Message;

    /// Returns the final answer in a text of the model; empty if there is none.
    fn answer<'t>(&self, text: &'t str) -> &'t str;
}

/// Settings that a rollout passes to its protocol.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProtocolSettings<'a> {
    /// Name of the search tool; `None` offers no tool (closed book).
    pub tool: Option<&'a str>,
    /// First message of every conversation, instead of the protocol's own.
    pub system_prompt: Option<&'a str>,
    /// Search limit stated in the prompt.
    pub max_searches: Option<u32>,
}

/// A tool call requested by a message of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// Id that the result refers to.
    pub id: String,
    /// Tool name as the model wrote it.
    pub tool: String,
    /// The arguments (a JSON object), or an error for the model if the call must not run.
    pub arguments: Result<Value, String>,
}
