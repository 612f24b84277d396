//! Answers of the chat-completions and completions APIs as servers write them. No type beside the message costs the
//! answer: it is paid for.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::lenient_json::parse;
use super::tokens::WireTokens;

/// An answer, or one piece of a streamed answer.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Completion {
    #[serde(default, deserialize_with = "words")]
    pub(super) model: Option<String>,
    #[serde(default)]
    pub(super) choices: Option<Vec<Choice>>,
    #[serde(default, deserialize_with = "readable")]
    pub(super) usage: Option<TokenUsage>,
    #[serde(default, deserialize_with = "trouble")]
    pub(super) error: Option<Value>,
    /// Tokens of the prompt (vLLM's chats).
    #[serde(default)]
    pub(super) prompt_token_ids: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Choice {
    /// In a whole answer.
    pub(super) message: Option<WireMessage>,
    /// In a streamed answer: a piece of the message.
    pub(super) delta: Option<WireMessage>,
    /// Text of the completions API.
    #[serde(default, deserialize_with = "only_text")]
    pub(super) text: Option<String>,
    #[serde(default, deserialize_with = "reason")]
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

/// A message, or a piece of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct WireMessage {
    #[serde(default)]
    pub(super) content: Option<Value>,
    #[serde(default, deserialize_with = "words")]
    pub(super) refusal: Option<String>,
    #[serde(default, deserialize_with = "thoughts")]
    pub(super) reasoning_content: Option<String>,
    #[serde(default, deserialize_with = "thoughts")]
    pub(super) reasoning: Option<String>,
    #[serde(default, deserialize_with = "calls", skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<WireCall>,
}

impl WireMessage {
    /// The thoughts, under either name, or as parts of the content.
    pub(super) fn thought(&mut self) -> Option<String> {
        let named = [self.reasoning_content.take(), self.reasoning.take(), self.content.as_ref().map(thinking)];
        named.into_iter().flatten().find(|text| !text.is_empty())
    }
}

/// A call of a tool, or a piece of one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WireCall {
    pub(super) index: Option<usize>,
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    /// The arguments as the server wrote them. An object stays as it is written: its keys in their order, also one that
    /// is there twice.
    pub(super) arguments: Option<String>,
}

impl Serialize for WireCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json!({"id": self.id, "function": {"name": self.name, "arguments": self.arguments}}).serialize(serializer)
    }
}

/// The fields of a call. Those of `function` may stand in the call itself.
#[derive(Default, Deserialize)]
struct CallFields {
    index: Option<Value>,
    id: Option<Value>,
    function: Option<Box<RawValue>>,
    name: Option<Value>,
    arguments: Option<Box<RawValue>>,
}

impl WireCall {
    /// Whether it has a name.
    pub(super) fn is_named(&self) -> bool {
        self.name.as_deref().is_some_and(|name| !name.is_empty())
    }

    /// Reads a call. One that cannot be read keeps its text as the arguments, so that the model reads what was wrong.
    fn of(raw: &RawValue) -> Self {
        let Ok(call) = parse::<CallFields>(raw.get().as_bytes()) else {
            return Self { arguments: Some(raw.get().to_owned()), ..Self::default() };
        };
        let mut function = CallFields::default();
        if let Some(raw) = &call.function {
            let read = if raw.get().starts_with('{') {
                parse(raw.get().as_bytes())
            } else {
                // The name alone, where its fields stand in the call.
                serde_json::from_str(raw.get()).map(|name| CallFields { name, ..CallFields::default() })
            };
            let Ok(fields) = read else {
                return Self { arguments: Some(raw.get().to_owned()), ..Self::default() };
            };
            function = fields;
        }
        Self {
            index: call.index.as_ref().and_then(index),
            id: call.id.or(function.id).and_then(worded),
            name: function.name.or(call.name).and_then(worded),
            arguments: function.arguments.or(call.arguments).map(|raw| argument_text(&raw)),
        }
    }
}

/// Returns the place of a call in its message: a number, or one as text.
fn index(written: &Value) -> Option<usize> {
    let index: u64 = match written {
        Value::String(text) => text.trim().parse().ok()?,
        other => other.as_u64()?,
    };
    usize::try_from(index).ok()
}

/// Returns the text of arguments: that of a JSON text, or JSON as it is written.
fn argument_text(raw: &RawValue) -> String {
    let text = raw.get();
    if text.starts_with('"')
        && let Ok(text) = parse(text.as_bytes())
    {
        return text;
    }
    text.to_owned()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TokenUsage {
    #[serde(default, deserialize_with = "tokens")]
    pub(super) prompt_tokens: Option<i64>,
    #[serde(default, deserialize_with = "tokens")]
    pub(super) completion_tokens: Option<i64>,
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

/// Text, or any other value as JSON text.
fn worded(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Value::deserialize(deserializer).map(worded)
}

/// Deserialises text; any other value is none.
fn only_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => Some(text),
        _ => None,
    })
}

/// Deserialises thoughts: text or parts of text.
fn thoughts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(if value.is_array() { Some(text(&value)) } else { worded(value) })
}

/// Deserialises why an answer ended. Some servers write empty text or `null` as text with each piece before the last;
/// SGLang's own form is an object with a `type`.
pub(super) fn reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let reason = match value.get("type").and_then(Value::as_str) {
        Some(kind) => Some(kind.to_owned()),
        None => worded(value),
    };
    Ok(reason.filter(|text| !is_none(text)))
}

/// Whether a text stands for nothing.
fn is_none(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "" | "null" | "none")
}

/// Deserialises an error; nothing, `false`, and an empty text or object are none.
fn trouble<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let is_none = [Value::Null, json!(false), json!(""), json!({}), json!([])].contains(&value);
    Ok(if is_none { None } else { Some(value) })
}

/// Deserialises calls: a list, a single call, or either as text.
fn calls<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<WireCall>, D::Error> {
    let Some(raw) = Option::<Box<RawValue>>::deserialize(deserializer)? else { return Ok(Vec::new()) };
    let inner = serde_json::from_str::<String>(raw.get());
    if inner.as_deref().is_ok_and(is_none) {
        return Ok(Vec::new());
    }
    let raw = inner.and_then(RawValue::from_string).unwrap_or(raw);
    Ok(match serde_json::from_str::<Vec<Box<RawValue>>>(raw.get()) {
        Ok(listed) => listed.iter().filter(|call| call.get() != "null").map(|call| WireCall::of(call)).collect(),
        Err(_) => vec![WireCall::of(&raw)],
    })
}

/// Deserialises a field that was sent, `null` included.
pub(super) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Maximum number of tokens of one call. Larger values are wrong, and would overflow sums.
const MOST_TOKENS: i64 = 1 << 40;

/// Deserialises a token count of any type; `None` if it is not a number.
fn tokens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number: Option<f64> = match &value {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_f64(),
    };
    // Some servers write counts as floats or texts.
    let count = value.as_i64().or(number.filter(|number| number.is_finite()).map(|number| number as i64));
    Ok(count.map(|count| count.min(MOST_TOKENS)))
}

/// Deserialises a usage object; `None` if it is invalid.
fn readable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<TokenUsage>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).ok())
}

/// Returns the text of an error object.
pub(super) fn error_message(error: &Value) -> String {
    match error.get("message").and_then(Value::as_str).or(error.as_str()) {
        Some(message) => message.to_owned(),
        None => error.to_string(),
    }
}

/// Returns text, the joined text parts of a list, or any other value as JSON text.
pub(super) fn text(content: &Value) -> String {
    let Value::Array(parts) = content else { return worded(content.clone()).unwrap_or_default() };
    parts.iter().filter_map(|part| part.get("text").or(part.get("refusal")).unwrap_or(part).as_str()).collect()
}

/// Returns the thoughts among the parts of a content (Mistral: `{"type": "thinking", "thinking": [parts of text]}`).
fn thinking(content: &Value) -> String {
    let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
    parts.iter().filter_map(|part| part.get("thinking")).map(text).collect()
}
