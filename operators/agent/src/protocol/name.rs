//! Protocol names.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::contract::{Protocol, ProtocolSettings};
use super::tool_call::ToolCallProtocol;

macro_rules! protocols {
    ($($(#[$attribute:meta])+ $name:ident => $open:path,)+) => {
        /// How the model requests searches and marks its answer.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ProtocolName {
            $($(#[$attribute])+ $name,)+
        }

        impl ProtocolName {
            /// Opens the protocol with this name.
            #[must_use]
            pub fn open(self, settings: &ProtocolSettings<'_>) -> Arc<dyn Protocol> {
                match self {
                    $(Self::$name => Arc::new($open(settings)),)+
                }
            }
        }
    };
}

protocols! {
    /// Native tool calls of the chat API; the answer is between `<answer>` and `</answer>`.
    #[default]
    ToolCall => ToolCallProtocol::new,
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
