//! The contract of a protocol.

use searchmill_schemas::Message;
use serde_json::Value;

use crate::tool::ToolResult;

/// How a model asks for tools, is shown what came of it, and marks its answer. A protocol does no I/O, and is given no text
/// to parse that the model did not write.
pub trait Protocol: Send + Sync {
    /// The name recorded in trajectories.
    fn name(&self) -> &'static str;

    /// The messages before the model's first one.
    fn opening(&self, question: &str) -> Vec<Message>;

    /// Definitions of the tools offered to the model, as a JSON list.
    fn tools(&self) -> &str;

    /// Texts that end a message of the model, beside its own end of turn.
    fn stop(&self) -> &[String] {
        &[]
    }

    /// The actions that a message of the model asks for, in order.
    fn parse(&self, message: &Message) -> Vec<Action>;

    /// The message that shows the model the result of an action.
    fn render(&self, action: &Action, result: ToolResult) -> Message;

    /// The message that asks for the final answer, before the last turn.
    fn request_answer(&self) -> Message;

    /// The final answer in a text of the model; empty if it gives none.
    fn answer<'t>(&self, text: &'t str) -> &'t str;
}

/// What a rollout lays down for its protocol.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProtocolSettings<'a> {
    /// Name of the search tool; without one no tool is offered (closed book).
    pub tool: Option<&'a str>,
    /// First message of every conversation, in place of the protocol's own.
    pub system_prompt: Option<&'a str>,
    /// Most searches, as the model is told.
    pub max_searches: Option<u32>,
}

/// A tool call that a message of the model asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// Id that the result refers to.
    pub id: String,
    /// Tool name, as the model wrote it.
    pub tool: String,
    /// The arguments (a JSON object), or why the call is not run, in words for the model.
    pub arguments: Result<Value, String>,
}
