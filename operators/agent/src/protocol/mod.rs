//! Protocols: how a model asks for a search, is shown what was found, and marks its answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub mod tool_call;

/// How the model asks for searches and marks its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProtocolName {
    /// The chat API's own tool calls; the answer stands between `<answer>` and `</answer>`.
    #[default]
    ToolCall,
}

impl ProtocolName {
    /// The name recorded in trajectories.
    pub fn name(self) -> &'static str {
        match self {
            Self::ToolCall => "tool_call",
        }
    }
}
