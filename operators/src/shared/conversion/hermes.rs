//! Hermes rendering of ms-swift 3.8 (Qwen2.5, Qwen3): turns agent messages and tools into the text to tokenise, with
//! the byte ranges that carry loss.
//!
//! Follows `modelscope/ms-swift` v3.8.2, `agent_template/hermes.py` and Qwen's ChatML templates. Rendering fails
//! where that trainer would fall back to ReAct (an answer with `Action:` and `Action Input:` before a tool result).
//! Messages of one turn with different `loss` keep it, as in ms-swift 4; 3.8 takes that of the first.

use std::ops::Range;

use schemars::JsonSchema;
use searchmill_text::json::Json;
use serde::{Deserialize, Serialize};

/// Text as the trainer tokenises it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// Byte ranges of `text` with loss: each answer of the model with its closing `<|im_end|>`.
    pub(crate) loss: Vec<Range<usize>>,
    /// Byte ranges of `text` that hold content: control tokens in them are plain text.
    pub(crate) content: Vec<Range<usize>>,
}

impl Rendered {
    fn push<const N: usize>(&mut self, parts: [&str; N]) {
        self.text.extend(parts);
    }

    fn push_content(&mut self, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        self.content.push(start..self.text.len());
    }
}

/// Model family whose chat template renders the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Template {
    /// Qwen3 instruct models without thinking (`qwen3_nothinking`): no default system prompt.
    #[default]
    Qwen3Nothinking,
    /// Qwen3 hybrid models (`qwen3`): answers without `<think>` get an empty thinking block.
    Qwen3,
    /// Qwen2.5: has a default system prompt.
    Qwen2_5,
    /// A base model that continued plain text (`api: completions`), for ms-swift's template `dummy`: the prompt, the
    /// model's text and `<|endoftext|>`, without markers of turns. Rollouts with a system message, tools or several turns
    /// of the user are rejected.
    Plain,
}

const START: &str = "<|im_start|>";
const END: &str = "<|im_end|>";
/// Ends a plain text of Qwen's base models.
const END_OF_TEXT: &str = "<|endoftext|>";
const EMPTY_THINKING: &str = "<think>\n\n</think>\n\n";
const QWEN2_5_SYSTEM: &str = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

impl Template {
    /// Returns what ends the model's turn.
    fn end(self) -> &'static str {
        if self == Self::Plain { END_OF_TEXT } else { END }
    }
}

/// Consecutive messages of the same side, merged.
struct Block {
    side: Side,
    text: String,
    /// Byte ranges of `text` with loss, adjacent ones merged.
    loss: Vec<Range<usize>>,
}

impl Block {
    fn push(&mut self, text: &str, loss: bool) {
        let start = self.text.len();
        self.text.push_str(text);
        if !loss {
            return;
        }
        match self.loss.last_mut() {
            Some(last) if last.end == start => last.end = self.text.len(),
            _ => self.loss.push(start..self.text.len()),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    User,
    Tools,
    Model,
}

/// Renders agent messages (`[{"role", "content"[, "loss"]}, …]`, roles system, user, assistant, tool_call and
/// tool_response or tool) and tool definitions.
///
/// # Errors
/// If a message cannot be rendered: unknown role, call without a name, or no answer to train on.
pub(crate) fn render(messages: &[Json], tools: &[Json], template: Template) -> Result<Rendered, String> {
    let (system, messages) = match messages {
        [first, rest @ ..] if role(first)? == "system" => (Some(content(first)?), rest),
        all => (None, all),
    };
    let blocks = merge(messages)?;
    let mut rendered = Rendered { text: String::new(), loss: Vec::new(), content: Vec::new() };
    if template == Template::Plain {
        let [prompt, answer] = blocks.as_slice() else { return Err(NOT_PLAIN.to_owned()) };
        if system.is_some() || !tools.is_empty() || [prompt.side, answer.side] != [Side::User, Side::Model] {
            return Err(NOT_PLAIN.to_owned());
        }
        rendered.push_content(&prompt.text);
        write_answer(answer, template, &mut rendered);
        return Ok(rendered);
    }
    let default = (template == Template::Qwen2_5).then_some(QWEN2_5_SYSTEM);
    if let Some(system) = system_text(system.or(default), tools) {
        rendered.push([START, "system\n"]);
        rendered.push_content(&system);
        rendered.push([END, "\n"]);
    }
    write_blocks(blocks, template, &mut rendered)?;
    Ok(rendered)
}

const NOT_PLAIN: &str = "a plain text has one prompt and then the model's text, without a system message or tools: \
    `template: plain` is for rollouts with `api: completions`";

fn role(message: &Json) -> Result<&str, String> {
    message.get("role").and_then(Json::as_text).ok_or_else(|| "a message has no role".to_owned())
}

fn content(message: &Json) -> Result<&str, String> {
    message.get("content").and_then(Json::as_text).ok_or_else(|| "a message has no content".to_owned())
}

fn merge(messages: &[Json]) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut previous = "";
    for message in messages {
        let role = role(message)?;
        let (side, text) = match role {
            "user" => (Side::User, content(message)?.to_owned()),
            "assistant" => (Side::Model, content(message)?.to_owned()),
            "tool_call" => (Side::Model, call_text(message)?),
            "tool" | "tool_response" => {
                (Side::Tools, format!("<tool_response>\n{}\n</tool_response>", content(message)?))
            }
            other => return Err(format!("the role `{other}` has no place in agent messages")),
        };
        let loss = role != "assistant" || message.get("loss") != Some(&Json::Bool(false));
        match blocks.last_mut() {
            // Calls and tool results are separated by newlines; everything else is joined without a separator.
            Some(last) if last.side == side => {
                let lines = side == Side::Tools || (role == "tool_call" && previous == "tool_call");
                last.push(if lines { "\n" } else { "" }, loss);
                last.push(&text, loss);
            }
            Some(last)
                if side == Side::Tools && last.text.contains("Action:") && last.text.contains("Action Input:") =>
            {
                return Err("an answer with `Action:` and `Action Input:` is taken for ReAct by ms-swift".to_owned());
            }
            _ => {
                let mut block = Block { side, text: String::new(), loss: Vec::new() };
                block.push(&text, loss);
                blocks.push(block);
            }
        }
        previous = role;
    }
    Ok(blocks)
}

fn call_text(message: &Json) -> Result<String, String> {
    fn line(content: Option<&Json>) -> Option<String> {
        let call = parsed(content?);
        let name = call.get("name")?.clone();
        // The first of the two that is there and not null.
        let mut arguments = ["arguments", "parameters"].into_iter().filter_map(|key| call.get(key));
        let arguments = parsed(arguments.find(|value| **value != Json::Null)?);
        Some(Json::object([("name", name), ("arguments", arguments)]).write())
    }
    match line(message.get("content")) {
        Some(line) => Ok(format!("<tool_call>\n{line}\n</tool_call>")),
        None => Err("the content of a tool_call must be JSON with `name` and `arguments`".to_owned()),
    }
}

/// Parses JSON text; returns any other value unchanged.
fn parsed(value: &Json) -> Json {
    match value.as_text().map(Json::parse) {
        Some(Ok(parsed)) => parsed,
        _ => value.clone(),
    }
}

fn system_text(system: Option<&str>, tools: &[Json]) -> Option<String> {
    if tools.is_empty() {
        return system.filter(|text| !text.is_empty()).map(str::to_owned);
    }
    let mut lines = Vec::with_capacity(tools.len());
    for tool in tools {
        let tool = parsed(tool);
        // Qwen's template shows tools in OpenAI's wrapper, so a bare function gets one.
        let is_bare = tool.get("type").is_none() && tool.get("function").is_none();
        let wrapped = if is_bare { Json::object([("type", Json::text("function")), ("function", tool)]) } else { tool };
        lines.push(wrapped.write());
    }
    Some(format!(
        "{}\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with \
         function signatures within <tools></tools> XML tags:\n<tools>\n{}\n</tools>\n\nFor each function call, return a \
         json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n\
         {{\"name\": <function-name>, \"arguments\": <args-json-object>}}\n</tool_call>",
        system.unwrap_or(""),
        lines.join("\n"),
    ))
}

fn write_blocks(blocks: Vec<Block>, template: Template, rendered: &mut Rendered) -> Result<(), String> {
    let count = blocks.len();
    if count == 0 {
        return Err("there are no messages".to_owned());
    }
    for (index, block) in blocks.into_iter().enumerate() {
        let is_answer = block.side == Side::Model;
        if is_answer != (index % 2 == 1) || (index + 1 == count && !is_answer) {
            return Err("questions or tool results and answers of the model must alternate, an answer last".to_owned());
        }
        if is_answer {
            write_answer(&block, template, rendered);
            // ms-swift separates turns by `<|im_end|>\n`, and ends the text with `<|im_end|>` alone.
            rendered.text.push_str(if index + 1 < count { "\n" } else { "" });
        } else {
            rendered.push([START, "user\n"]);
            rendered.push_content(&block.text);
            rendered.push([END, "\n", START, "assistant\n"]);
        }
    }
    Ok(())
}

fn write_answer(block: &Block, template: Template, rendered: &mut Rendered) {
    let start = rendered.text.len();
    if template == Template::Qwen3 && !block.text.starts_with("<think>") {
        rendered.text.push_str(EMPTY_THINKING);
    }
    let content = rendered.text.len();
    rendered.push_content(&block.text);
    let end = template.end();
    rendered.text.push_str(end);
    let mut loss: Vec<_> = block.loss.iter().map(|part| part.start + content..part.end + content).collect();
    // What the template puts before the answer, and the end of the turn, count with the parts beside them.
    if let Some(first) = loss.first_mut()
        && first.start == content
    {
        first.start = start;
    }
    if let Some(last) = loss.last_mut()
        && last.end + end.len() == rendered.text.len()
    {
        last.end = rendered.text.len();
    }
    rendered.loss.extend(loss);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<Json> {
        match Json::parse(text).expect("JSON") {
            Json::List(items) => items,
            other => panic!("a list, not {other:?}"),
        }
    }

    #[test]
    fn golden_vectors_of_ms_swift() {
        let lines = searchmill_fixtures::golden("hermes.jsonl");
        let mut count = 0;
        for line in lines.lines().filter(|line| !line.is_empty()) {
            let vector = Json::parse(line).expect("JSON");
            let part = |key: &str| list(&vector.get(key).expect("a part").write());
            let rendered = render(&part("messages"), &part("tools"), Template::default()).expect("renders");
            assert_eq!(Some(rendered.text.as_str()), vector.get("text").and_then(Json::as_text), "{line}");
            check_loss(&rendered);
            count += 1;
        }
        println!("{count} vectors");
        assert!(count >= 3);
    }

    /// Asserts that loss covers exactly the text from `<|im_start|>assistant\n` to the end of the next `<|im_end|>`.
    fn check_loss(rendered: &Rendered) {
        let opening = "<|im_start|>assistant\n";
        let wanted: Vec<_> = rendered
            .text
            .match_indices(opening)
            .map(|(at, _)| {
                let start = at + opening.len();
                start..start + rendered.text[start..].find(END).expect("an end") + END.len()
            })
            .collect();
        assert!(!wanted.is_empty());
        assert_eq!(rendered.loss, wanted);
    }

    #[test]
    fn templates_differ_in_system_and_thinking() {
        let messages = list(r#"[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]"#);
        let text = |template| render(&messages, &[], template).expect("renders").text;
        assert_eq!(
            text(Template::Qwen3Nothinking),
            "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>"
        );
        assert!(text(Template::Qwen3).ends_with("assistant\n<think>\n\n</think>\n\nA<|im_end|>"));
        let silent = list(
            r#"[{"role":"system","content":""},{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]"#,
        );
        let without = render(&silent, &[], Template::Qwen2_5).expect("renders").text;
        assert!(without.starts_with("<|im_start|>user"), "an empty system prompt is none, and no default either");
        assert!(text(Template::Qwen2_5).starts_with("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud."));
    }

    #[test]
    fn arguments_written_as_text_bare_tools_and_no_loss() {
        let messages = list(
            r#"[{"role":"user","content":"a"},{"role":"user","content":"b"},
                {"role":"tool_call","content":"{\"name\":\"f\",\"parameters\":\"{\\\"x\\\":1}\"}"},
                {"role":"tool","content":"r"},{"role":"assistant","content":"c","loss":false},
                {"role":"assistant","content":"d"}]"#,
        );
        let rendered = render(&messages, &list(r#"[{"name":"f"}]"#), Template::default()).expect("renders");
        assert!(rendered.text.contains("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n</tools>"));
        assert!(rendered.text.contains("user\nab<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>\n"));
        assert!(rendered.text[rendered.loss[0].clone()].ends_with("</tool_call><|im_end|>"));
        assert_eq!(&rendered.text[rendered.loss[1].clone()], "d<|im_end|>", "a part without loss");
        assert_eq!(rendered.loss.len(), 2);
        assert!(rendered.text.ends_with("assistant\ncd<|im_end|>"));
    }

    #[test]
    fn a_plain_text_has_no_markers() {
        let messages = list(
            r#"[{"role":"user","content":"Question: Q\nAssistant:"},{"role":"assistant","content":" <think>","loss":false},
                {"role":"assistant","content":" a <s>b</s>"},{"role":"assistant","content":" <r>c</r>","loss":false},
                {"role":"assistant","content":" d"}]"#,
        );
        let rendered = render(&messages, &[], Template::Plain).expect("renders");
        assert_eq!(rendered.text, "Question: Q\nAssistant: <think> a <s>b</s> <r>c</r> d<|endoftext|>");
        let learnt: Vec<_> = rendered.loss.iter().map(|part| &rendered.text[part.clone()]).collect();
        assert_eq!(learnt, [" a <s>b</s>", " d<|endoftext|>"]);
        for wrong in [
            r#"[{"role":"system","content":"S"},{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]"#,
            r#"[{"role":"user","content":"Q"},{"role":"assistant","content":"A"},{"role":"tool","content":"R"},{"role":"assistant","content":"B"}]"#,
        ] {
            assert!(render(&list(wrong), &[], Template::Plain).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_trained_on_is_an_error() {
        for wrong in [
            "[]",
            r#"[{"role":"user","content":"Q"}]"#,
            r#"[{"role":"assistant","content":"A"}]"#,
            r#"[{"role":"user","content":"Q"},{"role":"tool_call","content":"{}"}]"#,
            r#"[{"role":"user","content":"Q"},{"role":"robot","content":"A"}]"#,
            r#"[{"role":"user"},{"role":"assistant","content":"A"}]"#,
            r#"[{"role":"user","content":"Q"},{"role":"assistant","content":"Action: f\nAction Input: x"},{"role":"tool","content":"r"},{"role":"assistant","content":"A"}]"#,
        ] {
            assert!(render(&list(wrong), &[], Template::default()).is_err(), "{wrong}");
        }
    }
}
