//! Protocols: how a model requests tools, sees their results, and marks its answer. A new protocol needs a file, and here
//! a `mod` line and a variant.

mod contract;
mod definition;
mod offer;
mod passage;
mod query;
mod r1_searcher;
mod read_back;
mod research;
mod search_r1;
mod searchlm;
mod tags;
mod text;
#[cfg(test)]
mod text_tests;
mod tool_call;
mod tool_tags;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use contract::joined;
pub use contract::{Action, ChatFormat, Protocol, ProtocolSettings, QUESTION, Seen};
pub(crate) use contract::{INSUFFICIENT, PlainChat, Speech};
pub use definition::ToolDefinition;
pub use offer::{OfferedCall, ToolOffer};
use searchlm::SearchLmProtocol;
pub use searchlm::{Identifiers, SearchLmParams};
pub(crate) use tags::Tags;
pub use text::TextFormat;
use text::TextProtocol;
pub(crate) use text::braced;
use tool_call::ToolCallProtocol;
pub use tool_call::passages;

/// How the model requests searches and marks its answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProtocolParams {
    /// Native tool calls of the chat API; the answer is between `<answer>` and `</answer>`.
    #[default]
    #[serde(rename = "tool_call")]
    ToolCall,
    /// ReSearch: `<think>`, `<search>`, `<result>`, and `\boxed{}` between `<answer>` and `</answer>`.
    Research,
    /// R1-Searcher: keywords between `<|begin_of_query|>` and `<|end_of_query|>`, inside the thoughts.
    R1Searcher,
    /// Search-R1: `<think>`, `<search>`, `<information>`, `<answer>`.
    SearchR1,
    /// The Search-R1 reproduction with verl's tool: `<think>`, `<tool_call>`, `<tool_response>`, `<answer>`.
    ToolTags,
    /// SearchLM (ExSearch): a chat in turns with `<QUERY>`, `<SEARCH>`, `<FACT>` and `<FINAL>`. The model chooses among
    /// the passages of each search in a call of its own, which is no turn.
    #[serde(rename = "searchlm")]
    SearchLm(SearchLmParams),
    /// A text protocol from tags and templates of your own.
    Custom(Box<TextFormat>),
}

impl ProtocolParams {
    /// Opens the protocol.
    pub fn open(&self, settings: &ProtocolSettings<'_>) -> Arc<dyn Protocol> {
        match (self, self.text_format(settings.plain)) {
            (_, Some(format)) => Arc::new(TextProtocol::new(format, settings)),
            (Self::SearchLm(params), None) => Arc::new(SearchLmProtocol::new(params, settings)),
            (_, None) => Arc::new(ToolCallProtocol::new(settings)),
        }
    }

    /// Whether the whole rollout is one text, which also a base model can continue.
    pub fn is_one_text(&self) -> bool {
        self.text_format(false).is_some()
    }

    /// Returns what is wrong, with paths below the protocol.
    pub fn check(&self) -> Vec<(String, String)> {
        let (name, issues) = match self {
            Self::Custom(format) => ("custom", format.check()),
            Self::SearchLm(params) => ("searchlm", params.check()),
            _ => return Vec::new(),
        };
        issues.into_iter().map(|(path, message)| (format!("{name}.{path}"), message)).collect()
    }

    fn text_format(&self, plain: bool) -> Option<TextFormat> {
        match self {
            Self::ToolCall | Self::SearchLm(_) => None,
            Self::Research => Some(research::format(plain)),
            Self::R1Searcher => Some(r1_searcher::format(plain)),
            Self::SearchR1 => Some(search_r1::format()),
            Self::ToolTags => Some(tool_tags::format()),
            Self::Custom(format) => Some(format.as_ref().clone()),
        }
    }
}
