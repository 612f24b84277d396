//! Request bodies. The constant part is serialised once per node, each message once per conversation.

use bytes::Bytes;
use searchmill_models::training::recorded::NEUTRAL;
use searchmill_schemas::{Message, ToolCall};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::super::{Api, EndpointParams};
use crate::episode::Offer;
use crate::protocol::ChatFormat;

/// The part of the body shared by all requests of a node.
pub(super) struct RequestFrame {
    /// A JSON object without its closing brace.
    head: String,
    /// Fields that control how the answer is sent, without effect on its content.
    transport: &'static str,
    /// `,"tools":[…]`, or empty without tools.
    tools: String,
    seed: Option<i64>,
    resend_reasoning: bool,
    form: Form,
}

/// How a conversation is sent.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// `"messages":[…]`, a message for each.
    Chat,
    /// `"messages":[…]`, in which the last message is the model's text so far; the model continues it.
    Continued,
    /// `"prompt":"…"`, the whole text.
    Prompt,
}

impl RequestFrame {
    /// Builds the frame for these params and the format's tools and stop texts. `records`: with the answers' tokens.
    pub(super) fn new(params: &EndpointParams, format: &dyn ChatFormat, records: bool) -> Self {
        let (tools, stop) = (format.tools(), format.stop());
        let form = match params.api {
            Api::Completions => Form::Prompt,
            Api::Chat if format.is_one_text() => Form::Continued,
            Api::Chat => Form::Chat,
        };
        // `extra` first: none of its fields replaces one that searchmill sets.
        let mut body: Map<String, Value> = params.extra.clone().into_iter().collect();
        body.insert("model".to_owned(), json!(params.model));
        // The protocol reads the thoughts in the text (SGLang, searchmill; vLLM ignores it).
        let separate = if form == Form::Continued { Some(json!(false)) } else { None };
        let mut fields = vec![
            ("temperature", params.temperature.map(|t| json!(t))),
            ("top_p", params.top_p.map(|p| json!(p))),
            ("max_tokens", params.max_tokens.map(|n| json!(n))),
            ("stop", if stop.is_empty() { None } else { Some(json!(stop)) }),
            ("separate_reasoning", separate),
        ];
        if records {
            let is_chat = params.api == Api::Chat;
            fields.push(("return_token_ids", Some(json!(true))));
            // Chats take a flag, and a count in `top_logprobs`; completions take the count alone.
            fields.push(("logprobs", Some(if is_chat { json!(true) } else { json!(1) })));
            fields.push(("top_logprobs", is_chat.then_some(json!(0))));
            fields.push(("logprobs_mode", params.sends_processed().then_some(json!("processed_logprobs"))));
            // A server's own default would change the distribution that is recorded.
            fields.push(("top_p", Some(json!(params.top_p.unwrap_or(1.0)))));
            for (name, neutral) in NEUTRAL.iter().filter(|(name, _)| !params.extra.contains_key(*name)) {
                // `top_k` is a whole number in the API, the others are not.
                let value = if *name == "top_k" { json!(*neutral as i64) } else { json!(neutral) };
                fields.push((name, Some(value)));
            }
        }
        for (name, value) in fields {
            if let Some(value) = value {
                body.insert(name.to_owned(), value);
            }
        }
        let mut head = Value::Object(body).to_string();
        // The closing brace: what differs from request to request follows before it.
        head.pop();
        let tools = if tools == "[]" { String::new() } else { format!(",\"tools\":{tools}") };
        let transport = if params.stream { ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" } else { "" };
        Self { head, transport, tools, seed: params.seed, resend_reasoning: params.resend_reasoning, form }
    }
}

/// Messages of one conversation, serialised as they arrive.
pub(super) struct Conversation<'a> {
    frame: &'a RequestFrame,
    seed: Option<i64>,
    /// The messages, or the prompt as JSON text without quotes.
    messages: Vec<u8>,
    /// The messages with calls as servers accept them, if the model wrote calls that they do not.
    accepted: Option<Vec<u8>>,
    /// The model's text so far as JSON text without quotes, if the model continues it.
    text: Vec<u8>,
    taken: usize,
}

impl<'a> Conversation<'a> {
    /// A conversation for one sample.
    pub(super) fn new(frame: &'a RequestFrame, sample: u32) -> Self {
        let seed = frame.seed.map(|seed| seed.wrapping_add(i64::from(sample)));
        Self { frame, seed, messages: Vec::with_capacity(4096), accepted: None, text: Vec::new(), taken: 0 }
    }

    /// Builds the next request. `messages` are all messages so far; messages of earlier requests are not serialised
    /// again.
    pub(super) fn next(&mut self, messages: &[Message], offer: Offer) -> Asked {
        for message in messages.iter().skip(self.taken) {
            self.take(message);
        }
        self.taken = messages.len();
        // What the model wrote, and no repair of it, decides whether an answer is known.
        let identity = self.body("", offer, &self.messages);
        let transport = self.frame.transport;
        let body = match &self.accepted {
            None if transport.is_empty() => identity.clone(),
            accepted => self.body(transport, offer, accepted.as_ref().unwrap_or(&self.messages)),
        };
        Asked { body, identity }
    }

    fn take(&mut self, message: &Message) {
        match self.frame.form {
            Form::Prompt => self.messages.extend(escaped(&message.content)),
            Form::Continued if !message.is_opening() => self.text.extend(escaped(&message.content)),
            Form::Chat | Form::Continued => {
                let resend_reasoning = self.frame.resend_reasoning;
                let accepted = accepted(message);
                // Only now the two lists differ: until then one is enough.
                if accepted.is_some() && self.accepted.is_none() {
                    self.accepted = Some(self.messages.clone());
                }
                push(&mut self.messages, wire_message(message, resend_reasoning));
                if let Some(messages) = &mut self.accepted {
                    push(messages, wire_message(accepted.as_ref().unwrap_or(message), resend_reasoning));
                }
            }
        }
    }

    fn body(&self, transport: &str, offer: Offer, messages: &[u8]) -> Bytes {
        let tools = if offer == Offer::Tools { self.frame.tools.as_str() } else { "" };
        let seed = self.seed.map_or_else(String::new, |seed| format!(",\"seed\":{seed}"));
        // Before the first turn there is no text that could be continued.
        let begun = !self.text.is_empty();
        let form = if begun || self.frame.form == Form::Prompt { self.frame.form } else { Form::Chat };
        let before = match form {
            Form::Chat => ",\"messages\":[",
            Form::Continued => ",\"continue_final_message\":true,\"add_generation_prompt\":false,\"messages\":[",
            Form::Prompt => ",\"prompt\":\"",
        };
        let parts = [&self.frame.head, transport, tools, &seed, before].map(str::as_bytes);
        let mut body = parts.concat();
        body.reserve(messages.len() + self.text.len() + 64);
        body.extend_from_slice(messages);
        if begun {
            body.extend_from_slice(b",{\"role\":\"assistant\",\"content\":\"");
            body.extend_from_slice(&self.text);
            body.extend_from_slice(b"\"}");
        }
        body.extend_from_slice(if form == Form::Prompt { b"\"}" } else { b"]}" });
        Bytes::from(body)
    }
}

/// Adds a message to a list without brackets.
fn push(messages: &mut Vec<u8>, message: Vec<u8>) {
    if !messages.is_empty() {
        messages.push(b',');
    }
    messages.extend(message);
}

/// Most characters of a tool's name (OpenAI).
const LONGEST_NAME: usize = 64;

/// Returns a message with calls that servers accept, unless they accept its calls as they are. vLLM and SGLang parse the
/// arguments of earlier calls, and answer 400 to those that are not a JSON object: the model is shown what it wrote
/// as the text of an object (the form that Anthropic's documentation of tool use names). OpenAI refuses names that no
/// tool can have.
fn accepted(message: &Message) -> Option<Message> {
    if message.tool_calls.iter().all(|call| is_object(&call.arguments) && is_name(&call.name)) {
        return None;
    }
    let mut accepted = message.clone();
    for call in &mut accepted.tool_calls {
        if call.arguments.trim().is_empty() {
            call.arguments = call.written().to_owned();
        } else if !is_object(&call.arguments) {
            call.arguments = json!({"INVALID_JSON": call.arguments}).to_string();
        }
        if !is_name(&call.name) {
            let name = call.name.chars().map(|char| if is_of_name(char) { char } else { '_' });
            call.name = name.take(LONGEST_NAME).collect();
        }
        if call.name.is_empty() {
            call.name.push('_');
        }
    }
    Some(accepted)
}

/// Whether a text is a JSON object. Its texts are read: half a character in them is none for a server.
fn is_object(arguments: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(arguments).is_ok()
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().count() <= LONGEST_NAME && name.chars().all(is_of_name)
}

fn is_of_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '_' | '-')
}

/// A text as JSON, without the quotes around it.
fn escaped(text: &str) -> Vec<u8> {
    let mut json = Value::from(text).to_string().into_bytes();
    json.pop();
    json.drain(..1);
    json
}

/// A request.
pub(super) struct Asked {
    /// The bytes to send.
    pub(super) body: Bytes,
    /// The part that determines the answer: the body without the transport fields.
    pub(super) identity: Bytes,
}

/// A message in the API's form.
#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'a str,
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

#[derive(Serialize)]
struct Call<'a> {
    id: &'a str,
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a str,
}

fn wire_message(message: &Message, resend_reasoning: bool) -> Vec<u8> {
    // In OpenAI's own form, the content of a message that only calls tools is `null`.
    let silent = message.content.is_empty() && !message.tool_calls.is_empty();
    let message = WireMessage {
        role: &message.role,
        content: (!silent).then_some(message.content.as_str()),
        reasoning_content: message.reasoning.as_deref().filter(|_| resend_reasoning),
        tool_calls: message.tool_calls.iter().map(call).collect(),
        tool_call_id: message.tool_call_id.as_deref(),
    };
    serde_json::to_vec(&message).unwrap_or_default()
}

fn call(call: &ToolCall) -> Call<'_> {
    Call { id: &call.id, r#type: "function", function: Function { name: &call.name, arguments: &call.arguments } }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use searchmill_schemas::Role;

    use super::*;
    use crate::protocol::{Protocol, ProtocolParams, ProtocolSettings};

    fn native(tool: Option<&str>) -> Arc<dyn Protocol> {
        ProtocolParams::ToolCall.open(&ProtocolSettings { tool, ..ProtocolSettings::default() })
    }

    fn params(value: Value) -> EndpointParams {
        serde_json::from_value(value).expect("params")
    }

    fn asked() -> Message {
        let call = ToolCall { id: "c1".into(), name: "search".into(), arguments: "{\"query\":\"a \\\"b\\\"\"}".into() };
        let mut message = Message::text(Role::Assistant, "");
        message.reasoning = Some("hm".into());
        message.tool_calls.push(call);
        message
    }

    fn parse(body: &Bytes) -> Value {
        serde_json::from_slice(body).expect("JSON")
    }

    #[test]
    fn a_body_has_the_settings_and_every_turn_in_order() {
        let params = params(json!({"base_url": "http://h/v1", "model": "m", "top_p": 0.9, "seed": 40,
            "extra": {"top_k": 20, "chat_template_kwargs": {"enable_thinking": false}}}));
        let frame = RequestFrame::new(&params, native(Some("search")).as_ref(), false);
        let mut conversation = Conversation::new(&frame, 2);
        let mut messages = vec![Message::text(Role::System, "S"), Message::text(Role::User, "line\n\"Q\" é")];
        let first = parse(&conversation.next(&messages, Offer::Tools).body);
        assert_eq!(first["messages"].as_array().map(Vec::len), Some(2));
        let mut tool = Message::text(Role::Tool, "[1] T");
        tool.tool_call_id = Some("c1".into());
        messages.extend([asked(), tool]);
        let second = parse(&conversation.next(&messages, Offer::Nothing).body);
        let wanted = json!({"model": "m", "temperature": 0.7, "top_p": 0.9, "max_tokens": 4096, "seed": 42, "top_k": 20,
            "chat_template_kwargs": {"enable_thinking": false},
            "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "line\n\"Q\" é"},
                {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
                    "function": {"name": "search", "arguments": "{\"query\":\"a \\\"b\\\"\"}"}}]},
                {"role": "tool", "content": "[1] T", "tool_call_id": "c1"}]});
        assert_eq!(second, wanted);
        assert_eq!(first["tools"][0]["function"]["name"], "search");
    }

    #[test]
    fn calls_that_no_server_accepts_are_sent_as_objects_and_known_as_the_model_wrote_them() {
        let params = params(json!({"base_url": "http://h/v1", "model": "m"}));
        let frame = RequestFrame::new(&params, native(Some("search")).as_ref(), false);
        let sent = |name: &str, arguments: &str| {
            let mut message = asked();
            message.tool_calls[0].name = name.into();
            message.tool_calls[0].arguments = arguments.into();
            let messages = [Message::text(Role::User, "Q"), message, asked()];
            let asked = Conversation::new(&frame, 0).next(&messages, Offer::Nothing);
            let function =
                |body: &Bytes, place: usize| parse(body)["messages"][place]["tool_calls"][0]["function"].clone();
            let written = json!({"name": name, "arguments": arguments});
            assert_eq!(function(&asked.identity, 1), written, "what the model wrote decides the answer");
            assert_eq!(function(&asked.body, 2), function(&asked.identity, 2), "other calls stay");
            let sent = function(&asked.body, 1);
            assert_eq!(sent == written, asked.body == asked.identity);
            (sent["name"].as_str().expect("a name").to_owned(), sent["arguments"].as_str().expect("a text").to_owned())
        };
        for fine in
            ["{}", "{\"query\": \"a\", \"k\": 1.0}", " {\"query\": \"é\\ud83d\\ude00\"}\n", "{\"q\": 1, \"q\": 2}"]
        {
            assert_eq!(sent("search", fine), ("search".to_owned(), fine.to_owned()));
        }
        for empty in ["", " \n"] {
            assert_eq!(sent("search", empty).1, "{}");
        }
        for broken in [
            "{\"query\": \"capital",
            "{'query': 1}",
            "[{\"query\": \"a\"}]",
            "\"a\"",
            "null",
            "3",
            "a\nb",
            "{\"query\": \"a\nb\"}",
            "{\"query\": NaN}",
            "{}</tool_call>",
            "{\"query\": \"\\ud83d\"}",
        ] {
            let object: Value = serde_json::from_str(&sent("search", broken).1).expect("JSON");
            assert_eq!(object, json!({"INVALID_JSON": broken}));
        }
        let long = "n".repeat(70);
        for (name, wanted) in
            [("search<|channel|>json", "search__channel__json"), ("", "_"), (" ", "_"), (long.as_str(), &long[..64])]
        {
            assert_eq!(sent(name, "{}"), (wanted.to_owned(), "{}".to_owned()));
        }
    }

    #[test]
    fn tokens_are_asked_for_with_sampling_that_no_default_changes() {
        let body = |given: Value| {
            let frame = RequestFrame::new(&params(given), native(None).as_ref(), true);
            parse(&Conversation::new(&frame, 0).next(&[Message::text(Role::User, "Q")], Offer::Nothing).body)
        };
        let chat = body(json!({"base_url": "http://h/v1", "model": "m", "temperature": 1, "extra": {"min_p": 0.1}}));
        let wanted = json!({"return_token_ids": true, "logprobs": true, "top_logprobs": 0, "top_p": 1.0, "top_k": -1,
            "min_p": 0.1, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0});
        for (name, value) in wanted.as_object().expect("an object") {
            assert_eq!(&chat[name], value, "{name}");
        }
        assert_eq!(chat.get("logprobs_mode"), None);
        let text =
            body(json!({"base_url": "http://h/v1", "model": "m", "api": "completions", "logprobs": "processed"}));
        assert_eq!((&text["logprobs"], &text["logprobs_mode"]), (&json!(1), &json!("processed_logprobs")));
        assert_eq!(text.get("top_logprobs"), None);
    }

    #[test]
    fn reasoning_goes_back_only_when_asked_for() {
        let mut given = params(json!({"base_url": "http://h/v1", "model": "m", "stream": true, "temperature": null}));
        let body = |params: &EndpointParams| {
            let frame = RequestFrame::new(params, native(None).as_ref(), false);
            parse(&Conversation::new(&frame, 0).next(&[asked()], Offer::Tools).body)
        };
        let without = body(&given);
        assert_eq!(without["messages"][0].get("reasoning_content"), None);
        assert_eq!((without.get("tools"), without.get("seed"), without.get("temperature")), (None, None, None));
        assert_eq!(without["stream_options"]["include_usage"], true);
        given.resend_reasoning = true;
        assert_eq!(body(&given)["messages"][0]["reasoning_content"], "hm");
    }

    #[test]
    fn a_text_protocol_continues_its_text_in_either_api() {
        let protocol = |plain| {
            let settings = ProtocolSettings { tool: Some("search"), plain, ..ProtocolSettings::default() };
            ProtocolParams::SearchR1.open(&settings)
        };
        let bodies = |given: Value, protocol: &dyn Protocol| {
            let frame = RequestFrame::new(&params(given), protocol, false);
            let mut conversation = Conversation::new(&frame, 0);
            let mut messages = protocol.opening("line\n\"Q\"?");
            let first = parse(&conversation.next(&messages, Offer::Tools).body);
            messages.push(Message::text(Role::Assistant, "<search> \"a\" </search>"));
            messages.push(Message::text(Role::Tool, "\n\n<information>é</information>\n\n"));
            (first, parse(&conversation.next(&messages, Offer::Nothing).body))
        };
        let text = "<search> \"a\" </search>\n\n<information>é</information>\n\n";
        let (first, second) = bodies(json!({"base_url": "http://h/v1", "model": "m"}), protocol(false).as_ref());
        assert_eq!((first["messages"].as_array().map(Vec::len), first.get("continue_final_message")), (Some(1), None));
        assert_eq!(second["messages"][1], json!({"role": "assistant", "content": text}));
        assert_eq!(
            (&second["continue_final_message"], &second["add_generation_prompt"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(second["stop"], json!(["</search>", "</answer>"]));
        assert_eq!((&first["separate_reasoning"], &second["separate_reasoning"]), (&json!(false), &json!(false)));
        let given = json!({"base_url": "http://h/v1", "model": "m", "api": "completions"});
        let (first, second) = bodies(given, protocol(true).as_ref());
        let prompt = first["prompt"].as_str().expect("a prompt");
        assert!(prompt.ends_with("Question: line\n\"Q\"?\n"), "{prompt}");
        assert_eq!(second["prompt"], json!(format!("{prompt}{text}")));
        assert_eq!((second.get("messages"), second.get("continue_final_message")), (None, None));
    }
}
