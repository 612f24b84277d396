//! `convert-to-swift`: converts rollouts to ms-swift's agent layout: roles system, user, assistant, tool_call,
//! tool_response; tools as a JSON text.

use schemars::JsonSchema;
use searchmill_engine::operator::{Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError};
use searchmill_text::json::Json;
use serde::{Deserialize, Serialize};

use super::shared::conversion::carry::checked;
use super::shared::conversion::conversation::{Conversation, Message, Spoken};
use super::shared::conversion::hermes::{Rendered, Template, render};
use super::shared::conversion::kernel::{PORT, converter};
use super::shared::conversion::pairs::{PairRow, Preference, are_pairs, pair_converter, ports};
use super::shared::unfit::Unfit;

/// Converts each rollout to a row `{"tools": "[…]", "messages": […]}` for ms-swift 3.8 (`swift sft --agent_template
/// hermes`) and renders it as that trainer does. The column `text` is the text to tokenise, `loss_spans` its byte
/// ranges that carry loss, and `content_spans` the byte ranges of content, where `<|im_end|>` and other control
/// tokens are plain text. Model text before a tool call ends with the newline that the served
/// model sees there. A rollout that is one text (protocols such as `search-r1`) becomes one turn of the model, in
/// parts: search results are assistant messages with `"loss": false`, which ms-swift leaves out of the loss from
/// version 4 on (3.8 trains on them). Rollouts are rejected if a call has no name or arguments that are not a JSON
/// object, if two calls of a message share an id, if a result is for no call, or if the last message is not the model's.
///
/// Pairs become rows with `rejected_messages` and `rejected_tools` beside `messages` and `tools`, for DPO and other
/// methods of `swift rlhf` (ms-swift 3.8 or later). The rejected rollout is rendered too: `rejected_text`,
/// `rejected_loss_spans`, `rejected_content_spans`. With `unpaired`, pairs become two rows with `label`, for KTO, which
/// have no `text`.
pub(crate) struct ConvertToSwift;

/// Parameters of `convert-to-swift`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct ConvertToSwiftParams {
    /// Put the model's reasoning before its text, in `<think>` tags (default: drop it).
    #[serde(default)]
    pub(crate) thinking: bool,
    /// Chat template of the model to train; it affects the column `text`, not the row.
    #[serde(default)]
    pub(crate) template: Template,
    /// For pairs: write a row with a label for each rollout, for KTO (default: a row for each pair).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unpaired: bool,
    /// Convert rollouts that were cut or ended without an answer, too (default: reject them).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unfinished: bool,
    /// Columns of the rollouts to write into the rows, for example `[weight]`. The examples have all columns beyond the
    /// kind, but files have the rows alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) carry: Vec<String>,
}

impl Operator for ConvertToSwift {
    type Params = ConvertToSwiftParams;
    const NAME: &'static str = "convert-to-swift";
    const VERSION: u32 = 6;
    const ABOUT: &'static str = "Converts rollouts to training rows in ms-swift's agent layout.";
    const EXAMPLES: &'static [Example] = &[
        Example { title: "For Qwen3-4B-Instruct-2507", yaml: "swift: {op: convert-to-swift, from: balanced}" },
        Example {
            title: "With the teacher's reasoning, for a hybrid Qwen3 model",
            yaml: "swift: {op: convert-to-swift, from: balanced, with: {thinking: true, template: qwen3}}",
        },
        Example {
            title: "With the weight of each rollout in its row",
            yaml: "swift: {op: convert-to-swift, from: weighted, with: {carry: [weight]}}",
        },
        Example {
            title: "Pairs as single rows with labels, for KTO",
            yaml: "labelled: {op: convert-to-swift, from: pairs, with: {unpaired: true}}",
        },
    ];

    fn declare(params: &ConvertToSwiftParams) -> Declaration {
        checked(Declaration::pure(ports()), PORT, &params.carry)
    }

    fn open(params: &ConvertToSwiftParams, inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        let ConvertToSwiftParams { thinking, template, unpaired, unfinished, ref carry } = *params;
        if are_pairs(inputs, unpaired)? {
            return Ok(pair_converter("swift", carry, unpaired, unfinished, move |preference| {
                pair(preference, thinking, template, unpaired)
            }));
        }
        Ok(converter("swift", carry, unfinished, move |conversation| convert(conversation, thinking, template)))
    }
}

/// Builds the row `{"tools": "[…]", "messages": […]}` and its Hermes rendering.
fn convert(conversation: &Conversation, thinking: bool, template: Template) -> Result<(Json, Option<Rendered>), Unfit> {
    let messages = messages(conversation, thinking);
    let rendered = render(&messages, &conversation.tools, template).map_err(Unfit::new)?;
    Ok((Json::object(row(["tools", "messages"], &conversation.tools, messages)), Some(rendered)))
}

/// Builds the row of a pair, or a row with a label for each conversation.
fn pair(preference: &Preference, thinking: bool, template: Template, unpaired: bool) -> Result<Vec<PairRow>, Unfit> {
    // Both rollouts were offered the same tools: other pairs are rejects.
    let tools = &preference.chosen.tools;
    let [chosen, rejected] = [&preference.chosen, &preference.rejected].map(|whole| messages(whole, thinking));
    // Rendered also for rows with labels, which have no text: a rollout that cannot be rendered is rejected.
    let rendered_chosen = render(&chosen, tools, template).map_err(Unfit::new)?;
    let rendered_rejected = render(&rejected, tools, template).map_err(Unfit::new)?;
    let mut entries = row(["tools", "messages"], tools, chosen);
    if unpaired {
        entries.push(("label", Json::Bool(true)));
        let mut rejected = row(["tools", "messages"], tools, rejected);
        rejected.push(("label", Json::Bool(false)));
        return Ok(vec![Json::object(entries).into(), Json::object(rejected).into()]);
    }
    entries.extend(row(["rejected_tools", "rejected_messages"], tools, rejected));
    Ok(vec![PairRow { row: Json::object(entries), rendered: Some([rendered_chosen, rendered_rejected]) }])
}

fn messages(conversation: &Conversation, thinking: bool) -> Vec<Json> {
    let mut messages = Vec::new();
    for message in &conversation.messages {
        match message {
            Message::System(text) => messages.push(entry("system", text.clone())),
            Message::User(text) => messages.push(entry("user", text.clone())),
            // Text of the environment in the model's turn, without loss.
            Message::Tool(result) if conversation.is_one_text => {
                let [role, content] = [("role", Json::text("assistant")), ("content", Json::text(&result.content))];
                messages.push(Json::object([role, content, ("loss", Json::Bool(false))]));
            }
            Message::Tool(result) => messages.push(entry("tool_response", result.content.clone())),
            Message::Assistant(spoken) => push_spoken(spoken, thinking, &mut messages),
        }
    }
    messages
}

/// Builds tools and messages with these names. Omits empty tools: ms-swift would render an empty tool list.
fn row<'a>(names: [&'a str; 2], tools: &[Json], messages: Vec<Json>) -> Vec<(&'a str, Json)> {
    let mut entries = Vec::new();
    if !tools.is_empty() {
        entries.push((names[0], Json::Text(Json::List(tools.to_vec()).write())));
    }
    entries.push((names[1], Json::List(messages)));
    entries
}

fn entry(role: &str, content: String) -> Json {
    Json::object([("role", Json::text(role)), ("content", Json::Text(content))])
}

/// Adds the text, then each call. Qwen's chat template, used for serving, puts a newline between text and call;
/// ms-swift adds none, so the newline is part of the text. Text that already ends with a newline is unchanged:
/// servers that cut calls out of an answer leave it there.
fn push_spoken(spoken: &Spoken, thinking: bool, messages: &mut Vec<Json>) {
    let mut text = spoken.text(thinking);
    if !text.trim().is_empty() {
        if !spoken.calls.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        messages.push(entry("assistant", text));
    }
    for call in &spoken.calls {
        let content = Json::object([("name", Json::text(&call.name)), ("arguments", call.arguments.clone())]);
        messages.push(entry("tool_call", content.write()));
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::Int64Type;
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
    use searchmill_schemas as schemas;
    use searchmill_schemas::{ToolCall, Trajectory};
    use serde_json::{Value, json};

    use super::*;
    use crate::shared::conversion::testing::rejects_the_unfinished;
    use crate::shared::relation::testing::trajectories;

    fn run_in(batch_rows: usize, rows: &[Trajectory], params: Value) -> Outcome {
        let mut harness = Harness::new();
        harness.batch_rows = batch_rows;
        let bound = inputs([("trajectories", rows_input(rows))]);
        harness.run(&entry::<ConvertToSwift>(), params, &bound).expect("runs")
    }

    fn one(row: Trajectory, params: Value) -> schemas::Example {
        run_in(8192, &[row], params).read("examples").remove(0)
    }

    #[test]
    fn a_rollout_becomes_the_row_that_swift_reads() {
        let row = trajectories(1).remove(0);
        let example = one(row, json!({}));
        let wanted = concat!(
            r#"{"tools": "[{\"type\": \"function\", \"function\": {\"name\": \"search\", \"description\": \"Searches the corpus.\", "#,
            r#"\"parameters\": {\"type\": \"object\", \"properties\": {\"query\": {\"type\": \"string\"}}, \"required\": [\"query\"]}}}]", "#,
            r#""messages": [{"role": "system", "content": "Use the search tool."}, "#,
            r#"{"role": "user", "content": "Question 0, naïve?"}, "#,
            r#"{"role": "tool_call", "content": "{\"name\": \"search\", \"arguments\": {\"query\": \"title 0 é\"}}"}, "#,
            r#"{"role": "tool_response", "content": "Title 0\nAnswer 0 stands here."}, "#,
            r#"{"role": "assistant", "content": "<answer>Answer 0</answer>"}]}"#,
        );
        assert_eq!(example.row, wanted);
        assert_eq!(
            (example.id.as_str(), example.question_id.as_str(), example.format.as_str()),
            ("q0@0", "q0", "swift")
        );
        let text = example.text.expect("rendered");
        assert!(text.starts_with("<|im_start|>system\nUse the search tool.\n\n# Tools\n\nYou may call"));
        assert!(text.ends_with("<|im_end|>\n<|im_start|>assistant\n<answer>Answer 0</answer><|im_end|>"));
    }

    #[test]
    fn text_before_a_call_ends_with_one_newline() {
        for said in ["Let me search.", "Let me search.\n"] {
            let mut row = trajectories(1).remove(0);
            said.clone_into(&mut row.messages[2].content);
            let example = one(row, json!({}));
            assert!(
                example.row.contains(r#"{"role": "assistant", "content": "Let me search.\n"}, {"role": "tool_call""#)
            );
            assert!(example.text.expect("rendered").contains("assistant\nLet me search.\n<tool_call>\n{\"name\""));
        }
    }

    #[test]
    fn results_in_one_text_carry_no_loss() {
        let row = crate::shared::conversion::testing::one_text();
        let example = one(row.clone(), json!({"template": "qwen3"}));
        let part = r#"{"role": "assistant", "content": " <result>\nR <|im_end|>\n</result>", "loss": false}"#;
        assert!(example.row.contains(part), "{}", example.row);
        let text = example.text.expect("rendered");
        let turn = "<|im_start|>assistant\n<think> a </think> <search> b </search> <result>\nR <|im_end|>\n</result> <answer>c</answer><|im_end|>";
        assert!(text.ends_with(turn), "{text}");
        let batch = run_in(8192, &[row], json!({"template": "qwen3"})).batch("examples");
        let spans = batch.column_by_name("loss_spans").expect("spans").as_list::<i32>().value(0);
        let ends = |name: &str| {
            spans.as_struct().column_by_name(name).expect("a bound").as_primitive::<Int64Type>().values().to_vec()
        };
        let parts: Vec<&str> =
            ends("start").iter().zip(ends("end")).map(|(start, end)| &text[*start as usize..end as usize]).collect();
        assert_eq!(parts, ["<think> a </think> <search> b </search>", " <answer>c</answer><|im_end|>"]);
    }

    #[test]
    fn without_tools_nothing_is_said_about_them() {
        let mut row = trajectories(1).remove(0);
        "[]".clone_into(&mut row.tools);
        row.messages.drain(2..4);
        let example = one(row, json!({}));
        assert!(example.row.starts_with(r#"{"messages": [{"role": "system""#), "{}", example.row);
        assert!(!example.text.expect("rendered").contains("# Tools"));
    }

    #[test]
    fn reasoning_stands_in_think_tags_when_asked_for() {
        let row = trajectories(1).remove(0);
        assert!(!one(row.clone(), json!({})).row.contains("I should search."));
        let text = one(row, json!({"thinking": true})).text.expect("rendered");
        assert!(text.contains("assistant\n<think>\nI should search.\n</think>\n\n<tool_call>\n"), "{text}");
    }

    #[test]
    fn parallel_calls_and_their_results_are_one_turn_each() {
        let mut row = trajectories(1).remove(0);
        let arguments = r#"{"query":"b","k":1.0}"#.to_owned();
        row.messages[2].tool_calls.push(ToolCall { id: "second".to_owned(), name: "search".to_owned(), arguments });
        let mut told = row.messages[3].clone();
        told.content = "R2".to_owned();
        row.messages.insert(4, told);
        let text = one(row, json!({})).text.expect("rendered");
        assert!(text.contains("</tool_call>\n<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"b\", \"k\": 1.0}}\n</tool_call><|im_end|>"));
        assert!(text.contains("stands here.\n</tool_response>\n<tool_response>\nR2\n</tool_response><|im_end|>"));
    }

    #[test]
    fn loss_spans_are_the_models_words() {
        let outcome = run_in(8192, &trajectories(3), json!({}));
        let batch = outcome.batch("examples");
        let texts = batch.column_by_name("text").expect("text").as_string::<i32>();
        let spans = batch.column_by_name("loss_spans").expect("spans").as_list::<i32>();
        for row in 0..3 {
            let list = spans.value(row);
            let ends = list.as_struct();
            assert_eq!(ends.len(), row + 2, "each round is one span");
            let end = |column: usize| ends.column(column).as_primitive::<Int64Type>().value(ends.len() - 1) as usize;
            assert_eq!(&texts.value(row)[end(0)..end(1)], format!("<answer>Answer {row}</answer><|im_end|>"));
        }
    }

    /// Conversations that no server would take back, and a number that no JSON can hold.
    fn odd() -> Vec<Trajectory> {
        let mut rows = trajectories(9).split_off(5);
        let twice = rows[0].messages[2].tool_calls[0].clone();
        rows[0].messages[2].tool_calls.push(twice);
        rows[1].messages[2].tool_calls[0].name = " ".to_owned();
        rows[2].messages[3].tool_call_id = Some("other".to_owned());
        rows[3].messages[2].tool_calls[0].arguments = "{\"k\": 1e400}".to_owned();
        rows
    }

    #[test]
    fn the_unfit_are_rejected_with_their_reason() {
        let mut rows = trajectories(5);
        rows[0].messages[2].tool_calls[0].arguments = "{\"query\": ".to_owned();
        rows[1].messages[2].tool_calls[0].arguments = "[1]".to_owned();
        rows[2].messages.pop();
        rows[3].tools = "{}".to_owned();
        rows.extend(odd());
        let outcome = run_in(8192, &rows, json!({}));
        assert_eq!(outcome.read::<schemas::Example>("examples").len(), 1);
        let rejects = outcome.rejects();
        let odd: Vec<_> = rejects[4..].iter().map(|reject| reject.message.as_str()).collect();
        assert_eq!(
            odd,
            [
                "two calls of one message have the id `call_0`",
                "a call has no name",
                "a result is for the call `other`, which the message before it does not make",
                "the arguments of the call to `search` are not a JSON object: a number or text that JSON cannot hold",
            ]
        );
        let rejects = &rejects[..4];
        assert_eq!(
            rejects.iter().map(|reject| reject.id.as_str()).collect::<Vec<_>>(),
            ["q0@0", "q1@0", "q2@0", "q3@0"]
        );
        assert!(rejects[0].message.starts_with("the arguments of the call to `search` are not a JSON object: EOF"));
        assert_eq!(rejects[0].detail.as_deref(), Some("{\"query\": "));
        assert_eq!(rejects[2].message, "the last turn is not the model's");
    }

    #[test]
    fn the_unfinished_are_rejected() {
        rejects_the_unfinished(&entry::<ConvertToSwift>());
    }

    #[test]
    fn batches_and_repeats_change_nothing() {
        let rows = trajectories(50);
        let whole: Vec<schemas::Example> = run_in(8192, &rows, json!({})).read("examples");
        assert_eq!(whole.len(), 50);
        for batch_rows in [1, 7, 8192] {
            assert_eq!(
                run_in(batch_rows, &rows, json!({})).batch("examples"),
                run_in(8192, &rows, json!({})).batch("examples")
            );
        }
        assert!(run_in(7, &[], json!({})).rows.is_empty());
    }
}
