//! `convert-to-openai`: converts rollouts to OpenAI's chat fine-tuning layout.

use schemars::JsonSchema;
use searchmill_engine::operator::{Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError};
use serde::{Deserialize, Serialize};

use crate::conversion::kernel::{converter, ports};
use crate::conversion::openai::convert;

/// Converts each rollout to a row `{"messages": […], "tools": […]}` for OpenAI fine-tuning and most trainers: tool
/// calls have ids, and arguments as JSON text. Reasoning, if kept, is in `<think>` tags before the text.
pub(crate) struct ConvertToOpenai;

/// Parameters of `convert-to-openai`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct ConvertToOpenaiParams {
    /// Keep the model's reasoning (default: drop it).
    #[serde(default)]
    pub(crate) thinking: bool,
}

impl Operator for ConvertToOpenai {
    type Params = ConvertToOpenaiParams;
    const NAME: &'static str = "convert-to-openai";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Converts rollouts to training rows in OpenAI's chat fine-tuning layout.";
    const EXAMPLES: &'static [Example] = &[
        Example { title: "Without reasoning", yaml: "openai: {op: convert-to-openai, from: balanced}" },
        Example {
            title: "With reasoning",
            yaml: "openai: {op: convert-to-openai, from: balanced, with: {thinking: true}}",
        },
    ];

    fn declare(_params: &ConvertToOpenaiParams) -> Declaration {
        Declaration::pure(ports())
    }

    fn open(params: &ConvertToOpenaiParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        let thinking = params.thinking;
        Ok(converter("openai", Box::new(move |conversation| Ok(convert(conversation, thinking)))))
    }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use serde_json::json;

    use super::*;
    use crate::conversion::testing::{batches_change_nothing, rejects_broken_arguments, rows};

    #[test]
    fn calls_have_ids_and_arguments_as_text() {
        let row = &rows(&entry::<ConvertToOpenai>(), json!({}))[0];
        let call = r#"{"role": "assistant", "content": null, "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "search", "arguments": "{\"query\": \"title 0 é\"}"}}]}"#;
        assert!(row.contains(call), "{row}");
        assert!(
            row.contains(r#"{"role": "tool", "tool_call_id": "call_0", "content": "Title 0\nAnswer 0 stands here."}"#)
        );
        let thinking = &rows(&entry::<ConvertToOpenai>(), json!({"thinking": true}))[0];
        assert!(
            thinking.contains(r#""content": "<think>\nI should search.\n</think>\n\n", "tool_calls""#),
            "{thinking}"
        );
    }

    #[test]
    fn laws() {
        batches_change_nothing(&entry::<ConvertToOpenai>());
        rejects_broken_arguments(&entry::<ConvertToOpenai>());
    }
}
