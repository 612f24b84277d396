//! Tool calls in model output, in the format of Hermes models (Qwen2.5, Qwen3):
//! `<tool_call>\n{"name": …, "arguments": …}\n</tool_call>`. Pass only text that a model wrote.

use searchmill_text::thoughts;
use serde::Deserialize;
use serde_json::value::RawValue;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A parsed turn of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Speech {
    /// Text outside of calls and reasoning.
    pub content: String,
    /// Text between `<think>` and `</think>`, or after an unclosed `<think>`.
    pub reasoning: Option<String>,
    /// Everything but the reasoning, with calls as written.
    pub said: String,
    /// Name and arguments (JSON as written) of each call.
    pub calls: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Call<'a> {
    name: String,
    #[serde(borrow, alias = "parameters", default)]
    arguments: Option<&'a RawValue>,
}

/// Parses reasoning and calls in a model's text. An invalid call becomes a call of `fallback` (the offered tool) with its text
/// as arguments, so that the tool's answer reports the mistake to the model.
pub fn parse_calls(text: &str, fallback: &str) -> Speech {
    let mut speech = Speech::default();
    let split = thoughts::split(text);
    let thought: Vec<&str> = split.thought.iter().map(|part| part.trim()).filter(|part| !part.is_empty()).collect();
    speech.reasoning = Some(thought.join("\n")).filter(|thought| !thought.is_empty());
    let said = split.said.concat();
    // Calls of a thought are none: only what was said is searched.
    let mut rest = said.as_str();
    let mut content = String::new();
    while let Some((before, after)) = rest.split_once(OPEN) {
        content.push_str(before);
        // A turn that was cut off has no end tag.
        let (call, next) = after.split_once(CLOSE).unwrap_or((after, ""));
        speech.calls.push(read(call.trim(), fallback));
        rest = next;
    }
    content.push_str(rest);
    content.trim().clone_into(&mut speech.content);
    said.trim_start().clone_into(&mut speech.said);
    speech
}

fn read(call: &str, fallback: &str) -> (String, String) {
    let Ok(read) = serde_json::from_str::<Call<'_>>(call) else { return (fallback.to_owned(), call.to_owned()) };
    let arguments = read.arguments.map_or("{}", RawValue::get);
    // Some models write the arguments as a JSON string.
    let inner = serde_json::from_str::<String>(arguments);
    (read.name, inner.unwrap_or_else(|_| arguments.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(text: &str) -> Vec<(String, String)> {
        parse_calls(text, "search").calls
    }

    fn call(name: &str, arguments: &str) -> (String, String) {
        (name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn calls_are_taken_out_of_the_text() {
        let text = "I look it up.\n<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"a  b\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"other\", \"parameters\": {}}\n</tool_call>";
        let speech = parse_calls(text, "search");
        assert_eq!(speech.content, "I look it up.");
        assert_eq!(speech.calls, [call("search", "{\"query\": \"a  b\"}"), call("other", "{}")]);
        assert_eq!(parse_calls(" <answer>x</answer> ", "search").content, "<answer>x</answer>");
    }

    #[test]
    fn unfinished_and_unreadable_calls_stay_calls() {
        assert_eq!(
            calls("<tool_call>{\"name\": \"search\", \"arguments\": {\"query\": \"x\"}}"),
            [call("search", "{\"query\": \"x\"}")]
        );
        assert_eq!(calls("<tool_call>{\"name\": \"sea"), [call("search", "{\"name\": \"sea")]);
        assert_eq!(
            calls("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"q\\\": 1}\"}</tool_call>"),
            [call("f", "{\"q\": 1}")]
        );
        assert_eq!(calls("<tool_call>{\"name\": \"f\"}</tool_call>"), [call("f", "{}")]);
    }

    #[test]
    fn thoughts_are_apart() {
        let speech = parse_calls("<think>\nHm <tool_call>no</tool_call>\n</think>\n\nYes", "search");
        assert_eq!(
            (speech.content.as_str(), speech.reasoning.as_deref()),
            ("Yes", Some("Hm <tool_call>no</tool_call>"))
        );
        assert!(speech.calls.is_empty());
        assert_eq!(parse_calls("<think>\n\n</think>\n\nYes", "search").reasoning, None);
        let speech =
            parse_calls("So. <think>maybe <answer>X</answer> <tool_call>{\"name\": \"f\"}</tool_call>", "search");
        assert_eq!((speech.content.as_str(), speech.calls.len()), ("So.", 0), "unclosed reasoning is not content");
        assert!(speech.reasoning.is_some_and(|thought| thought.starts_with("maybe")));
    }
}
