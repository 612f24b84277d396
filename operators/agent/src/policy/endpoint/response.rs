//! Answers of the model, read from what servers write, and their conversion to messages. Tolerates differences between
//! servers: content as text or parts, reasoning under two names, arguments as text or object, missing usage or ids.

use std::borrow::Cow;
use std::collections::BTreeSet;

use searchmill_engine::operator::{Redactor, Usage};
use searchmill_schemas::{Message, Role, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::usage;
use super::lenient_json::{completed, parse};
use super::tokens::WireTokens;
use super::wire::{Completion, TokenUsage, WireCall, WireMessage, error_message, present, reason, text};

/// How often arguments may be encoded as text within text.
const MOST_ENCODINGS: usize = 4;

/// Finish reasons of answers that the server gave up: vLLM and SGLang, OpenRouter.
const GIVEN_UP: [&str; 2] = ["abort", "error"];

/// An answer of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Heard {
    /// The model name reported by the endpoint.
    pub(super) model: Option<String>,
    message: WireMessage,
    #[serde(default)]
    usage: TokenUsage,
    #[serde(default, deserialize_with = "reason")]
    finish_reason: Option<String>,
    /// What ended the answer: the stop text, `Null` for the end-of-turn token; `None` if the server does not report it.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub(super) stop_reason: Option<Value>,
    /// Its tokens, if the server reports them and they hold no secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tokens: Option<WireTokens>,
    /// Whether its tokens were dropped because they hold a secret.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) withheld: bool,
}

impl Heard {
    /// Creates an answer from a message and its metadata.
    pub(super) fn new(
        mut message: WireMessage,
        model: Option<String>,
        usage: Option<TokenUsage>,
        finish_reason: Option<String>,
    ) -> Self {
        // One text each: a secret or half a character may be spread over several parts.
        if let Some(parts) = message.content.as_ref().filter(|content| !content.is_string()) {
            let whole = text(parts);
            // First: the joined content has no parts that could be thoughts.
            message.reasoning_content = message.thought();
            message.content = Some(Value::String(whole));
        }
        if let Some(Value::String(text)) = &mut message.content {
            completed(text);
        }
        let thoughts = [&mut message.refusal, &mut message.reasoning_content, &mut message.reasoning];
        thoughts.into_iter().flatten().for_each(completed);
        for call in &mut message.tool_calls {
            [&mut call.id, &mut call.name, &mut call.arguments].into_iter().flatten().for_each(completed);
        }
        let usage = usage.unwrap_or_default();
        Self { model, message, usage, finish_reason, stop_reason: None, tokens: None, withheld: false }
    }

    /// Returns the answer, unless the server gave it up.
    ///
    /// # Errors
    /// What the server reports.
    pub(super) fn unless_given_up(self) -> Result<Self, String> {
        match self.finish_reason.as_deref().filter(|reason| GIVEN_UP.contains(reason)) {
            Some(reason) => Err(format!("the server ended the answer early (`finish_reason`: `{reason}`)")),
            None => Ok(self),
        }
    }

    /// Converts the answer to a message.
    pub(super) fn message(&self) -> Message {
        let mut said = self.message.clone();
        // A refusal stands in a field of its own, beside an empty content (OpenAI).
        let content = said.content.as_ref().map(text).filter(|text| !text.is_empty()).or(said.refusal.take());
        let mut message = Message::text(Role::Assistant, content.unwrap_or_default());
        message.reasoning = said.thought();
        message.tool_calls = tool_calls(said.tool_calls);
        message.prompt_tokens = self.usage.prompt_tokens;
        message.completion_tokens = self.usage.completion_tokens;
        message.finish_reason.clone_from(&self.finish_reason);
        message
    }

    /// Usage of the call, without retries.
    pub(super) fn usage(&self) -> Usage {
        usage(1, self.usage.prompt_tokens, self.usage.completion_tokens)
    }

    /// Removes secrets from its texts.
    pub(super) fn clean(&mut self, redactor: &Redactor) {
        if redactor.is_empty() {
            return;
        }
        // Compared below; without tokens nothing has to be withheld.
        let before = self.tokens.is_some().then(|| self.message.clone());
        redactor.clean_all(self.model.iter_mut().chain(&mut self.finish_reason));
        self.stop_reason.iter_mut().for_each(|reason| clean(reason, redactor));
        let message = &mut self.message;
        let texts = [&mut message.refusal, &mut message.reasoning_content, &mut message.reasoning];
        redactor.clean_all(texts.into_iter().flatten());
        for call in &mut message.tool_calls {
            redactor.clean_all([&mut call.id, &mut call.name].into_iter().flatten());
            call.arguments.iter_mut().for_each(|arguments| clean_arguments(arguments, redactor));
        }
        message.content.iter_mut().for_each(|content| clean(content, redactor));
        // The tokens of a secret are the secret.
        if before.is_some_and(|before| before != self.message) {
            (self.tokens, self.withheld) = (None, true);
        }
    }
}

/// Arguments without secrets stay JSON if they were.
fn clean_arguments(arguments: &mut String, redactor: &Redactor) {
    let Cow::Owned(struck) = redactor.strike(arguments) else { return };
    *arguments = match serde_json::from_str::<Value>(arguments) {
        Ok(mut value) => {
            clean(&mut value, redactor);
            value.to_string()
        }
        Err(_) => struck,
    };
}

fn clean(value: &mut Value, redactor: &Redactor) {
    match value {
        Value::String(text) => redactor.clean(text),
        Value::Array(items) => items.iter_mut().for_each(|item| clean(item, redactor)),
        Value::Object(map) => {
            let cleaned = std::mem::take(map).into_iter().map(|(mut key, mut item)| {
                redactor.clean(&mut key);
                clean(&mut item, redactor);
                (key, item)
            });
            *map = cleaned.collect();
        }
        Value::Number(number) => {
            // A secret of digits alone may be written as a number.
            if let Cow::Owned(struck) = redactor.strike(&number.to_string()) {
                *value = Value::String(struck);
            }
        }
        Value::Bool(_) | Value::Null => {}
    }
}

/// Removes secrets from the texts of a message: joined texts may contain a secret that no part contained.
pub(super) fn clean_message(message: &mut Message, redactor: &Redactor) {
    if !redactor.is_empty() {
        let Message { content, reasoning, finish_reason, tool_calls, .. } = message;
        redactor.clean_all(std::iter::once(content).chain(reasoning).chain(finish_reason));
        redactor.clean_all(tool_calls.iter_mut().flat_map(|call| [&mut call.id, &mut call.name, &mut call.arguments]));
    }
}

/// Parses a whole answer.
///
/// # Errors
/// If it contains no message.
pub(super) fn read(body: &[u8]) -> Result<Heard, String> {
    let completion: Completion =
        parse(body).map_err(|error| format!("the response is not a chat completion: {error}"))?;
    if let Some(error) = &completion.error {
        return Err(format!("the response is an error: {}", error_message(error)));
    }
    // No request asks for more than one choice (`n`).
    let choice = completion.choices.and_then(|choices| choices.into_iter().next());
    let mut choice = choice.ok_or("the response has no choices")?;
    let stop_reason = choice.stopped_by();
    let mut tokens = WireTokens::default();
    choice.tokens(completion.prompt_token_ids, &mut tokens);
    let message = match choice.text {
        Some(text) => Some(WireMessage { content: Some(Value::String(text)), ..WireMessage::default() }),
        None => choice.message.or(choice.delta),
    };
    let message = message.ok_or("the response's choice has no message and no text")?;
    let heard = Heard::new(message, completion.model, completion.usage, choice.finish_reason);
    Heard { stop_reason, tokens: tokens.reported(), ..heard }.unless_given_up()
}

/// Converts calls. Each gets an id of its own: results are told apart by it.
fn tool_calls(calls: Vec<WireCall>) -> Vec<ToolCall> {
    let mut ids = BTreeSet::new();
    let mut converted = Vec::with_capacity(calls.len());
    for (index, call) in calls.into_iter().enumerate() {
        // Some servers send no ids, or one id for all calls.
        let named = call.id.filter(|id| !id.is_empty() && !ids.contains(id));
        let id = named.unwrap_or_else(|| {
            let mut number = index;
            while ids.contains(&format!("call_{number}")) {
                number += 1;
            }
            format!("call_{number}")
        });
        ids.insert(id.clone());
        let arguments = as_written(call.arguments.unwrap_or_default());
        converted.push(ToolCall { id, name: call.name.unwrap_or_default(), arguments });
    }
    converted
}

/// Returns the object that a server encoded as text within text; other arguments stay as they are.
fn as_written(arguments: String) -> String {
    if !arguments.trim_start().starts_with('"') {
        return arguments;
    }
    let mut text = arguments.clone();
    for _ in 0..MOST_ENCODINGS {
        match serde_json::from_str::<String>(&text) {
            Ok(inner) => text = inner,
            Err(_) => break,
        }
    }
    if serde_json::from_str::<Map<String, Value>>(&text).is_ok() { text } else { arguments }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(message: Value) -> Message {
        let body = json!({"model": "m-1", "choices": [{"message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3}});
        let heard = read(body.to_string().as_bytes()).expect("a message");
        assert_eq!(heard.model.as_deref(), Some("m-1"));
        let kept = serde_json::to_vec(&heard).expect("JSON");
        let again: Heard = serde_json::from_slice(&kept).expect("what was kept");
        assert_eq!(again, heard);
        heard.message()
    }

    #[test]
    fn content_reasoning_and_calls_are_taken_in_every_form() {
        let parts = said(json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}));
        assert_eq!((parts.content.as_str(), parts.prompt_tokens, parts.completion_tokens), ("ab", Some(7), Some(3)));
        let thought = json!({"type": "thinking", "thinking": [{"type": "text", "text": "r"}, {"text": "s"}]});
        let parts = said(json!({"content": [thought, {"type": "text", "text": "a"}, "b", {"type": "image_url"}]}));
        assert_eq!((parts.content.as_str(), parts.reasoning.as_deref()), ("ab", Some("rs")));
        for (content, text) in [(json!(42), "42"), (json!({"answer": "x"}), "{\"answer\":\"x\"}"), (json!([]), "")] {
            assert_eq!(said(json!({"content": content})).content, text);
        }
        assert_eq!(said(json!({"content": "x", "tool_calls": "none"})).tool_calls, []);
        assert_eq!(said(json!({"content": "x", "reasoning": "r"})).reasoning.as_deref(), Some("r"));
        assert_eq!(said(json!({"content": "x", "reasoning_content": "r"})).reasoning.as_deref(), Some("r"));
        assert_eq!(said(json!({"content": null, "refusal": "no"})).content, "no");
        let called = said(json!({"content": null, "tool_calls": [
            {"id": "a", "function": {"name": "search", "arguments": "{\"query\":\"q\"}"}},
            {"function": {"name": "search", "arguments": {"query": "p"}}}]}));
        let shown: Vec<_> = called.tool_calls.iter().map(|c| (c.id.as_str(), c.arguments.as_str())).collect();
        assert_eq!(shown, [("a", "{\"query\":\"q\"}"), ("call_1", "{\"query\":\"p\"}")]);
    }

    /// Calls as (id, name, arguments) of a message with these `tool_calls`.
    fn calls(tool_calls: &str) -> Vec<(String, String, String)> {
        let body = format!("{{\"choices\": [{{\"message\": {{\"content\": null, \"tool_calls\": {tool_calls}}}}}]}}");
        let message = read(body.as_bytes()).expect("an answer that was paid for").message();
        message.tool_calls.into_iter().map(|call| (call.id, call.name, call.arguments)).collect()
    }

    #[test]
    fn calls_are_kept_as_the_model_wrote_them_in_whatever_form_a_server_sends_them() {
        let call = |id: &str, name: &str, arguments: &str| (id.to_owned(), name.to_owned(), arguments.to_owned());
        let one = |function: &str| calls(&format!("[{{\"id\": \"a\", \"function\": {function}}}]")).remove(0);
        for (function, name, arguments) in [
            (r#"{"name": "s", "arguments": {"z": 1.0, "a": 2}}"#, "s", r#"{"z": 1.0, "a": 2}"#),
            (r#"{"name": "s", "arguments": {"q": "a", "q": "b"}}"#, "s", r#"{"q": "a", "q": "b"}"#),
            (r#"{"name": "s", "arguments": "\"{\\\"q\\\": 1}\""}"#, "s", r#"{"q": 1}"#),
            (r#"{"name": "s", "arguments": "\"q\""}"#, "s", r#""q""#),
            (r#"{"name": "s", "arguments": null}"#, "s", ""),
            (r#"{"name": "s"}"#, "s", ""),
            (r#"{"name": "s", "arguments": ""}"#, "s", ""),
            (r#"{"name": "s", "arguments": [1]}"#, "s", "[1]"),
            (r#"{"name": {"a": 1}, "arguments": "{}"}"#, r#"{"a":1}"#, "{}"),
            (r#"{"name": null, "arguments": "{}"}"#, "", "{}"),
            (r#"{"name": "s", "arguments": "{\"q\": \"\ud83d\ude00\"}"}"#, "s", "{\"q\": \"😀\"}"),
            (r#""s""#, "s", ""),
        ] {
            assert_eq!(one(function), call("a", name, arguments), "{function}");
        }
        let flat = r#"[{"id": "a", "name": "s", "arguments": {"q": 1}}, null]"#;
        assert_eq!(calls(flat), [call("a", "s", r#"{"q": 1}"#)]);
        assert_eq!(calls(r#"{"function": {"name": "s", "arguments": "{}"}}"#), [call("call_0", "s", "{}")]);
        assert_eq!(calls(r#""[{\"function\": {\"name\": \"s\"}}]""#), [call("call_0", "s", "")]);
        assert_eq!(calls(r#"["s"]"#), [call("call_0", "", "\"s\"")], "the model reads that this is no call");
        assert_eq!(calls("null"), []);
        let same = r#"[{"id": "a", "function": {"name": "s"}}, {"id": "a", "function": {"name": "t"}}, {"id": ""}]"#;
        assert_eq!(calls(same), [call("a", "s", ""), call("call_1", "t", ""), call("call_2", "", "")]);
    }

    #[test]
    fn reasons_that_are_none_and_answers_that_were_given_up_are_known() {
        let reason = |reason: &str| {
            let body =
                format!("{{\"choices\": [{{\"message\": {{\"content\": \"a\"}}, \"finish_reason\": {reason}}}]}}");
            read(body.as_bytes()).map(|heard| heard.message().finish_reason)
        };
        for none in ["null", r#""""#, r#"" ""#, r#""null""#, r#""None""#] {
            assert_eq!(reason(none), Ok(None), "{none}");
        }
        assert_eq!(reason(r#""stop""#), Ok(Some("stop".to_owned())));
        assert_eq!(reason(r#"{"type": "length", "length": 5}"#), Ok(Some("length".to_owned())));
        for given_up in [r#""abort""#, r#""error""#, r#"{"type": "abort", "message": "gone"}"#] {
            assert!(reason(given_up).expect_err("no answer").contains("ended the answer early"), "{given_up}");
        }
    }

    #[test]
    fn an_answer_in_an_odd_envelope_is_read() {
        let said = |body: &[u8]| read(body).map(|heard| heard.message().content);
        let plain =
            r#"{"error": null, "choices": [{"message": {"content": "half \ud83d", "refusal": 3}, "logprobs": NaN}]}"#;
        assert_eq!(said(plain.as_bytes()), Ok("half \u{fffd}".to_owned()));
        assert_eq!(
            said(serde_json::Value::from(plain.replace("NaN", "null").replace("\\ud83d", "x")).to_string().as_bytes()),
            Ok("half x".to_owned())
        );
        assert_eq!(said(b"{\"choices\": [{\"message\": {\"content\": \"\xff\"}}]}"), Ok("\u{fffd}".to_owned()));
        assert_eq!(said(br#"{"choices": [], "choices": [{"delta": {"content": "a"}}]}"#), Ok("a".to_owned()));
        assert_eq!(said(br#"{"error": {}, "choices": [{"message": {"content": null, "reasoning_content": "", "reasoning": "r"}}]}"#), Ok(String::new()));
    }

    #[test]
    fn an_answer_is_kept_whatever_types_stand_beside_it() {
        let heard = |usage: Value| {
            let message =
                json!({"content": "x", "tool_calls": [{"id": 7, "function": {"name": "s", "arguments": "{}"}}]});
            let body = json!({"model": 3, "choices": [{"message": message, "finish_reason": 1}], "usage": usage});
            read(body.to_string().as_bytes()).expect("an answer that was paid for")
        };
        for (usage, wanted) in [
            (json!({"prompt_tokens": 10.5, "completion_tokens": "x"}), (10, 0)),
            (json!({"prompt_tokens": "12", "completion_tokens": u64::MAX}), (12, 1 << 40)),
            (json!("none"), (0, 0)),
            (json!(true), (0, 0)),
            (json!(null), (0, 0)),
        ] {
            let heard = heard(usage.clone());
            assert_eq!((heard.usage().prompt_tokens, heard.usage().completion_tokens), wanted, "{usage}");
            assert_eq!((heard.model.as_deref(), heard.message().tool_calls[0].id.as_str()), (Some("3"), "7"));
        }
    }

    #[test]
    fn secrets_are_struck_wherever_a_message_holds_them() {
        let redactor = Redactor::default();
        redactor.learn("KEY", "sk-live-5f3a");
        redactor.learn("PIN", "20260101");
        let message = json!({"content": [{"text": "by sk-live"}, {"text": "-5f3a."}], "tool_calls": [{"function": {
            "name": "search", "arguments": {"sk-live-5f3a": {"sk-live-5f3a": ["sk-live-5f3a"]}, "pin": 20_260_101}}}]});
        let body = json!({"choices": [{"message": message}]});
        let mut heard = read(body.to_string().as_bytes()).expect("a message");
        let mut tokens = WireTokens::default();
        tokens.add(Some(json!([1])), Some(json!([2])), Some(json!({"token_logprobs": [-1]})));
        heard.tokens = tokens.reported();
        heard.clean(&redactor);
        assert!(heard.withheld && heard.tokens.is_none());
        let kept = serde_json::to_string(&heard).expect("JSON");
        assert!(!kept.contains("5f3a") && !kept.contains("20260101"), "{kept}");
        let mut message = heard.message();
        assert_eq!(message.content, "by [secret KEY].");
        assert!(message.tool_calls[0].arguments.contains("{\"[secret KEY]\":[\"[secret KEY]\"]}"), "{message:?}");
        message.tool_calls[0].arguments = "{\"sk-live-5f3a\":1}".to_owned();
        clean_message(&mut message, &redactor);
        assert_eq!(message.tool_calls[0].arguments, "{\"[secret KEY]\":1}");
    }

    #[test]
    fn what_ended_an_answer_is_known_under_either_name_or_both() {
        let stop = |choice: &str| {
            let body = format!("{{\"choices\": [{{\"text\": \"a\", {choice}}}]}}");
            read(body.as_bytes()).expect("an answer that was paid for").stop_reason
        };
        assert_eq!(stop(r#""stop_reason": "x", "matched_stop": "x""#), Some(json!("x")));
        assert_eq!(
            (stop(r#""matched_stop": "x""#), stop(r#""stop_reason": null"#)),
            (Some(json!("x")), Some(Value::Null))
        );
        assert_eq!(stop(r#""finish_reason": "stop""#), None);
    }

    #[test]
    fn answers_without_a_message_are_errors() {
        let told = |body: &str| read(body.as_bytes()).expect_err("an error");
        assert!(told("{\"choices\": [").contains("not a chat completion"));
        assert_eq!(told("{\"choices\": []}"), "the response has no choices");
        assert_eq!(told("{}"), "the response has no choices");
        assert_eq!(told("{\"choices\": [{}]}"), "the response's choice has no message and no text");
        assert_eq!(told("{\"error\": {\"message\": \"busy\"}}"), "the response is an error: busy");
    }
}
