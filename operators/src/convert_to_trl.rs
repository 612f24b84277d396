//! `convert-to-trl`: converts rollouts to TRL's conversational layout.

use schemars::JsonSchema;
use searchmill_engine::operator::{Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError};
use serde::{Deserialize, Serialize};

use crate::conversion::kernel::{converter, ports};
use crate::conversion::trl::convert;

/// Converts each rollout to a row `{"messages": […], "tools": […]}` for TRL's trainers and chat templates: tool-call
/// arguments are objects, tools are a list. Reasoning, if kept, is in `reasoning_content`. The model's chat template
/// renders the text.
pub(crate) struct ConvertToTrl;

/// Parameters of `convert-to-trl`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct ConvertToTrlParams {
    /// Keep the model's reasoning (default: drop it).
    #[serde(default)]
    pub(crate) thinking: bool,
}

impl Operator for ConvertToTrl {
    type Params = ConvertToTrlParams;
    const NAME: &'static str = "convert-to-trl";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Converts rollouts to training rows in TRL's conversational layout.";
    const EXAMPLES: &'static [Example] = &[
        Example { title: "Without reasoning", yaml: "trl: {op: convert-to-trl, from: balanced}" },
        Example { title: "With reasoning", yaml: "trl: {op: convert-to-trl, from: balanced, with: {thinking: true}}" },
    ];

    fn declare(_params: &ConvertToTrlParams) -> Declaration {
        Declaration::pure(ports())
    }

    fn open(params: &ConvertToTrlParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        let thinking = params.thinking;
        Ok(converter("trl", Box::new(move |conversation| Ok(convert(conversation, thinking)))))
    }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use serde_json::json;

    use super::*;
    use crate::conversion::testing::{batches_change_nothing, rejects_broken_arguments, rows};

    #[test]
    fn calls_are_objects_and_tools_a_list() {
        let row = &rows(&entry::<ConvertToTrl>(), json!({"thinking": true}))[0];
        let call = r#"{"role": "assistant", "content": "", "reasoning_content": "I should search.", "tool_calls": [{"type": "function", "function": {"name": "search", "arguments": {"query": "title 0 é"}}}]}"#;
        assert!(row.contains(call), "{row}");
        assert!(row.contains(r#"{"role": "tool", "name": "search", "content": "Title 0\nAnswer 0 stands here."}"#));
        assert!(row.contains(r#""tools": [{"type": "function", "function": {"name": "search", "#));
        assert!(!rows(&entry::<ConvertToTrl>(), json!({}))[0].contains("reasoning"));
    }

    #[test]
    fn laws() {
        batches_change_nothing(&entry::<ConvertToTrl>());
        rejects_broken_arguments(&entry::<ConvertToTrl>());
    }
}
