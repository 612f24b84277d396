//! Streaming of tokens to text, and stop strings.

use std::sync::Arc;

use tokenizers::Tokenizer;

/// Writes a row's text token by token. A character of several tokens appears when it is complete.
pub(super) struct Writer {
    tokenizer: Arc<Tokenizer>,
    tokens: Vec<u32>,
    /// Tokens before this one are kept only because some decoders look back.
    context: usize,
    /// Tokens before this one are written.
    written: usize,
    text: String,
    stops: Vec<String>,
    keep_stop: bool,
    /// Index of the stop string that ended the text.
    stopped: Option<usize>,
}

/// Replacement of an incomplete character.
const BROKEN: char = '\u{FFFD}';

impl Writer {
    /// `keep_stop`: the stop string that ends the text is part of it.
    pub(super) fn new(tokenizer: Arc<Tokenizer>, stops: Vec<String>, keep_stop: bool) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        let (tokens, text) = (Vec::new(), String::new());
        Self { tokenizer, tokens, context: 0, written: 0, text, stops, keep_stop, stopped: None }
    }

    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the stop string that ended the text.
    pub(super) fn stopped(&self) -> Option<&str> {
        self.stopped.and_then(|stop| self.stops.get(stop)).map(String::as_str)
    }

    /// Appends a token. Returns true if a stop string ended the text, which is cut there.
    pub(super) fn push(&mut self, token: u32) -> bool {
        self.tokens.push(token);
        self.write(false)
    }

    /// Writes the rest, complete or not. Returns true if a stop string ended the text.
    pub(super) fn finish(&mut self) -> bool {
        self.write(true)
    }

    /// Returns the length of the text that no stop string can cut any more.
    pub(super) fn settled(&self) -> usize {
        let unsettled = self.stops.iter().map(|stop| unfinished(&self.text, stop)).max().unwrap_or(0);
        self.text.len() - unsettled
    }

    fn write(&mut self, all: bool) -> bool {
        // Decoded twice and compared: what a token writes depends on the ones before it.
        let before = self.decode(&self.tokens[self.context..self.written]);
        let after = self.decode(&self.tokens[self.context..]);
        let new = after.strip_prefix(before.as_str()).unwrap_or_default();
        // The rest of a character may come with the next token.
        if new.is_empty() || (new.ends_with(BROKEN) && !all) {
            return false;
        }
        let searched = self.text.len();
        self.text.push_str(new);
        self.context = self.written;
        self.written = self.tokens.len();
        self.stop(searched)
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, false).unwrap_or_default()
    }

    /// Cuts the text at the first stop string that ends after `searched` (of several at one place, the first in the list).
    fn stop(&mut self, searched: usize) -> bool {
        let matches = self.stops.iter().enumerate().filter_map(|(number, stop)| {
            // It may have begun before the new text, which is all that was not searched.
            let mut from = (searched + 1).saturating_sub(stop.len());
            while !self.text.is_char_boundary(from) {
                from -= 1;
            }
            self.text[from..].find(stop.as_str()).map(|at| (from + at, number))
        });
        let Some((first, number)) = matches.min() else { return false };
        let included = if self.keep_stop { self.stops[number].len() } else { 0 };
        self.text.truncate(first + included);
        self.stopped = Some(number);
        true
    }
}

/// Returns the number of bytes at the end of a text that may start a stop string.
fn unfinished(text: &str, stop: &str) -> usize {
    let longest = stop.len().saturating_sub(1).min(text.len());
    (1..=longest).rev().find(|count| stop.as_bytes().starts_with(&text.as_bytes()[text.len() - count..])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::models::byte_tokenizer;

    use super::*;

    fn writer(stops: &[&str], keep_stop: bool) -> Writer {
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        Writer::new(Arc::new(byte_tokenizer()), stops, keep_stop)
    }

    #[test]
    fn characters_appear_whole() {
        let mut writer = writer(&[], false);
        let mut seen = Vec::new();
        for byte in "aß東 ".bytes() {
            assert!(!writer.push(u32::from(byte)));
            seen.push(writer.text().to_owned());
        }
        assert_eq!(seen, ["a", "a", "aß", "aß", "aß", "aß東", "aß東 "]);
        writer.push(0xE6);
        writer.finish();
        assert_eq!(writer.text(), "aß東 \u{FFFD}");
    }

    #[test]
    fn stop_strings_end_the_text_wherever_tokens_are_cut() {
        for (keep_stop, text) in [(false, "x <y "), (true, "x <y </a>")] {
            let mut writer = writer(&["ß東", "</a>"], keep_stop);
            let mut ended = false;
            for (at, byte) in "x <y </a> z".bytes().enumerate() {
                assert_eq!(writer.stopped(), None);
                ended = writer.push(u32::from(byte));
                if ended {
                    assert_eq!(at, 8);
                    break;
                }
                let settled = &writer.text()[..writer.settled()];
                assert!(!settled.contains("</"), "{settled}");
            }
            assert!(ended);
            assert_eq!((writer.text(), writer.stopped()), (text, Some("</a>")));
        }
    }
}
