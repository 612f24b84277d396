//! Texts and counters for the tests of this module.

use serde_json::Value;

use super::TokenCounter;

/// A word that is too long for the cache.
const LONG: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
const HANGUL: &str = "한국어";

/// Text parts that exercise every rule: delimiters, scripts, marks, control characters, added tokens.
pub(crate) const PARTS: [&str; 56] = [
    "\n\n", "\r\n", "\n", "\r", ". ", "! ", "? ", "{", "}", "\"", "[", "]", "<", ">", "(", ")", ":", ";", ",", "—",
    "|", "~", "-", "...", "`", "'", " ", "  ", "\t", "\u{a0}", "\u{85}", "\u{301}", "é", "e\u{301}", "中", "文", "İ",
    "ß", "😀", "\0", "\u{b}", "\u{200b}", "ﬁ", "\u{37e}", "[CLS]", "[MASK]", "##ing", "word", "The", "1234", "'s",
    HANGUL, "≠", "<\u{338}", "\u{2028}", LONG,
];

/// Parses a token counter from the content of a `tokenizer.json`.
pub(crate) fn parse(file: &Value) -> TokenCounter {
    TokenCounter::parse(file.to_string().as_bytes()).expect("a tokenizer")
}
