//! Terms of Chinese, Japanese and Korean text.
//!
//! Adjacent characters form overlapping pairs (the rule of Lucene's CJKBigramFilter). A single character becomes a term
//! by itself. Words in other scripts stay whole.

use std::iter::Peekable;
use std::str::CharIndices;

use tantivy::tokenizer::{Token, TokenStream, Tokenizer};

/// Splits text into pairs of ideographs, kana and Hangul syllables, and whole words of other scripts.
#[derive(Clone)]
pub(crate) struct CjkTokenizer;

impl Tokenizer for CjkTokenizer {
    type TokenStream<'a> = CjkTokens;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> CjkTokens {
        CjkTokens { tokens: split(text), next: 0 }
    }
}

/// The tokens of one text.
pub(crate) struct CjkTokens {
    tokens: Vec<Token>,
    next: usize,
}

impl TokenStream for CjkTokens {
    fn advance(&mut self) -> bool {
        self.next += 1;
        self.next <= self.tokens.len()
    }

    fn token(&self) -> &Token {
        &self.tokens[self.next - 1]
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.tokens[self.next - 1]
    }
}

/// Whether a character is an ideograph (extensions and compatibility forms included), hiragana, katakana or a Hangul
/// syllable.
pub(crate) fn is_cjk(c: char) -> bool {
    // U+3005 to U+3007 (々, 〆, 〇) lie among the punctuation, but stand in words like ideographs.
    matches!(u32::from(c),
        0x3005..=0x3007 | 0x3040..=0x30FF | 0x31F0..=0x31FF | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xAC00..=0xD7AF
        | 0xF900..=0xFAFF | 0xFF66..=0xFF9F | 0x20000..=0x3FFFF)
}

fn split(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.char_indices().peekable();
    while let Some(&(start, first)) = rest.peek() {
        if !first.is_alphanumeric() {
            rest.next();
            continue;
        }
        let cjk = is_cjk(first);
        let bounds = run(&mut rest, text, |c| c.is_alphanumeric() && is_cjk(c) == cjk);
        let end = *bounds.last().unwrap_or(&start);
        let width = if cjk { 2.min(bounds.len() - 1) } else { bounds.len() - 1 };
        for pair in bounds.windows(width + 1) {
            let (offset_from, offset_to) = (pair[0], *pair.last().unwrap_or(&end));
            let (position, text) = (tokens.len(), text[offset_from..offset_to].to_owned());
            tokens.push(Token { offset_from, offset_to, position, text, position_length: 1 });
        }
    }
    tokens
}

/// Consumes the characters that fit. Returns their start offsets, then the offset after the last one.
fn run(rest: &mut Peekable<CharIndices>, text: &str, fits: impl Fn(char) -> bool) -> Vec<usize> {
    let mut bounds = Vec::new();
    while let Some((offset, _)) = rest.next_if(|(_, c)| fits(*c)) {
        bounds.push(offset);
    }
    bounds.push(rest.peek().map_or(text.len(), |(offset, _)| *offset));
    bounds
}
