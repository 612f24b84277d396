//! Answers of the chat-completions API, and their conversion to messages. Tolerates differences between servers:
//! content as text or parts, reasoning under two names, arguments as text or object, missing usage or ids.

use std::borrow::Cow;

use searchmill_engine::operator::{Redactor, Usage};
use searchmill_schemas::{Message, Role, ToolCall};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::super::usage;
use super::tokens::WireTokens;
use crate::tool::plain;

/// Maximum length of a response in bytes, streamed or not.
pub(super) const MOST_BYTES: usize = 32 << 20;

/// An answer of the chat or completions API, or one piece of a streamed answer.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Completion {
    #[serde(default, deserialize_with = "words")]
    pub(super) model: Option<String>,
    #[serde(default)]
    pub(super) choices: Option<Vec<Choice>>,
    #[serde(default, deserialize_with = "readable")]
    pub(super) usage: Option<TokenUsage>,
    pub(super) error: Option<Value>,
    /// Tokens of the prompt (vLLM's chats).
    #[serde(default)]
    pub(super) prompt_token_ids: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Choice {
    /// In a whole answer: a [`WireMessage`].
    pub(super) message: Option<Value>,
    /// In a streamed answer: a piece of the message.
    pub(super) delta: Option<WireMessage>,
    /// Text of the completions API.
    #[serde(default, deserialize_with = "only_text")]
    pub(super) text: Option<String>,
    #[serde(default, deserialize_with = "words")]
    pub(super) finish_reason: Option<String>,
    /// The stop text or token that ended the answer: `null` for the end-of-turn token (vLLM; others send none).
    #[serde(default, deserialize_with = "present")]
    stop_reason: Option<Value>,
    /// SGLang's name for it.
    #[serde(default, deserialize_with = "present")]
    matched_stop: Option<Value>,
    /// Tokens of the prompt (vLLM's texts).
    prompt_token_ids: Option<Value>,
    /// Sampled tokens.
    token_ids: Option<Value>,
    logprobs: Option<Value>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct WireMessage {
    pub(super) content: Option<Value>,
    pub(super) refusal: Option<String>,
    pub(super) reasoning_content: Option<String>,
    pub(super) reasoning: Option<String>,
    pub(super) tool_calls: Option<Vec<WireCall>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct WireCall {
    pub(super) index: Option<usize>,
    #[serde(default, deserialize_with = "words")]
    pub(super) id: Option<String>,
    #[serde(default)]
    pub(super) function: WireFunction,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct WireFunction {
    pub(super) name: Option<String>,
    pub(super) arguments: Option<Value>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct TokenUsage {
    #[serde(default, deserialize_with = "tokens")]
    pub(super) prompt_tokens: Option<i64>,
    #[serde(default, deserialize_with = "tokens")]
    pub(super) completion_tokens: Option<i64>,
}

/// Deserialises text, or any other value as JSON text: a paid answer must not be lost over the type of the model
/// name.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    })
}

/// Deserialises text; any other value is none.
fn only_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => Some(text),
        _ => None,
    })
}

/// Deserialises a field that was sent, `null` included.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Maximum number of tokens of one call. Larger values are wrong, and would overflow sums.
const MOST_TOKENS: i64 = 1 << 40;

/// Deserialises a token count of any type; `None` if it is not a number.
fn tokens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number =
        value.as_f64().or_else(|| value.as_str()?.trim().parse().ok()).filter(|number: &f64| number.is_finite());
    Ok(value.as_i64().or_else(|| number.map(|number| number as i64)).map(|number| number.min(MOST_TOKENS)))
}

/// Deserialises a usage object; `None` if it is invalid.
fn readable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TokenUsage>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).ok())
}

/// The endpoint's answer in its original form, as it is stored. It is converted to a message on each read, by the
/// current rules.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Heard {
    model: Option<String>,
    /// The message in the API's form.
    message: Value,
    #[serde(default)]
    usage: TokenUsage,
    finish_reason: Option<String>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    stop_reason: Option<Value>,
    /// Its tokens, if the server reports them and they hold no secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<WireTokens>,
    /// Whether its tokens were dropped because they hold a secret.
    #[serde(skip)]
    withheld: bool,
}

impl Heard {
    /// Creates an answer from a message and its metadata.
    ///
    /// # Errors
    /// If it is not a valid message.
    pub(super) fn new(
        message: Value,
        model: Option<String>,
        usage: Option<TokenUsage>,
        finish_reason: Option<String>,
    ) -> Result<Self, String> {
        let heard = Self {
            model,
            message,
            usage: usage.unwrap_or_default(),
            finish_reason,
            stop_reason: None,
            tokens: None,
            withheld: false,
        };
        heard.message().map(|_| heard)
    }

    /// Adds the answer's tokens.
    pub(super) fn of_tokens(self, tokens: WireTokens) -> Self {
        Self { tokens: tokens.reported(), ..self }
    }

    /// The answer's tokens.
    pub(super) fn tokens(&self) -> WireTokens {
        self.tokens.clone().unwrap_or_default()
    }

    /// Whether its tokens were dropped because they hold a secret.
    pub(super) fn withholds_tokens(&self) -> bool {
        self.withheld
    }

    /// Adds what ended the answer, if the server reports it.
    pub(super) fn stopped_by(self, stop_reason: Option<Value>) -> Self {
        Self { stop_reason, ..self }
    }

    /// What ended the answer: the stop text, `Null` for the end-of-turn token; `None` if the server does not report it.
    pub(super) fn stop_reason(&self) -> Option<&Value> {
        self.stop_reason.as_ref()
    }

    /// The model name reported by the endpoint.
    pub(super) fn model(&self) -> Option<String> {
        self.model.clone()
    }

    /// Converts the answer to a message.
    ///
    /// # Errors
    /// If it contains no message.
    pub(super) fn message(&self) -> Result<Message, String> {
        let said = WireMessage::deserialize(&self.message);
        let said = said.map_err(|error| format!("the response is not a chat completion: {error}"))?;
        let content = said.content.as_ref().map(text).filter(|text| !text.is_empty()).or(said.refusal);
        let mut message = Message::text(Role::Assistant, content.unwrap_or_default());
        message.reasoning = said.reasoning_content.or(said.reasoning).filter(|text| !text.is_empty());
        message.tool_calls = said.tool_calls.unwrap_or_default().into_iter().enumerate().map(tool_call).collect();
        message.prompt_tokens = self.usage.prompt_tokens;
        message.completion_tokens = self.usage.completion_tokens;
        message.finish_reason.clone_from(&self.finish_reason);
        Ok(message)
    }

    /// Usage of the call, without retries.
    pub(super) fn usage(&self) -> Usage {
        usage(1, self.usage.prompt_tokens, self.usage.completion_tokens)
    }

    /// Removes secrets from its texts.
    pub(super) fn clean(&mut self, redactor: &Redactor) {
        if !redactor.is_empty() {
            let before = self.tokens.is_some().then(|| self.message.clone());
            redactor.clean_all(self.model.iter_mut().chain(&mut self.finish_reason));
            clean(&mut self.message, redactor);
            self.stop_reason.iter_mut().for_each(|reason| clean(reason, redactor));
            // A secret may be spread over several parts.
            if let Some(content) = self.message.get_mut("content")
                && let Cow::Owned(struck) = redactor.strike(&text(content))
            {
                *content = Value::String(struck);
            }
            // The tokens of a secret are the secret.
            if before.is_some_and(|before| before != self.message) {
                (self.tokens, self.withheld) = (None, true);
            }
        }
    }
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
        redactor.clean_all(
            std::iter::once(&mut message.content).chain(&mut message.reasoning).chain(&mut message.finish_reason),
        );
        redactor.clean_all(
            message.tool_calls.iter_mut().flat_map(|call| [&mut call.id, &mut call.name, &mut call.arguments]),
        );
    }
}

impl Choice {
    /// Moves its tokens.
    pub(super) fn tokens(&mut self, prompt: Option<Value>, tokens: &mut WireTokens) {
        tokens.add(prompt.or(self.prompt_token_ids.take()), self.token_ids.take(), self.logprobs.take());
    }

    /// What ended the answer, under either name.
    pub(super) fn stopped_by(&mut self) -> Option<Value> {
        self.stop_reason.take().or(self.matched_stop.take())
    }
}

/// Parses a whole answer.
///
/// # Errors
/// If it contains no message.
pub(super) fn read(body: &[u8]) -> Result<Heard, String> {
    let completion: Completion =
        serde_json::from_slice(body).map_err(|error| format!("the response is not a chat completion: {error}"))?;
    if let Some(error) = &completion.error {
        return Err(format!("the response is an error: {}", error_message(error)));
    }
    let choice = completion.choices.and_then(|choices| choices.into_iter().next());
    let mut choice = choice.ok_or("the response has no choices")?;
    let stop_reason = choice.stopped_by();
    let mut tokens = WireTokens::default();
    choice.tokens(completion.prompt_token_ids, &mut tokens);
    let message = choice.text.map(|text| json!({"content": text})).or(choice.message);
    let message = message.ok_or("the response's choice has no message and no text")?;
    let heard = Heard::new(message, completion.model, completion.usage, choice.finish_reason)?;
    Ok(heard.stopped_by(stop_reason).of_tokens(tokens))
}

/// Returns the text of an error object.
pub(super) fn error_message(error: &Value) -> String {
    match error.get("message").and_then(Value::as_str).or(error.as_str()) {
        Some(message) => message.to_owned(),
        None => error.to_string(),
    }
}

/// Returns text, or the joined text parts of a list.
pub(super) fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        _ => String::new(),
    }
}

fn tool_call((place, call): (usize, WireCall)) -> ToolCall {
    ToolCall {
        id: call.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{place}")),
        name: call.function.name.unwrap_or_default(),
        arguments: call.function.arguments.as_ref().map(plain).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(message: Value) -> Message {
        let body = json!({"model": "m-1", "choices": [{"message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3}});
        let heard = read(body.to_string().as_bytes()).expect("a message");
        assert_eq!(heard.model().as_deref(), Some("m-1"));
        let kept = serde_json::to_vec(&heard).expect("JSON");
        let again: Heard = serde_json::from_slice(&kept).expect("what was kept");
        assert_eq!(again.message(), heard.message());
        heard.message().expect("a message")
    }

    #[test]
    fn content_reasoning_and_calls_are_taken_in_every_form() {
        let parts = said(json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}));
        assert_eq!((parts.content.as_str(), parts.prompt_tokens, parts.completion_tokens), ("ab", Some(7), Some(3)));
        assert_eq!(said(json!({"content": "x", "reasoning": "r"})).reasoning.as_deref(), Some("r"));
        assert_eq!(said(json!({"content": "x", "reasoning_content": "r"})).reasoning.as_deref(), Some("r"));
        assert_eq!(said(json!({"content": null, "refusal": "no"})).content, "no");
        let called = said(json!({"content": null, "tool_calls": [
            {"id": "a", "function": {"name": "search", "arguments": "{\"query\":\"q\"}"}},
            {"function": {"name": "search", "arguments": {"query": "p"}}}]}));
        let shown: Vec<_> = called.tool_calls.iter().map(|c| (c.id.as_str(), c.arguments.as_str())).collect();
        assert_eq!(shown, [("a", "{\"query\":\"q\"}"), ("call_1", "{\"query\":\"p\"}")]);
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
            assert_eq!(
                (heard.model().as_deref(), heard.message().expect("a message").tool_calls[0].id.as_str()),
                (Some("3"), "7")
            );
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
        heard = heard.of_tokens(tokens);
        heard.clean(&redactor);
        assert!(heard.withholds_tokens() && heard.tokens() == WireTokens::default());
        let kept = serde_json::to_string(&heard).expect("JSON");
        assert!(!kept.contains("5f3a") && !kept.contains("20260101"), "{kept}");
        let mut message = heard.message().expect("a message");
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
            read(body.as_bytes()).expect("an answer that was paid for").stop_reason().cloned()
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
