//! `convert-to-sharegpt`: converts rollouts to the ShareGPT layout.

use schemars::JsonSchema;
use searchmill_engine::operator::{Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError};
use serde::{Deserialize, Serialize};

use crate::conversion::kernel::{converter, ports};
use crate::conversion::sharegpt::convert;

/// Converts each rollout to a row `{"conversations": […], "system": "…", "tools": "[…]"}` for LLaMA-Factory: human or
/// observation alternates with gpt or function_call. The layout cannot hold text before a tool call; such text is
/// dropped. Reasoning, if kept, is in `<think>` tags. Rollouts in which these do not alternate are rejected.
pub(crate) struct ConvertToSharegpt;

/// Parameters of `convert-to-sharegpt`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct ConvertToSharegptParams {
    /// Keep the model's reasoning (default: drop it).
    #[serde(default)]
    pub(crate) thinking: bool,
}

impl Operator for ConvertToSharegpt {
    type Params = ConvertToSharegptParams;
    const NAME: &'static str = "convert-to-sharegpt";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Converts rollouts to training rows in the ShareGPT layout.";
    const EXAMPLES: &'static [Example] = &[
        Example { title: "Without reasoning", yaml: "sharegpt: {op: convert-to-sharegpt, from: balanced}" },
        Example {
            title: "With reasoning",
            yaml: "sharegpt: {op: convert-to-sharegpt, from: balanced, with: {thinking: true}}",
        },
    ];

    fn declare(_params: &ConvertToSharegptParams) -> Declaration {
        Declaration::pure(ports())
    }

    fn open(params: &ConvertToSharegptParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        let thinking = params.thinking;
        Ok(converter("sharegpt", Box::new(move |conversation| convert(conversation, thinking))))
    }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use serde_json::json;

    use super::*;
    use crate::conversion::testing::{batches_change_nothing, rejects_broken_arguments, rows};

    #[test]
    fn turns_alternate_and_tools_are_bare_functions() {
        let row = &rows(&entry::<ConvertToSharegpt>(), json!({}))[0];
        let turns = concat!(
            r#"{"conversations": [{"from": "human", "value": "Question 0, naïve?"}, "#,
            r#"{"from": "function_call", "value": "{\"name\": \"search\", \"arguments\": {\"query\": \"title 0 é\"}}"}, "#,
            r#"{"from": "observation", "value": "Title 0\nAnswer 0 stands here."}, "#,
            r#"{"from": "gpt", "value": "<answer>Answer 0</answer>"}], "system": "Use the search tool.", "#,
            r#""tools": "[{\"name\": \"search\", "#,
        );
        assert!(row.starts_with(turns), "{row}");
        let thinking = &rows(&entry::<ConvertToSharegpt>(), json!({"thinking": true}))[0];
        assert!(thinking.contains(r#""value": "<think>\nI should search.\n</think>\n\n{\"name\""#), "{thinking}");
    }

    #[test]
    fn laws() {
        batches_change_nothing(&entry::<ConvertToSharegpt>());
        rejects_broken_arguments(&entry::<ConvertToSharegpt>());
    }
}
