//! The protocols by name.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::contract::{Protocol, ProtocolSettings};
use super::tool_call::ToolCallProtocol;

macro_rules! protocols {
    ($($(#[$attribute:meta])+ $name:ident => $open:path,)+) => {
        /// How the model asks for searches and marks its answer.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ProtocolName {
            $($(#[$attribute])+ $name,)+
        }

        impl ProtocolName {
            /// The protocol of that name.
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
    /// The chat API's own tool calls; the answer stands between `<answer>` and `</answer>`.
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
