//! Actions of a model, observations of the environment: the data of an episode as trainers send and read them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use searchmill_schemas::{Message, Role, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::serve::env::problem::Problem;

/// One message of the model.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SearchAction")]
pub(crate) struct Action {
    /// Text that the model wrote in this turn, without what the environment put before it.
    #[serde(alias = "content")]
    #[schemars(required)]
    pub(crate) message: Option<String>,
    /// Native tool calls, in the form of the chat API or as `{id, name, arguments}`.
    pub(crate) tool_calls: Option<Vec<Call>>,
    /// Reasoning, if the model's server returns it separately.
    #[serde(alias = "reasoning_content")]
    pub(crate) reasoning: Option<String>,
    /// Why the model stopped; `length` means that the message was cut off.
    pub(crate) finish_reason: Option<String>,
    /// Tokens of the prompt of this turn; needed by `max_total_tokens`.
    pub(crate) prompt_tokens: Option<i64>,
    /// Tokens that the model wrote in this turn.
    pub(crate) completion_tokens: Option<i64>,
    /// `assistant`, or absent.
    pub(crate) role: Option<String>,
    /// Ignored: OpenEnv's clients send it.
    #[serde(rename = "metadata")]
    _metadata: Option<Value>,
}

/// A native tool call.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(crate) struct Call {
    /// Id that the result refers to.
    pub(crate) id: Option<String>,
    /// Name of the tool.
    pub(crate) name: Option<String>,
    /// Arguments: an object, or its JSON text as the model wrote it.
    pub(crate) arguments: Option<Value>,
    /// Name and arguments, in the form of the chat API.
    pub(crate) function: Option<Function>,
}

/// Name and arguments of a call.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) arguments: Option<Value>,
}

impl Action {
    /// Returns the message of the model. `place` is the number of messages so far, for ids of calls without one.
    ///
    /// # Errors
    /// Fails if nothing was said, or the model did not say it.
    pub(crate) fn message(self, place: usize) -> Result<Message, Problem> {
        if self.role.as_deref().is_some_and(|role| role != Role::Assistant.name()) {
            return Err(Problem::bad("an action is a message of the model: `role` must be `assistant`"));
        }
        if self.message.is_none() && self.tool_calls.as_ref().is_none_or(Vec::is_empty) {
            return Err(Problem::bad("the action needs `message` (the model's text) or `tool_calls`"));
        }
        let mut message = Message::text(Role::Assistant, self.message.unwrap_or_default());
        for (number, call) in self.tool_calls.unwrap_or_default().into_iter().enumerate() {
            // The place makes the id unique in the episode, and gives a repeated step the same ids.
            message.tool_calls.push(call.read(format!("call_{place}_{number}"))?);
        }
        message.reasoning = self.reasoning;
        message.finish_reason = self.finish_reason;
        message.prompt_tokens = self.prompt_tokens;
        message.completion_tokens = self.completion_tokens;
        Ok(message)
    }
}

impl Call {
    fn read(self, id: String) -> Result<ToolCall, Problem> {
        let (name, arguments) = match self.function {
            Some(function) => (Some(function.name), function.arguments),
            None => (self.name, self.arguments),
        };
        let Some(name) = name else {
            return Err(Problem::bad("a tool call needs `name`, or `function` with `name`"));
        };
        // As text, whatever the model's server has parsed: the protocol reads them as the model wrote them.
        let arguments = match arguments {
            Some(Value::String(text)) => text,
            Some(value) => value.to_string(),
            None => "{}".to_owned(),
        };
        Ok(ToolCall { id: self.id.filter(|id| !id.is_empty()).unwrap_or(id), name, arguments })
    }
}

/// What the environment shows after a reset or a step.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "SearchObservation")]
pub(super) struct Observation {
    /// Id of the episode.
    pub(crate) episode_id: String,
    /// Id of its question.
    pub(crate) question_id: String,
    /// Its text.
    pub(crate) question: String,
    /// Messages that were added: the prompt after a reset, the results of tools after a step.
    pub(crate) messages: Vec<Shown>,
    /// Whether the model may search in its next message. Otherwise it must answer.
    pub(super) tools_offered: bool,
    /// After a reset: definitions of the tools, as the chat API takes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tools: Option<Value>,
    /// After a reset: whether tool messages continue the model's text instead of starting a new turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) one_text: Option<bool>,
    /// After a reset: texts that end a message of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop: Option<Vec<String>>,
    /// At the end: `answered`, `no_answer`, `length`, `invalid_action`, or the limit that ended the episode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finish_reason: Option<String>,
    /// At the end: the answer of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prediction: Option<String>,
    /// At the end: the parts of the reward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reward_parts: Option<BTreeMap<String, f64>>,
}

/// A message of the environment.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Shown {
    /// `system`, `user` or `tool`.
    pub(crate) role: String,
    /// Text of the message.
    pub(crate) content: String,
    /// Of a tool message: id of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_call_id: Option<String>,
    /// Of a tool message: ids of the chunks that it shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) chunk_ids: Vec<String>,
    /// Of a tool message: why the action was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl From<&Message> for Shown {
    fn from(message: &Message) -> Self {
        Self {
            role: message.role.clone(),
            content: message.content.clone(),
            tool_call_id: message.tool_call_id.clone(),
            chunk_ids: message.observations.iter().map(|seen| seen.chunk_id.clone()).collect(),
            error: message.error.clone(),
        }
    }
}

/// The outcome of a reset or a step.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Outcome {
    pub(super) observation: Observation,
    /// At the end: the reward, if the server has one.
    pub(crate) reward: Option<f64>,
    /// Whether the episode is over.
    pub(crate) done: bool,
}

/// The state of an episode.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "SearchState")]
pub(crate) struct State {
    /// Id of the episode; null before the first reset.
    pub(crate) episode_id: Option<String>,
    /// Steps so far.
    pub(super) step_count: u32,
    /// Id of the question.
    pub(crate) question_id: Option<String>,
    /// Whether the episode is over.
    pub(crate) done: bool,
    /// The reward of a finished episode.
    pub(crate) reward: Option<f64>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(action: Value) -> Result<Message, String> {
        let action: Action = serde_json::from_value(action).map_err(|error| error.to_string())?;
        action.message(3).map_err(|problem| problem.detail().to_owned())
    }

    #[test]
    fn calls_are_read_in_both_forms() {
        let calls = json!([
            {"id": "a", "type": "function", "function": {"name": "search", "arguments": "{\"query\": \"x\"}"}},
            {"name": "search", "arguments": {"query": "y"}}, {"id": "", "name": "search"}]);
        let read = message(json!({"content": null, "tool_calls": calls, "role": "assistant"})).unwrap();
        let read: Vec<_> = read
            .tool_calls
            .iter()
            .map(|call| (call.id.as_str(), call.name.as_str(), call.arguments.as_str()))
            .collect();
        assert_eq!(
            read,
            [
                ("a", "search", "{\"query\": \"x\"}"),
                ("call_3_1", "search", "{\"query\":\"y\"}"),
                ("call_3_2", "search", "{}")
            ]
        );
    }

    #[test]
    fn an_action_says_something_as_the_model() {
        for (action, about) in [
            (json!({}), "needs `message`"),
            (json!({"message": null, "tool_calls": []}), "needs `message`"),
            (json!({"message": "x", "role": "user"}), "must be `assistant`"),
            (json!({"text": "x"}), "unknown field `text`"),
            (json!({"tool_calls": [{"id": "a"}]}), "needs `name`"),
        ] {
            let told = message(action.clone()).expect_err("no message");
            assert!(told.contains(about), "{action}: {told}");
        }
        assert_eq!(message(json!({"message": ""})).unwrap().content, "");
    }
}
