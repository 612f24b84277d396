//! Protocols: how a model requests tools, sees their results, and marks its answer. A new protocol needs a file, and here
//! a `mod` line and a variant.

mod contract;
mod tool_call;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use contract::INSUFFICIENT;
pub use contract::{Action, Protocol, ProtocolSettings};
use tool_call::ToolCallProtocol;

/// How the model requests searches and marks its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProtocolName {
    /// Native tool calls of the chat API; the answer is between `<answer>` and `</answer>`.
    #[default]
    ToolCall,
}

impl ProtocolName {
    /// Opens the protocol with this name.
    pub fn open(self, settings: &ProtocolSettings<'_>) -> Arc<dyn Protocol> {
        match self {
            Self::ToolCall => Arc::new(ToolCallProtocol::new(settings)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_has_the_name_that_params_give_it() {
        let protocol: ProtocolName = serde_json::from_str("\"tool_call\"").expect("a protocol");
        assert_eq!(protocol.open(&ProtocolSettings::default()).name(), "tool_call");
    }
}
