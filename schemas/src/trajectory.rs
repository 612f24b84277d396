//! `trajectory`: one rollout with every message, tool call and observation.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::named;
use crate::question::Evidence;

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// One rollout: a question, the conversation, and its outcome.
    pub struct Trajectory {
        /// `<question_id>@<sample_index>`.
        pub id: String,
        /// Id of the question.
        pub question_id: String,
        /// Number of the sample of this question, from 0.
        pub sample_index: i32,
        /// The question's text.
        pub question: String,
        /// The question's accepted answers.
        pub golden_answers: Vec<String>,
        /// The question's type.
        pub question_type: Option<String>,
        /// The question's gold evidence.
        pub evidence: Vec<Evidence>,
        /// Policy that answered: `endpoint`, `evidence`, `model`, `none`; `external` if read from another system's file.
        pub policy: String,
        /// Model name reported by the endpoint.
        pub model: Option<String>,
        /// Tool-call or tag grammar (`tool_call`, …).
        pub protocol: String,
        /// Tool definitions offered to the model, as a JSON list.
        pub tools: String,
        /// All messages in order, including the system prompt.
        pub messages: Vec<Message>,
        /// Last text written by the model.
        pub answer: String,
        /// Answer extracted from it; empty if there is none.
        pub prediction: String,
        /// Number of turns: model calls, as limited by `max_turns`.
        pub turns: i32,
        /// Number of tool calls.
        pub tool_calls: i32,
        /// Prompt tokens over all turns.
        pub prompt_tokens: i64,
        /// Completion tokens over all turns.
        pub completion_tokens: i64,
        /// Prompt tokens of the last turn.
        pub last_prompt_tokens: i64,
        /// Completion tokens of the last turn.
        pub last_completion_tokens: i64,
        /// Reason for the end: `answered`, `no_answer`, the limit that ended it (`max_turns`, `max_searches`,
        /// `max_total_tokens`, `invalid_action`), or `length`: the last turn was cut at its own limit (`max_tokens`, the
        /// model's context).
        pub finish_reason: String,
        /// The question's metadata (JSON object).
        pub metadata: Option<String>,
    }
}

impl Trajectory {
    /// Whether the protocol writes its searches as text in the model's turn (`search-r1`, …).
    pub fn is_of_text_protocol(&self) -> bool {
        self.protocol != "tool_call" && self.tools == "[]"
    }

    /// Whether tool messages continue the model's turn.
    pub fn is_one_text(&self) -> bool {
        let is_text = self.is_of_text_protocol() && !self.is_in_turns();
        is_text && self.messages.iter().any(|message| message.role == Role::Tool.name())
    }

    /// Whether the model read results as messages of the user, in a chat without tools (`searchlm`).
    pub fn is_in_turns(&self) -> bool {
        self.protocol == "searchlm"
    }

    /// Returns the conversation as the model read it.
    pub fn conversation(&self) -> Cow<'_, [Message]> {
        if self.is_in_turns() { Cow::Owned(in_turns(&self.messages)) } else { Cow::Borrowed(&self.messages) }
    }

    /// Returns the asides of the conversation: a request and the model's reply.
    pub fn asides(&self) -> impl Iterator<Item = [Message; 2]> {
        let is_aside =
            |pair: &&[Message]| pair.iter().all(Message::is_aside) && !pair[0].is_model() && pair[1].is_model();
        let pairs = self.messages.windows(2).filter(|_| self.is_in_turns()).filter(is_aside);
        pairs.map(|pair| [pair[0].plain(Role::User), pair[1].plain(Role::Assistant)])
    }
}

/// Returns the messages of a chat without tools: results are the user's, neighbouring messages of the user are one, and
/// asides are left out.
pub fn in_turns(messages: &[Message]) -> Vec<Message> {
    let mut turns: Vec<Message> = Vec::with_capacity(messages.len());
    let user = Role::User.name();
    for message in messages.iter().filter(|message| !message.is_aside()) {
        let told = message.role == user || message.role == Role::Tool.name();
        match turns.last_mut() {
            // Many chat templates refuse two messages of one role in a row.
            Some(last) if told && last.role == user => {
                last.content.push('\n');
                last.content.push_str(&message.content);
            }
            _ if told => turns.push(message.plain(Role::User)),
            _ => turns.push(message.clone()),
        }
    }
    turns
}

named! {
    /// Author of a message. Text of `Tool` messages comes from the environment and is never parsed as the model's.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Role {
        /// The pipeline's instructions.
        System = "system",
        /// The question.
        User = "user",
        /// The model.
        Assistant = "assistant",
        /// The environment.
        Tool = "tool",
    }
}

described! {
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    /// One message.
    pub struct Message {
        /// `system`, `user`, `assistant` or `tool`.
        pub role: String,
        /// Text of the message.
        pub content: String,
        /// The model's reasoning, if the endpoint returns it separately.
        pub reasoning: Option<String>,
        /// Tool calls requested in this message.
        pub tool_calls: Vec<ToolCall>,
        /// For tool messages: id of the call.
        pub tool_call_id: Option<String>,
        /// For tool messages: the chunks shown.
        pub observations: Vec<Observation>,
        /// For tool messages: the error shown to the model.
        pub error: Option<String>,
        /// Prompt tokens of this model call.
        pub prompt_tokens: Option<i64>,
        /// Completion tokens of this model call.
        pub completion_tokens: Option<i64>,
        /// Finish reason of this call, as reported by the endpoint.
        pub finish_reason: Option<String>,
    }
}

impl Message {
    /// Creates a message with this role and text; all other fields are empty.
    pub fn text(role: Role, content: impl Into<String>) -> Self {
        Self { role: role.name().to_owned(), content: content.into(), ..Self::default() }
    }

    /// Whether the message belongs to the prompt: the pipeline's instructions or the question.
    pub fn is_opening(&self) -> bool {
        self.role == Role::System.name() || self.role == Role::User.name()
    }

    /// Whether the message belongs to an aside: a request about the results of a call, or the model's reply to it, which
    /// the conversation does not contain. It names the call, as otherwise only tool messages do.
    pub fn is_aside(&self) -> bool {
        self.tool_call_id.is_some() && self.role != Role::Tool.name()
    }

    /// Returns the text of the message as one of this role.
    #[must_use]
    pub fn plain(&self, role: Role) -> Self {
        Self::text(role, self.content.clone())
    }

    /// Whether the limit of tokens cut the message.
    pub fn is_cut(&self) -> bool {
        // OpenAI's word; those that proxies pass on from Anthropic, Gemini and Mistral.
        const CUT: [&str; 4] = ["length", "max_tokens", "max_output_tokens", "model_length"];
        self.finish_reason.as_ref().is_some_and(|reason| CUT.iter().any(|cut| cut.eq_ignore_ascii_case(reason)))
    }

    /// Whether the model wrote the message.
    pub fn is_model(&self) -> bool {
        self.role == Role::Assistant.name()
    }
}

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// A tool call requested by the model.
    pub struct ToolCall {
        /// Id that the tool's response refers to.
        pub id: String,
        /// Tool name.
        pub name: String,
        /// Arguments: the JSON text written by the model.
        pub arguments: String,
    }
}

impl ToolCall {
    /// The arguments as JSON. Empty text means no arguments: some servers send it.
    pub fn written(&self) -> &str {
        if self.arguments.trim().is_empty() { "{}" } else { &self.arguments }
    }
}

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// A chunk that a tool showed to the model.
    pub struct Observation {
        /// Id of the chunk.
        pub chunk_id: String,
        /// Id of its document.
        pub document_id: String,
        /// Title of its document.
        pub title: Option<String>,
        /// Fused score of the chunk.
        pub score: f64,
    }
}
