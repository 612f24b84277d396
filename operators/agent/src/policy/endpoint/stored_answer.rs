//! Stored form of an answer: the body as it came, parsed on every read. What this parser cannot read is stored, too: a
//! later one may, and nobody pays again. Whoever changes what the parser gives raises the `VERSION` of the operators that
//! ask models, so that their rows are read again from what is stored.
//!
//! A body that holds a secret is stored as the parser understood it, without the secret. Up to version 0.1, all answers
//! were stored so.

use std::borrow::Cow;

use searchmill_engine::operator::Redactor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::response::{self, Heard};
use super::stream;

/// Longer bodies are stored compressed: each token of a streamed answer is an event of some hundred bytes.
const LONG: usize = 4 << 10;

/// A complete response, without its transport encoding.
pub(super) struct Raw {
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Raw {
    /// Parses the answer: a whole one or a streamed one, whichever was asked for.
    ///
    /// # Errors
    /// If it is no answer, or not all of one.
    pub(super) fn heard(&self) -> Result<Heard, String> {
        let body = self.body.trim_ascii_start();
        let body = body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body).trim_ascii_start();
        match body {
            [] => Err("the response is empty".to_owned()),
            body if stream::is_stream(body) => stream::read(body),
            body => response::read(body),
        }
    }

    /// The part of the body that shows what is wrong with it.
    fn detail(&self) -> String {
        let body =
            if stream::is_stream(self.body.trim_ascii_start()) { stream::last_line(&self.body) } else { &self.body };
        String::from_utf8_lossy(body).into_owned()
    }

    /// Removes secrets. Returns the answer without them, if the body cannot be stored.
    fn clean(&mut self, heard: &Result<Heard, String>, redactor: &Redactor) -> Option<Heard> {
        if redactor.is_empty() {
            return None;
        }
        self.content_type.iter_mut().for_each(|text| redactor.clean(text));
        let text = String::from_utf8_lossy(&self.body);
        let struck = redactor.strike(&text);
        let is_struck = matches!(struck, Cow::Owned(_));
        let heard = match heard {
            Ok(heard) => heard.clone(),
            // The pieces of a stream hold a secret that no piece holds.
            Err(_) if stream::is_stream(self.body.trim_ascii_start()) => stream::so_far(&self.body),
            Err(_) => {
                if let Cow::Owned(struck) = struck {
                    self.body = struck.into_bytes();
                }
                return None;
            }
        };
        let mut clean = heard.clone();
        clean.clean(redactor);
        (is_struck || clean != heard).then_some(clean)
    }
}

/// First line of a stored answer; the body follows.
#[derive(Serialize, Deserialize)]
struct Head {
    /// Number of attempts.
    calls: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    /// Whether the body is compressed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    zstd: bool,
}

/// An answer without its body.
#[derive(Serialize)]
struct Understood {
    #[serde(flatten)]
    heard: Heard,
    calls: u64,
}

/// Returns the stored form of a response, and the answer in it.
pub(super) fn write(mut raw: Raw, calls: u64, redactor: &Redactor) -> Result<(Vec<u8>, Result<Heard, String>), String> {
    let heard = raw.heard();
    let is_read = heard.is_ok();
    if let Some(clean) = raw.clean(&heard, redactor) {
        if is_read {
            let stored = serde_json::to_vec(&Understood { heard: clean.clone(), calls });
            return Ok((stored.map_err(|error| error.to_string())?, Ok(clean)));
        }
        // No parser can read it any more.
        raw.body = b"{\"error\": \"the answer could not be read, and is not kept, as it holds a secret\"}".to_vec();
    }
    // A body that cannot be compressed is stored as it is.
    let packed = if raw.body.len() > LONG { zstd::encode_all(raw.body.as_slice(), 1).ok() } else { None };
    let head = Head { calls, content_type: raw.content_type, zstd: packed.is_some() };
    let mut stored = serde_json::to_vec(&head).map_err(|error| error.to_string())?;
    // `serde_json` writes no raw line break: the first one ends the head.
    stored.push(b'\n');
    stored.extend(packed.unwrap_or(raw.body));
    Ok((stored, heard))
}

/// A stored answer.
pub(super) struct StoredAnswer {
    pub(super) heard: Heard,
    /// Number of attempts.
    pub(super) calls: u64,
}

/// Why a stored answer cannot be read.
pub(super) struct Unread {
    pub(super) message: String,
    /// What came.
    pub(super) detail: String,
}

impl From<String> for Unread {
    fn from(message: String) -> Self {
        Self { message, detail: String::new() }
    }
}

impl StoredAnswer {
    /// Reads a stored answer; `streams`: answers are streamed.
    ///
    /// # Errors
    /// If it is no answer, or not all of one.
    pub(super) fn read(stored: &[u8], streams: bool) -> Result<Self, Unread> {
        let Some(end) = stored.iter().position(|byte| *byte == b'\n') else {
            // Stored without its body.
            let value: Value = serde_json::from_slice(stored).map_err(|error| error.to_string())?;
            let calls = value["calls"].as_u64().ok_or("it has no number of attempts".to_owned())?;
            // Streams that were cut were stored as complete if each event said so.
            let is_cut = matches!(value["finish_reason"].as_str().map(str::trim), Some("" | "null"));
            if streams && is_cut {
                return Err(Unread::from("the stream ended before the answer did".to_owned()));
            }
            return Ok(Self { heard: serde_json::from_value(value).map_err(|error| error.to_string())?, calls });
        };
        let head: Head = serde_json::from_slice(&stored[..end]).map_err(|error| error.to_string())?;
        let body = &stored[end + 1..];
        let body = if head.zstd { zstd::decode_all(body) } else { Ok(body.to_vec()) };
        let raw = Raw { content_type: head.content_type, body: body.map_err(|error| error.to_string())? };
        match raw.heard() {
            Ok(heard) => Ok(Self { heard, calls: head.calls }),
            Err(message) => Err(Unread { message, detail: raw.detail() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(body: &str) -> Raw {
        Raw { content_type: Some("application/json".to_owned()), body: body.as_bytes().to_vec() }
    }

    fn stream(pieces: &[&str], reason: &str) -> String {
        let event = |piece: &&str| format!("data: {}\n\n", json!({"choices": [{"delta": {"content": piece}}]}));
        let end = format!("data: {}\n\n", json!({"choices": [{"delta": {}, "finish_reason": reason}]}));
        pieces.iter().map(event).collect::<String>() + &end
    }

    fn kept(body: &str, redactor: &Redactor) -> (Vec<u8>, Result<StoredAnswer, String>) {
        let (stored, heard) = write(raw(body), 3, redactor).expect("a stored form");
        let read = StoredAnswer::read(&stored, true);
        if let Ok(kept) = &read {
            assert_eq!((Ok(&kept.heard), kept.calls), (heard.as_ref(), 3));
        }
        (stored, read.map_err(|unread| unread.message))
    }

    fn said(body: &str) -> Result<String, String> {
        kept(body, &Redactor::default()).1.map(|kept| kept.heard.message().content)
    }

    #[test]
    fn answers_are_stored_as_they_came_and_read_again() {
        let body = json!({"choices": [{"message": {"content": "Tael", "new": 1}}], "other": [1.0, {"b": 1, "a": 2}]});
        let body = format!("{body:#}\n");
        assert_eq!(said(&body), Ok("Tael".to_owned()));
        let (stored, _) = kept(&body, &Redactor::default());
        assert!(stored.ends_with(body.as_bytes()), "every byte");
        assert_eq!(said(&format!("\u{feff}\n{body}")), Ok("Tael".to_owned()));
        let words = vec!["word "; 2000];
        let events = stream(&words, "stop");
        let (stored, read) = kept(&events, &Redactor::default());
        assert_eq!(read.map(|kept| kept.heard.message().content), Ok(words.concat()));
        assert!(stored.len() < words.concat().len(), "{} bytes for {}", stored.len(), events.len());
    }

    #[test]
    fn what_cannot_be_read_is_stored_as_well() {
        for (body, told) in [
            ("", "empty"),
            (" \n", "empty"),
            ("null", "not a chat completion"),
            ("<html>busy</html>", "not a chat completion"),
            ("{\"output\": [{\"text\": \"a later form\"}]}", "no choices"),
            (stream(&["The river is <answer>Ta"], "").as_str(), "ended before the answer did"),
        ] {
            let (stored, read) = kept(body, &Redactor::default());
            assert!(read.err().expect("no answer").contains(told), "{body}");
            assert!(stored.ends_with(body.as_bytes()), "{body}");
        }
    }

    #[test]
    fn no_secret_is_stored_in_any_form() {
        let redactor = Redactor::default();
        redactor.learn("KEY", "sk-live-5f3a");
        let whole = json!({"choices": [{"message": {"content": "by sk-live-5f3a."}}]}).to_string();
        let escaped = whole.replace("sk-live", "\\u0073k-live");
        let beside = json!({"choices": [{"message": {"content": "by"}}], "id": "sk-live-5f3a"}).to_string();
        let split = stream(&["by sk-", "live", "-5f", "3a."], "stop");
        for (body, wanted) in [
            (&whole, "by [secret KEY]."),
            (&escaped, "by [secret KEY]."),
            (&beside, "by"),
            (&split, "by [secret KEY]."),
        ] {
            let (stored, read) = kept(body, &redactor);
            assert_eq!(read.map(|kept| kept.heard.message().content), Ok(wanted.to_owned()));
            assert!(!String::from_utf8_lossy(&stored).contains("5f"), "{body}");
        }
        for body in [stream(&["by sk-", "live", "-5f", "3a."], ""), "no JSON: sk-live-5f3a".to_owned()] {
            let (stored, read) = kept(&body, &redactor);
            assert!(read.is_err() && !String::from_utf8_lossy(&stored).contains("5f"), "{body}");
        }
        let clean = json!({"choices": [{"message": {"content": "by"}}], "id": "x"}).to_string();
        assert!(kept(&clean, &redactor).0.ends_with(clean.as_bytes()), "a body without a secret stays");
    }

    #[test]
    fn answers_of_earlier_versions_count_unless_they_are_cut_streams() {
        let old = |reason: Value| {
            let call = json!({"index": null, "id": "c", "function": {"name": "s", "arguments": {"q": "x"}}});
            let message = json!({"content": "Tael", "refusal": null, "reasoning_content": "", "reasoning": null, "tool_calls": [call]});
            let usage = json!({"prompt_tokens": 1, "completion_tokens": 2});
            json!({"model": "m", "message": message, "usage": usage, "finish_reason": reason, "calls": 2}).to_string()
        };
        let read = |reason: Value, streams| {
            StoredAnswer::read(old(reason).as_bytes(), streams).map_err(|unread| unread.message)
        };
        let kept = read(json!("stop"), true).expect("an answer");
        let message = kept.heard.message();
        assert_eq!((message.content.as_str(), message.reasoning.as_deref(), kept.calls), ("Tael", None, 2));
        assert_eq!(message.tool_calls[0].arguments, r#"{"q":"x"}"#);
        assert_eq!((message.prompt_tokens, message.finish_reason.as_deref()), (Some(1), Some("stop")));
        assert!(read(Value::Null, true).is_ok() && read(json!(""), false).is_ok());
        assert!(read(json!(""), true).is_err() && read(json!("null"), true).is_err());
    }
}
