//! The choice of a chat: text, reasoning and tool calls.

use std::sync::Arc;

use searchmill_models::inference::{Completion, Finish, parse_calls};
use serde_json::{Value, json};

use super::answer::Choice;
use super::wire::{Details, Served, finish_reason};

/// Tools that the model may call.
pub(crate) struct Offer {
    /// Name of the first one. Calls that cannot be read become calls of it, so that the client reports the mistake.
    pub(crate) first: String,
    /// Whether only the first call counts.
    pub(super) one_call: bool,
}

/// A model's turn: text as it arrives, tool calls complete at the end.
pub(super) struct Speech {
    served: Arc<Served>,
    /// Part of the ids of calls.
    id: String,
    offer: Option<Offer>,
    details: Details,
    /// Whether the thoughts are apart from the text.
    separates: bool,
    /// The text so far, with the `<think>` of the prompt if the thoughts are apart.
    text: String,
    /// What was sent of it.
    sent: Shown,
}

/// What clients see of a text.
#[derive(Default)]
struct Shown {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
}

const CALL: &str = "<tool_call>";
const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

impl Speech {
    pub(crate) fn new(served: &Arc<Served>, id: String, offer: Option<Offer>, details: Details, thinks: bool) -> Self {
        let text = if thinks { OPEN.to_owned() } else { String::new() };
        Self { served: Arc::clone(served), id, offer, details, separates: true, text, sent: Shown::default() }
    }

    /// Leaves the thoughts in the text, as the model wrote it.
    pub(super) fn in_one_text(self) -> Self {
        Self { separates: false, text: String::new(), ..self }
    }

    fn shown(&self, text: &str) -> Shown {
        if !self.separates && self.offer.is_none() {
            return Shown { content: text.to_owned(), ..Shown::default() };
        }
        let first = self.offer.as_ref().map_or("", |offer| offer.first.as_str());
        let speech = parse_calls(text, first);
        let mut calls = speech.calls;
        let content = if let Some(offer) = &self.offer {
            calls.truncate(if offer.one_call { 1 } else { calls.len() });
            speech.content
        } else {
            calls.clear();
            if text.contains(OPEN) || text.contains(CLOSE) { speech.said } else { text.to_owned() }
        };
        Shown { reasoning: speech.reasoning.unwrap_or_default(), content, calls }
    }

    /// Length of the text before a possible beginning of a tag.
    fn settled(&self) -> usize {
        let tags: &[&str] = if self.offer.is_some() { &[CALL, OPEN, CLOSE] } else { &[OPEN, CLOSE] };
        let mut begun = 0;
        for tag in tags {
            let longest = (1..tag.len()).rev().find(|count| self.text.ends_with(&tag[..*count]));
            begun = begun.max(longest.unwrap_or(0));
        }
        self.text.len() - begun
    }

    /// Returns the parts of `shown` that were not told.
    fn parts(&mut self, shown: Shown) -> Vec<Value> {
        let reasoning = new_part(&self.sent.reasoning, &shown.reasoning);
        let content = new_part(&self.sent.content, &shown.content);
        let mut parts = Vec::new();
        for (field, text) in [("reasoning_content", reasoning), ("content", content)] {
            if !text.is_empty() {
                parts.push(part(json!({field: text})));
            }
        }
        self.sent = shown;
        parts
    }

    fn calls(&self, calls: &[(String, String)]) -> Vec<Value> {
        let mut all = Vec::with_capacity(calls.len());
        for (number, (name, arguments)) in calls.iter().enumerate() {
            let id = format!("call_{}_{number}", self.id);
            all.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}));
        }
        all
    }

    fn ended(&self, choice: Value, with_calls: bool, done: &Completion) -> Value {
        let reason = match done.finish {
            Finish::Stop if with_calls => "tool_calls",
            finish => finish_reason(finish),
        };
        let logprobs = if self.details.logprobs { self.logprobs(done) } else { Value::Null };
        self.details.end(choice, reason, done, logprobs)
    }

    fn logprobs(&self, done: &Completion) -> Value {
        let mut others = done.alternatives.iter();
        let mut tokens = Vec::new();
        for (token, number) in self.details.drawn(done) {
            let mut drawn = self.logprob(token, number);
            let top = others.next().into_iter().flatten();
            drawn["top_logprobs"] = top.map(|(token, number)| self.logprob(*token, *number)).collect();
            tokens.push(drawn);
        }
        json!({"content": tokens, "refusal": null})
    }

    fn logprob(&self, token: u32, number: f32) -> Value {
        let text = self.served.model.token_text(token);
        // Parts of a character have no text, and their bytes are not known.
        let bytes = if text.contains('\u{FFFD}') { None } else { Some(text.as_bytes()) };
        json!({"token": text, "logprob": number, "bytes": bytes})
    }
}

impl Choice for Speech {
    fn whole(&self, done: &Completion) -> Value {
        let shown = self.shown(&format!("{}{}", self.text, done.text));
        let calls = self.calls(&shown.calls);
        // As in the API: a message with nothing but calls has null content.
        let no_text = shown.content.is_empty() && !calls.is_empty();
        let content = if no_text { Value::Null } else { json!(shown.content) };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !shown.reasoning.is_empty() {
            message["reasoning_content"] = json!(shown.reasoning);
        }
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
        }
        let choice = json!({"index": 0, "message": message, "logprobs": null});
        self.ended(choice, !calls.is_empty(), done)
    }

    fn start(&mut self) -> Vec<Value> {
        vec![part(json!({"role": "assistant", "content": ""}))]
    }

    fn more(&mut self, text: &str) -> Vec<Value> {
        self.text.push_str(text);
        // A tag may arrive in pieces: what may be its beginning is held back until it is clear.
        let shown = self.shown(&self.text[..self.settled()]);
        self.parts(shown)
    }

    fn end(&mut self, done: &Completion) -> Vec<Value> {
        let mut shown = self.shown(&self.text);
        let mut calls = self.calls(&std::mem::take(&mut shown.calls));
        let mut parts = self.parts(shown);
        // Clients put the parts of a streamed call together by its `index`.
        for (number, call) in calls.iter_mut().enumerate() {
            call["index"] = json!(number);
        }
        if !calls.is_empty() {
            parts.push(part(json!({"tool_calls": calls})));
        }
        parts.push(self.ended(part(json!({})), !calls.is_empty(), done));
        parts
    }
}

fn part(delta: Value) -> Value {
    json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": null})
}

/// Returns what a text has after the part that was told. A text that has become another one is told again.
fn new_part(told: &str, text: &str) -> String {
    text.strip_prefix(told).unwrap_or(if told.starts_with(text) { "" } else { text }).to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use searchmill_fixtures::models::model_folder;
    use searchmill_models::device::Compute;
    use searchmill_models::inference::{Opening, TextModel};

    use super::*;

    fn served() -> Arc<Served> {
        let opening = Opening { rows: 1, context: None, threads: 1, memory: None, compute: Compute::cpu() };
        let model = TextModel::open(model_folder(64).path(), None, opening).unwrap();
        Arc::new(Served { model, name: "m".to_owned(), max_tokens: 9, created: 0, answers: AtomicU64::new(0) })
    }

    fn done(text: &str) -> Completion {
        Completion {
            text: text.to_owned(),
            tokens: Vec::new(),
            log_probabilities: Vec::new(),
            alternatives: Vec::new(),
            finish: Finish::Stop,
            stop_token: Some(1),
            stop_log_probability: None,
            stop_text: None,
            prompt_tokens: 1,
            drawn: 1,
            reused: 0,
        }
    }

    /// Returns the whole message, after the parts of the streamed one came to the same, cut anywhere.
    fn message(text: &str, one_call: Option<bool>, thinks: bool) -> Value {
        let served = served();
        let new = || {
            let offer = one_call.map(|one_call| Offer { first: "search".to_owned(), one_call });
            Speech::new(&served, "x".to_owned(), offer, Details { logprobs: false, token_ids: false }, thinks)
        };
        let whole = new().whole(&done(text));
        for size in [1, 3, 7, 1000] {
            let (mut speech, letters) = (new(), text.chars().collect::<Vec<_>>());
            let mut parts: Vec<Value> = speech.start();
            letters.chunks(size).for_each(|piece| parts.extend(speech.more(&piece.iter().collect::<String>())));
            parts.extend(speech.end(&done(text)));
            let joined =
                |field: &str| -> String { parts.iter().filter_map(|part| part["delta"][field].as_str()).collect() };
            assert_eq!(joined("content"), whole["message"]["content"].as_str().unwrap_or_default(), "{size}");
            assert_eq!(joined("reasoning_content"), whole["message"]["reasoning_content"].as_str().unwrap_or_default());
            let calls: Vec<Value> =
                parts.iter().filter_map(|part| part["delta"]["tool_calls"].as_array()).flatten().cloned().collect();
            for (number, (told, call)) in
                calls.iter().zip(whole["message"]["tool_calls"].as_array().into_iter().flatten()).enumerate()
            {
                assert_eq!(
                    (&told["index"], &told["id"], &told["function"]),
                    (&json!(number), &call["id"], &call["function"])
                );
            }
            assert_eq!(calls.len(), whole["message"]["tool_calls"].as_array().map_or(0, Vec::len));
            assert_eq!(parts.last().unwrap()["finish_reason"], whole["finish_reason"]);
        }
        let mut message = whole["message"].clone();
        message["finish_reason"] = whole["finish_reason"].clone();
        message
    }

    const TWO: &str = " I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"q\": \"ß\"}}\n</tool_call>\n<tool_call>broken</tool_call>";

    #[test]
    fn calls_are_told_with_ids_and_only_where_tools_are_offered() {
        let both = message(TWO, Some(false), false);
        let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let calls = [call("call_x_0", "f", "{\"q\": \"ß\"}"), call("call_x_1", "search", "broken")];
        assert_eq!((&both["content"], &both["tool_calls"]), (&json!("I look."), &json!(calls)));
        assert_eq!(both["finish_reason"], "tool_calls");
        let one = message(TWO, Some(true), false);
        assert_eq!(one["tool_calls"], json!([calls[0]]));
        let none = message(TWO, None, false);
        assert_eq!((&none["content"], &none["finish_reason"]), (&json!(TWO), &json!("stop")));
        let silent = message("<tool_call>{\"name\": \"f\"}</tool_call>", Some(false), false);
        assert_eq!(silent["content"], Value::Null);
    }

    #[test]
    fn reasoning_is_apart_from_the_text() {
        for offer in [None, Some(false)] {
            for (text, thinks) in [("<think>\nHm, < so\n</think>\n\nYes.", false), ("Hm, < so\n</think>\n\nYes.", true)]
            {
                let found = message(text, offer, thinks);
                assert_eq!((&found["reasoning_content"], &found["content"]), (&json!("Hm, < so"), &json!("Yes.")));
            }
            let cut = message("not finished", offer, true);
            assert_eq!((&cut["reasoning_content"], &cut["content"]), (&json!("not finished"), &json!("")));
        }
        assert_eq!(message("2 < 3 <t", None, false)["content"], "2 < 3 <t");
    }
}
