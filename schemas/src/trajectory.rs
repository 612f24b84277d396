//! `trajectory`: one rollout with every message, tool call and observation.

use arrow::datatypes::{DataType, FieldRef};
use serde::{Deserialize, Serialize};

use crate::described::described;
use crate::question::{Evidence, evidence_type};
use crate::record::{Record, RecordKind, list_of, optional, required, struct_of};

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// One rollout: a question, the messages that followed, and what came of it.
    pub struct Trajectory {
        /// `<question_id>@<sample_index>`.
        pub id: String,
        /// The question.
        pub question_id: String,
        /// Which of the samples of this question, from 0.
        pub sample_index: i32,
        /// The question's text.
        pub question: String,
        /// The question's accepted answers.
        pub golden_answers: Vec<String>,
        /// The question's type.
        pub question_type: Option<String>,
        /// The question's gold evidence.
        pub evidence: Vec<Evidence>,
        /// Who answered: `endpoint`, `evidence`, `model`, `none`.
        pub policy: String,
        /// The model as the endpoint reported it.
        pub model: Option<String>,
        /// Tool-call or tag grammar (`tool_call`, …).
        pub protocol: String,
        /// Tool definitions offered to the model, as a JSON list.
        pub tools: String,
        /// Everything said, in order, the system prompt included.
        pub messages: Vec<Message>,
        /// The last model-authored text.
        pub answer: String,
        /// The answer extracted from it; empty when there is none.
        pub prediction: String,
        /// Turns: model calls made, what `max_turns` counts.
        pub turns: i32,
        /// Tool calls made.
        pub tool_calls: i32,
        /// Prompt tokens over all turns.
        pub prompt_tokens: i64,
        /// Completion tokens over all turns.
        pub completion_tokens: i64,
        /// Prompt tokens of the last turn.
        pub last_prompt_tokens: i64,
        /// Completion tokens of the last turn.
        pub last_completion_tokens: i64,
        /// Why it ended: `answered`, `no_answer`, `max_turns`, `max_searches`, `length`.
        pub finish_reason: String,
        /// The question's metadata (JSON object).
        pub metadata: Option<String>,
    }
}

/// Who wrote a message. Text of `Tool` messages comes from the environment and is never parsed as the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The pipeline's instructions.
    System,
    /// The question.
    User,
    /// The model.
    Assistant,
    /// The environment.
    Tool,
}

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// One message.
    pub struct Message {
        /// `system`, `user`, `assistant` or `tool`.
        pub role: String,
        /// Its text.
        pub content: String,
        /// The model's reasoning, where the endpoint returns it apart.
        pub reasoning: Option<String>,
        /// Tool calls asked for in this message.
        pub tool_calls: Vec<ToolCall>,
        /// For tool messages: the call answered.
        pub tool_call_id: Option<String>,
        /// For tool messages: the chunks that were shown.
        pub observations: Vec<Observation>,
        /// For tool messages: the error that was told to the model.
        pub error: Option<String>,
        /// Usage of this model call.
        pub prompt_tokens: Option<i64>,
        /// Usage of this model call.
        pub completion_tokens: Option<i64>,
        /// The endpoint's finish reason for this call.
        pub finish_reason: Option<String>,
    }
}

impl Message {
    /// A message of that role with that text and nothing else.
    #[must_use]
    pub fn text(role: Role, content: impl Into<String>) -> Self {
        Self {
            role: role.name().to_owned(),
            content: content.into(),
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            observations: Vec::new(),
            error: None,
            prompt_tokens: None,
            completion_tokens: None,
            finish_reason: None,
        }
    }

    /// Was it written by the model?
    #[must_use]
    pub fn is_model(&self) -> bool {
        self.role == Role::Assistant.name()
    }
}

impl Role {
    /// The name stored in rows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// A tool call asked for by the model.
    pub struct ToolCall {
        /// Id that the tool's answer refers to.
        pub id: String,
        /// Tool name.
        pub name: String,
        /// Arguments, as the JSON text that the model wrote.
        pub arguments: String,
    }
}

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// A chunk that a tool showed to the model.
    pub struct Observation {
        /// The chunk.
        pub chunk_id: String,
        /// Its document.
        pub document_id: String,
        /// Its document's title.
        pub title: Option<String>,
        /// Its fused score.
        pub score: f64,
    }
}

impl Record for Trajectory {
    const KIND: RecordKind = RecordKind::Trajectory;
}

fn message_type() -> DataType {
    let call = struct_of(vec![
        required("id", DataType::Utf8),
        required("name", DataType::Utf8),
        required("arguments", DataType::Utf8),
    ]);
    let observation = struct_of(vec![
        required("chunk_id", DataType::Utf8),
        required("document_id", DataType::Utf8),
        optional("title", DataType::Utf8),
        required("score", DataType::Float64),
    ]);
    struct_of(vec![
        required("role", DataType::Utf8),
        required("content", DataType::Utf8),
        optional("reasoning", DataType::Utf8),
        required("tool_calls", list_of(call)),
        optional("tool_call_id", DataType::Utf8),
        required("observations", list_of(observation)),
        optional("error", DataType::Utf8),
        optional("prompt_tokens", DataType::Int64),
        optional("completion_tokens", DataType::Int64),
        optional("finish_reason", DataType::Utf8),
    ])
}

pub(crate) fn fields() -> Vec<FieldRef> {
    vec![
        required("id", DataType::Utf8),
        required("question_id", DataType::Utf8),
        required("sample_index", DataType::Int32),
        required("question", DataType::Utf8),
        required("golden_answers", list_of(DataType::Utf8)),
        optional("question_type", DataType::Utf8),
        required("evidence", evidence_type()),
        required("policy", DataType::Utf8),
        optional("model", DataType::Utf8),
        required("protocol", DataType::Utf8),
        required("tools", DataType::Utf8),
        required("messages", list_of(message_type())),
        required("answer", DataType::Utf8),
        required("prediction", DataType::Utf8),
        required("turns", DataType::Int32),
        required("tool_calls", DataType::Int32),
        required("prompt_tokens", DataType::Int64),
        required("completion_tokens", DataType::Int64),
        required("last_prompt_tokens", DataType::Int64),
        required("last_completion_tokens", DataType::Int64),
        required("finish_reason", DataType::Utf8),
        optional("metadata", DataType::Utf8),
    ]
}
