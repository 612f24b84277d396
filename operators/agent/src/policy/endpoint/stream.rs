//! Streamed answers: joins server-sent events into one message.

use serde_json::Value;

use super::lenient_json::parse;
use super::response::Heard;
use super::tokens::WireTokens;
use super::wire::{Completion, TokenUsage, WireCall, WireMessage, error_message, text};

/// Fields of the lines of an event stream.
const FIELDS: [&str; 5] = ["data:", "event:", "id:", "retry:", ":"];

/// Whether a body is a stream of events: a server may send one unasked, or not if it was asked.
pub(super) fn is_stream(body: &[u8]) -> bool {
    FIELDS.iter().any(|field| body.starts_with(field.as_bytes()))
}

/// Reads a streamed answer.
///
/// # Errors
/// If an event is none of the API, or the stream ended before the answer did.
pub(super) fn read(body: &[u8]) -> Result<Heard, String> {
    let mut joined = Joined::default();
    joined.lines(body)?;
    // Only a reason tells that the answer is whole: proxies send `[DONE]` after a server that broke off, too.
    if joined.finish_reason.is_none() {
        let end = if joined.done { ": it has no `finish_reason`" } else { "" };
        return Err(format!("the stream ended before the answer did{end}"));
    }
    joined.heard().unless_given_up()
}

/// Returns what a stream says up to its end, or to the event that cannot be read.
pub(super) fn so_far(body: &[u8]) -> Heard {
    let mut joined = Joined::default();
    joined.lines(body).ok();
    joined.heard()
}

/// Returns the last line with data, for error messages.
pub(super) fn last_line(body: &[u8]) -> &[u8] {
    let mut lines = body.rsplit(|byte| matches!(byte, b'\n' | b'\r'));
    lines.find(|line| line.starts_with(b"data:")).unwrap_or_default()
}

/// Pieces of a streamed answer, joined.
#[derive(Default)]
struct Joined {
    /// Data of an event whose JSON goes on in the next line.
    unfinished: Vec<u8>,
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

impl Joined {
    fn lines(&mut self, body: &[u8]) -> Result<(), String> {
        // Lines end in LF, CR or both: the empty line within CR LF is ignored like any other.
        for line in body.split(|byte| matches!(byte, b'\n' | b'\r')) {
            self.line(line)?;
        }
        if self.unfinished.is_empty() { Ok(()) } else { Err("the stream ended within an event".to_owned()) }
    }

    /// Processes one line: `data: {…}`, `data: [DONE]`, or a line to ignore (comment, event name, blank).
    fn line(&mut self, line: &[u8]) -> Result<(), String> {
        let Some(payload) = line.trim_ascii().strip_prefix(b"data:") else { return Ok(()) };
        let payload = payload.trim_ascii();
        if payload.is_empty() {
            return Ok(());
        }
        if payload == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        self.unfinished.extend_from_slice(payload);
        match parse(&self.unfinished) {
            Ok(piece) => {
                self.unfinished.clear();
                self.piece(piece)
            }
            Err(error) if error.is_eof() => {
                // The standard joins the lines of one event so (HTML, section 9.2).
                self.unfinished.push(b'\n');
                Ok(())
            }
            Err(error) => Err(format!("an event of the stream is not a chat completion: {error}")),
        }
    }

    fn piece(&mut self, piece: Completion) -> Result<(), String> {
        if let Some(error) = &piece.error {
            return Err(format!("the stream broke off with an error: {}", error_message(error)));
        }
        self.model = self.model.take().or(piece.model);
        // Some servers count up in every piece: the last count is that of the answer.
        self.usage = piece.usage.or(self.usage);
        if let Some(mut choice) = piece.choices.and_then(|choices| choices.into_iter().next()) {
            choice.tokens(piece.prompt_token_ids, &mut self.tokens);
            let stopped_by = choice.stopped_by();
            self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
            // Servers send `null` with every piece until the last.
            self.stop_reason = stopped_by.filter(|_| self.finish_reason.is_some()).or(self.stop_reason.take());
            self.content.push_str(&choice.text.unwrap_or_default());
            let mut delta = choice.delta.or(choice.message).unwrap_or_default();
            self.reasoning.push_str(&delta.thought().unwrap_or_default());
            self.content.push_str(&delta.content.as_ref().map(text).unwrap_or_default());
            self.content.push_str(&delta.refusal.unwrap_or_default());
            for call in delta.tool_calls {
                self.call(call);
            }
        }
        Ok(())
    }

    /// Adds a piece to its call, or begins a new call.
    fn call(&mut self, piece: WireCall) {
        let Some(place) = self.place_of(&piece) else {
            self.calls.push(CallPieces::of(piece));
            return;
        };
        let call = &mut self.calls[place];
        if !call.is_followed_by(&piece) {
            call.add(piece);
            return;
        }
        let again = std::mem::take(&mut call.is_named_again).then(|| call.name.clone());
        let mut next = CallPieces::of(piece);
        if next.name.is_empty() {
            next.name = again.unwrap_or_default();
        }
        self.calls.push(next);
    }

    /// Finds the latest call that a piece may belong to: by its index, or without one the last call. A number that is new
    /// begins a call, unless the piece brings neither a name nor an id that is new.
    fn place_of(&self, piece: &WireCall) -> Option<usize> {
        let found = self.calls.iter().rposition(|call| piece.index.is_none() || call.index == piece.index);
        if found.is_some() || piece.is_named() {
            return found;
        }
        match piece.id.as_deref().filter(|id| !id.is_empty()) {
            Some(id) => self.calls.iter().rposition(|call| call.id == id),
            None => self.calls.len().checked_sub(1),
        }
    }

    /// Returns the whole message.
    fn heard(mut self) -> Heard {
        let indices: Vec<_> = self.calls.iter().map(|call| call.index).collect();
        let mut known = indices.iter().enumerate();
        // Some servers number all calls 0: then they stand as they came.
        if known.all(|(position, index)| index.is_some() && !indices[..position].contains(index)) {
            self.calls.sort_by_key(|call| call.index);
        }
        let message = WireMessage {
            content: Some(Value::String(self.content)),
            reasoning_content: Some(self.reasoning),
            tool_calls: self.calls.into_iter().map(CallPieces::whole).collect(),
            ..WireMessage::default()
        };
        let mut heard = Heard::new(message, self.model, self.usage, self.finish_reason);
        (heard.stop_reason, heard.tokens) = (self.stop_reason, self.tokens.reported());
        heard
    }
}

/// Pieces of a call, joined.
#[derive(Default)]
struct CallPieces {
    index: Option<usize>,
    id: String,
    name: String,
    arguments: String,
    /// Whether the name came again after complete arguments: further arguments are those of another call.
    is_named_again: bool,
}

impl CallPieces {
    fn of(piece: WireCall) -> Self {
        let mut call = Self { index: piece.index, ..Self::default() };
        call.add(piece);
        call
    }

    /// Whether a piece with the index of this call begins another call. Servers that give all calls one index, or none, tell
    /// them apart by their ids. Without ids, a call ends where its arguments are complete and a name comes again. Other
    /// servers repeat the name with every piece, or make up an id for every piece.
    fn is_followed_by(&self, piece: &WireCall) -> bool {
        if piece.id.as_deref().is_some_and(|id| !id.is_empty() && id != self.id) {
            return piece.is_named() && !self.name.is_empty();
        }
        let is_same_id = piece.id.as_deref().is_some_and(|id| !id.is_empty());
        let other = piece.is_named() && piece.name.as_deref() != Some(&self.name);
        let more = piece.arguments.as_deref().is_some_and(|arguments| !arguments.trim().is_empty());
        let begins = other || more && (piece.is_named() || self.is_named_again);
        !is_same_id && begins && self.is_complete()
    }

    /// Whether the arguments are a whole object. An empty one may stand for arguments that are still to come.
    fn is_complete(&self) -> bool {
        let arguments = self.arguments.trim();
        let is_object = arguments.starts_with('{') && arguments.ends_with('}') && arguments != "{}";
        is_object && serde_json::from_str::<serde::de::IgnoredAny>(arguments).is_ok()
    }

    fn add(&mut self, piece: WireCall) {
        let name = piece.name.unwrap_or_default();
        self.is_named_again |= !name.is_empty() && self.is_complete();
        // Some servers repeat the name with every piece.
        if name != self.name {
            self.name.push_str(&name);
        }
        if self.id.is_empty() {
            self.id = piece.id.unwrap_or_default();
        }
        let arguments = piece.arguments.unwrap_or_default();
        // The empty object stood for the arguments that come now.
        if self.arguments == "{}" && arguments.trim_start().starts_with('{') {
            self.arguments.clear();
        }
        self.arguments.push_str(&arguments);
    }

    fn whole(self) -> WireCall {
        WireCall { index: None, id: Some(self.id), name: Some(self.name), arguments: Some(self.arguments) }
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

    #[test]
    fn a_stream_gives_one_message_whatever_ends_its_lines() {
        for end in ["\n", "\r\n", "\r"] {
            let heard = read(EVENTS.replace("\r\n", "\n").replace('\n', end).as_bytes()).expect("a message");
            let message = heard.message();
            assert_eq!((message.content.as_str(), message.reasoning.as_deref()), ("Let me löok.", Some("hm")));
            let calls: Vec<_> = message.tool_calls.iter().map(|c| (c.id.as_str(), c.arguments.as_str())).collect();
            assert_eq!(calls, [("a", "{\"query\":\"x\"}"), ("b", "{}")]);
            assert_eq!((message.prompt_tokens, message.completion_tokens), (Some(5), Some(9)));
            assert_eq!((message.finish_reason.as_deref(), heard.model.as_deref()), (Some("tool_calls"), Some("m")));
            assert_eq!(heard.tokens.unwrap_or_default().whole().expect("tokens").0, [1]);
        }
    }

    fn told(events: &str) -> String {
        read(events.as_bytes()).expect_err("an error")
    }

    #[test]
    fn streams_that_end_early_or_carry_errors_are_errors() {
        let cut = EVENTS.find("data: {\"prompt_token_ids\"").expect("the last piece");
        assert_eq!(told(&EVENTS[..cut]), "the stream ended before the answer did");
        assert!(told("data: {\"error\":{\"message\":\"overloaded\"}}\n\n").ends_with("overloaded"));
        assert!(told("data: {\"choices\": x\n\n").contains("not a chat completion"));
        assert!(told("data: {\"choices\": [\n\n").contains("ended within an event"));
        assert!(told("data: [DONE]\n\n").contains("ended before"));
        for blank in ["\"\"", "\"null\"", "null", "\" \"", "\"None\""] {
            let piece = |text: &str| {
                format!(
                    "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":{blank}}}]}}\n\n"
                )
            };
            let cut = piece("The river is ") + &piece("<answer>Ta");
            assert!(told(&cut).contains("ended before"), "{blank}");
            assert!(told(&(cut.clone() + "data: [DONE]\n\n")).contains("no `finish_reason`"), "{blank}");
            let whole = cut
                + "data: {\"choices\":[{\"delta\":{\"content\":\"el</answer>\"},\"finish_reason\":\"stop\"}]}\n\n"
                + &piece("");
            let message = read(whole.as_bytes()).expect("a message").message();
            assert_eq!(message.content, "The river is <answer>Tael</answer>", "{blank}");
            assert_eq!(message.finish_reason.as_deref(), Some("stop"));
        }
        let given_up = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"error\"}]}\n\n";
        assert!(told(given_up).contains("ended the answer early"));
    }

    /// The calls of a stream of these pieces of calls.
    fn calls(pieces: &[&str]) -> Vec<(String, String, String)> {
        let event = |call: &&str| format!("data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\n");
        let events: String = pieces.iter().map(event).collect();
        let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n";
        let message = read((events + end).as_bytes()).expect("a message").message();
        message.tool_calls.into_iter().map(|call| (call.id, call.name, call.arguments)).collect()
    }

    #[test]
    fn parallel_calls_are_told_apart_as_servers_number_them() {
        let (a, b) = (("a", "s", r#"{"q":"x"}"#), ("b", "s", r#"{"q":"y"}"#));
        let named = |(id, name, arguments): (&str, &str, &str)| (id.to_owned(), name.to_owned(), arguments.to_owned());
        let both = [a, b].map(named);
        let unnamed = [("call_0", a.1, a.2), ("call_1", b.1, b.2)].map(named);
        // One index for all, each call whole, or in pieces.
        let whole = |id: &str, q: &str| {
            format!(r#"{{"index":0,"id":"{id}","function":{{"name":"s","arguments":"{{\"q\":\"{q}\"}}"}}}}"#)
        };
        assert_eq!(calls(&[&whole("a", "x"), &whole("b", "y")]), both);
        let pieces = |index: &str, ids: [&str; 2]| {
            let begin = |id: &str| format!(r#"{{{index}"id":"{id}","function":{{"name":"s","arguments":""}}}}"#);
            let more = |text: &str| format!(r#"{{{index}"function":{{"arguments":"{text}"}}}}"#);
            let [x, y] = ids.map(begin);
            let texts = [r#"{\"q\""#, r#":\"x\"}"#, r#"{\"q\":"#, r#"\"y\"}"#].map(more);
            let [one, two, three, four] = texts;
            calls(&[&x, &one, &two, &y, &three, &four])
        };
        assert_eq!(pieces(r#""index":0,"#, ["a", "b"]), both);
        assert_eq!(pieces("", ["a", "b"]), both);
        assert_eq!(pieces(r#""index":null,"#, ["a", "b"]), both);
        assert_eq!(pieces(r#""index":0,"#, ["", ""]), unnamed, "by the name that comes again");
        assert_eq!(pieces("", ["", ""]), unnamed);
        // Numbers that begin at 1, or come in another order.
        let at = |index: u32, id: &str, q: &str| whole(id, q).replace("\"index\":0", &format!("\"index\":{index}"));
        assert_eq!(calls(&[&at(1, "a", "x"), &at(2, "b", "y")]), both);
        assert_eq!(calls(&[&at(7, "b", "y"), &at(3, "a", "x")]), both);
        assert_eq!(calls(&[&at(0, "a", "x"), &at(1, "a", "y")]), [named(a), ("call_1".into(), "s".into(), b.2.into())]);
        assert_eq!(calls(&[&at(9_999_999, "a", "x")]), [named(a)], "no calls before it");
        let other = r#"{"index":0,"function":{"name":"t","arguments":""}}"#;
        let of_other = r#"{"index":0,"function":{"arguments":"{}"}}"#;
        let two = [named(a), ("call_1".into(), "t".into(), "{}".into())];
        assert_eq!(calls(&[&whole("a", "x"), other, of_other]), two, "another tool");
    }

    #[test]
    fn what_is_sent_again_with_each_piece_of_a_call_is_no_new_call() {
        let piece = |id: &str, name: &str, text: &str| {
            format!(r#"{{"index":0,"id":{id},"function":{{"name":{name},"arguments":"{text}"}}}}"#)
        };
        let wanted = [("a".to_owned(), "s".to_owned(), r#"{"q":"x"}"#.to_owned())];
        for (id, name) in [("\"a\"", "\"s\""), ("\"\"", "\"s\""), ("null", "null"), ("\"\"", "\"\""), ("null", "\"s\"")]
        {
            let (one, two) = (piece(id, name, r#"{\"q\":"#), piece(id, name, r#"\"x\"}"#));
            assert_eq!(calls(&[&piece("\"a\"", "\"s\"", ""), &one, &two]), wanted, "{id} {name}");
            assert_eq!(calls(&[&piece("\"a\"", "\"s\"", ""), &one, &two, &piece(id, name, "")]), wanted, "{id} {name}");
        }
        let object = r#"{"index":0,"id":"a","function":{"name":"s","arguments":{}}}"#;
        assert_eq!(calls(&[object, &piece("null", "null", r#"{\"q\":"#), &piece("null", "null", r#"\"x\"}"#)]), wanted);
        let whole = r#"{"index":0,"id":"a","function":{"name":"s","arguments":{"q":"x"}}}"#;
        assert_eq!(calls(&[whole]), wanted);
        let parts = [r#"{"index":0,"id":"a","function":{"name":"se"}}"#, r#"{"index":0,"function":{"name":"arch"}}"#];
        assert_eq!(calls(&parts)[0].1, "search");
    }

    #[test]
    fn halves_of_characters_may_stand_in_two_events() {
        let escaped = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\\ud83d\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"\\ude00b\"},\"finish_reason\":\"stop\"}]}\n\n";
        assert_eq!(read(escaped).expect("a message").message().content, "a😀b");
        let bytes = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\xf0\x9f\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"\x98\x80b\"},\"finish_reason\":\"stop\"}]}\n\n";
        assert_eq!(read(bytes).expect("a message").message().content, "a😀b");
        let calls = calls(&[
            r#"{"index":0,"id":"a","function":{"name":"s","arguments":"{\"q\":\"\ud83d"}}"#,
            r#"{"index":0,"function":{"arguments":"\ude00\"}"}}"#,
        ]);
        assert_eq!(calls[0].2, "{\"q\":\"😀\"}");
    }

    #[test]
    fn an_event_may_have_several_lines() {
        let events = "event: message\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"},\ndata: \"finish_reason\":\"stop\"}]}\n\n";
        assert_eq!(read(events.as_bytes()).expect("a message").message().content, "a");
        assert!(is_stream(events.as_bytes()) && is_stream(b": hi\n") && !is_stream(b"{\"data:\": 1}"));
        assert_eq!(last_line(b"data: a\n\ndata: b\n\n:c"), b"data: b");
    }
}
