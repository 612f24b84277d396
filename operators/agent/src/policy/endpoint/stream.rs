//! Streamed answers: joins server-sent events into one message.

use serde_json::Value;

use super::response::{Completion, Heard, MOST_BYTES, TokenUsage, WireCall, WireMessage, error_message, text};
use super::tokens::WireTokens;
use crate::tool::plain;

/// Maximum length of a line in bytes.
const MOST_LINE_BYTES: usize = 4 << 20;

/// Joins the pieces of a streamed answer. Call `feed` with bytes as they arrive.
#[derive(Default)]
pub(super) struct StreamReader {
    pending: Vec<u8>,
    /// The last complete line with data.
    last: Vec<u8>,
    /// Number of bytes fed so far.
    fed: usize,
    model: Option<String>,
    usage: Option<TokenUsage>,
    finish_reason: Option<String>,
    stop_reason: Option<Value>,
    content: String,
    reasoning: String,
    calls: Vec<CallPieces>,
    tokens: WireTokens,
    done: bool,
}

#[derive(Default)]
struct CallPieces {
    id: Option<String>,
    name: String,
    arguments: String,
}

impl StreamReader {
    /// Processes bytes; lines may be split anywhere.
    ///
    /// # Errors
    /// If an event is not valid in the API.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.fed += bytes.len();
        self.pending.extend_from_slice(bytes);
        if self.fed > MOST_BYTES {
            return Err(format!("the stream is longer than {} MiB (limit)", MOST_BYTES >> 20));
        }
        // The pending bytes contain no line end.
        let fresh = self.pending.len() - bytes.len();
        let Some(end) = self.pending[fresh..].iter().rposition(|byte| *byte == b'\n').map(|end| fresh + end) else {
            let within = self.pending.len() <= MOST_LINE_BYTES;
            let too_long = || format!("a line of the stream is longer than {} MiB (limit)", MOST_LINE_BYTES >> 20);
            return within.then_some(()).ok_or_else(too_long);
        };
        let rest = self.pending.split_off(end + 1);
        let lines = std::mem::replace(&mut self.pending, rest);
        lines.split(|byte| *byte == b'\n').try_for_each(|line| self.line(line))
    }

    /// The last line with data, for error messages.
    pub(super) fn last_line(&self) -> &[u8] {
        &self.last
    }

    /// Returns the whole message.
    ///
    /// # Errors
    /// If the stream ended before the message.
    pub(super) fn finish(mut self) -> Result<Heard, String> {
        let last = std::mem::take(&mut self.pending);
        self.line(&last)?;
        if !self.done && self.finish_reason.is_none() {
            return Err("the stream ended before the answer did".to_owned());
        }
        let calls = self.calls.into_iter().map(CallPieces::whole).collect();
        let message = WireMessage {
            content: Some(Value::String(self.content)),
            reasoning_content: Some(self.reasoning),
            tool_calls: Some(calls),
            ..WireMessage::default()
        };
        let message = serde_json::to_value(message).map_err(|error| error.to_string())?;
        let heard = Heard::new(message, self.model, self.usage, self.finish_reason)?;
        Ok(heard.stopped_by(self.stop_reason).of_tokens(self.tokens))
    }

    /// Processes one line: `data: {…}`, `data: [DONE]`, or a line to ignore (comment, event name, blank).
    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let Some(payload) = line.trim_ascii().strip_prefix(b"data:") else { return Ok(()) };
        line.clone_into(&mut self.last);
        match payload.trim_ascii() {
            b"" => Ok(()),
            b"[DONE]" => {
                self.done = true;
                Ok(())
            }
            json => {
                let piece = serde_json::from_slice(json)
                    .map_err(|error| format!("an event of the stream is not a chat completion: {error}"))?;
                self.piece(piece)
            }
        }
    }

    fn piece(&mut self, piece: Completion) -> Result<(), String> {
        if let Some(error) = &piece.error {
            return Err(format!("the stream broke off with an error: {}", error_message(error)));
        }
        self.model = self.model.take().or(piece.model);
        self.usage = piece.usage.or(self.usage);
        if let Some(mut choice) = piece.choices.and_then(|choices| choices.into_iter().next()) {
            choice.tokens(piece.prompt_token_ids, &mut self.tokens);
            let stopped_by = choice.stopped_by();
            self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
            // Servers send `null` with every piece until the last.
            self.stop_reason = stopped_by.filter(|_| self.finish_reason.is_some()).or(self.stop_reason.take());
            self.content.push_str(&choice.text.unwrap_or_default());
            let whole = || choice.message.and_then(|message| serde_json::from_value(message).ok());
            if let Some(delta) = choice.delta.or_else(whole) {
                self.delta(delta);
            }
        }
        Ok(())
    }

    fn delta(&mut self, delta: WireMessage) {
        self.content.push_str(&delta.content.as_ref().map(text).unwrap_or_default());
        self.content.push_str(&delta.refusal.unwrap_or_default());
        self.reasoning.push_str(&delta.reasoning_content.or(delta.reasoning).unwrap_or_default());
        for call in delta.tool_calls.unwrap_or_default() {
            self.call(call);
        }
    }

    /// Adds a piece to its call: by index or, if the server sends no index, a new call for each id.
    fn call(&mut self, call: WireCall) {
        const MOST_CALLS: usize = 1024;
        let begins = call.id.as_ref().is_some_and(|id| !id.is_empty());
        let unnumbered = if begins { self.calls.len() } else { self.calls.len().saturating_sub(1) };
        let place = call.index.unwrap_or(unnumbered).min(MOST_CALLS);
        if self.calls.len() <= place {
            self.calls.resize_with(place + 1, CallPieces::default);
        }
        let pieces = &mut self.calls[place];
        pieces.id = pieces.id.take().or(call.id);
        pieces.name.push_str(&call.function.name.unwrap_or_default());
        pieces.arguments.push_str(&call.function.arguments.as_ref().map(plain).unwrap_or_default());
    }
}

impl CallPieces {
    fn whole(self) -> WireCall {
        let mut call = WireCall { id: self.id, ..WireCall::default() };
        call.function.name = Some(self.name);
        call.function.arguments = Some(Value::String(self.arguments));
        call
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: &str = ": keep-alive\r\n\r\ndata: {\"model\":\"m\",\"choices\":[{\"delta\":{\"role\":\"assistant\",\"reasoning\":\"hm\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"Let me \"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"löok.\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"search\",\"arguments\":\"{\\\"que\"}}]}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"b\",\"function\":{\"name\":\"search\",\"arguments\":\"{}\"}}]}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"ry\\\":\\\"x\\\"}\"}}]}}]}\n\n\
        data: {\"prompt_token_ids\":[1],\"choices\":[{\"delta\":{},\"token_ids\":[2],\"logprobs\":{\"content\":[{\"logprob\":-1}]},\"finish_reason\":\"tool_calls\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":9}}\n\ndata: [DONE]\n\n";

    fn read(events: &[u8], step: usize) -> Result<Heard, String> {
        let mut reader = StreamReader::default();
        events.chunks(step).try_for_each(|piece| reader.feed(piece))?;
        reader.finish()
    }

    #[test]
    fn a_stream_cut_anywhere_gives_the_same_message() {
        for step in [1, 2, 3, 7, 64, 4096] {
            let heard = read(EVENTS.as_bytes(), step).expect("a message");
            let message = heard.message().expect("a message");
            assert_eq!((message.content.as_str(), message.reasoning.as_deref()), ("Let me löok.", Some("hm")));
            let calls: Vec<_> = message.tool_calls.iter().map(|c| (c.id.as_str(), c.arguments.as_str())).collect();
            assert_eq!(calls, [("a", "{\"query\":\"x\"}"), ("b", "{}")]);
            assert_eq!((message.prompt_tokens, message.completion_tokens), (Some(5), Some(9)));
            assert_eq!((message.finish_reason.as_deref(), heard.model().as_deref()), (Some("tool_calls"), Some("m")));
            assert_eq!(heard.tokens().whole().expect("tokens").0, [1]);
        }
    }

    #[test]
    fn streams_that_end_early_or_carry_errors_are_errors() {
        let cut = EVENTS.find("data: {\"prompt_token_ids\"").expect("the last piece");
        let told = read(&EVENTS.as_bytes()[..cut], 50).expect_err("an error");
        assert!(told.contains("ended before"), "{told}");
        let told = read(b"data: {\"error\":{\"message\":\"overloaded\"}}\n\n", 9).expect_err("an error");
        assert!(told.ends_with("overloaded"), "{told}");
        assert!(read(b"data: {\"choices\": [\n\n", 9).expect_err("an error").contains("not a chat completion"));
        assert!(read(b"", 9).expect_err("an error").contains("ended before"));
    }

    #[test]
    fn lines_and_streams_have_limits() {
        let mut reader = StreamReader::default();
        let line = vec![b'x'; 1 << 20];
        let fed = (0..5).try_for_each(|_| reader.feed(&line));
        assert_eq!(fed.expect_err("too long"), "a line of the stream is longer than 4 MiB (limit)");
        let mut reader = StreamReader::default();
        let line = [&b":"[..], &vec![b'x'; (1 << 20) - 2], b"\n"].concat();
        assert!((0..32).try_for_each(|_| reader.feed(&line)).is_ok());
        assert_eq!(reader.feed(b"\n").expect_err("too long"), "the stream is longer than 32 MiB (limit)");
    }

    #[test]
    fn calls_without_numbers_begin_at_each_id() {
        let events = b"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"s\",\"arguments\":\"{}\"}}]}}]}\n\
            data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"id\":\"b\",\"function\":{\"name\":\"s\",\"arguments\":\"{\"}}]}}]}\n\
            data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"}\"}}]},\"finish_reason\":\"tool_calls\"}]}\n";
        let calls = read(events, 100).and_then(|heard| heard.message()).expect("a message").tool_calls;
        let shown: Vec<_> = calls.iter().map(|c| (c.id.as_str(), c.arguments.as_str())).collect();
        assert_eq!(shown, [("a", "{}"), ("b", "{}")]);
    }
}
