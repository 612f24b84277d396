//! Control tokens in content: documents, questions and tool results may contain texts such as `<|im_end|>`. Models read them as
//! plain text; only the chat template writes control tokens. Training encodes rendered examples by the same rule.

use std::ops::Range;

use tokenizers::Tokenizer;

use crate::initial::tokenizer::MARKS;

/// Unicode noncharacters, which texts do not contain. One of them marks cuts while a template is rendered.
const UNUSED: Range<u32> = 0xFDD0..0xFDF0;

/// The control tokens of a tokenizer, as texts.
#[derive(Clone, Debug, Default)]
pub struct ControlTokens(Vec<String>);

/// Text for a model, and the offsets at which it is cut before encoding: inside each control token that is content.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    pub text: String,
    cuts: Vec<usize>,
}

impl ControlTokens {
    /// Returns the special tokens of a tokenizer.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let added = tokenizer.get_added_tokens_decoder();
        let special = added.values().filter(|token| token.special && token.content.chars().count() > 1);
        let mut texts: Vec<String> = special.map(|token| token.content.clone()).collect();
        // Models write the tags of Hermes themselves. They are text, even if a tokenizer marks them as special.
        texts.retain(|text| !MARKS.contains(&text.as_str()));
        texts.sort_unstable();
        Self(texts)
    }

    /// Whether this text is a control token.
    pub(super) fn has(&self, text: &str) -> bool {
        self.0.iter().any(|token| token == text)
    }

    /// Returns the offsets after the first character of each control token in a content. Cut there, no control token remains.
    pub fn cuts(&self, content: &str) -> Vec<usize> {
        let mut cuts = Vec::new();
        // Most contents have none: the search for a whole text is faster than the one for all places.
        for token in self.0.iter().filter(|token| content.contains(token.as_str())) {
            let first = token.chars().next().map_or(0, char::len_utf8);
            // Advance one byte, not one token: tokens may overlap.
            for at in 0..content.len() {
                if content.as_bytes()[at..].starts_with(token.as_bytes()) {
                    cuts.push(at + first);
                }
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        cuts
    }

    /// Returns the content with a mark at each cut.
    pub(super) fn marked(&self, content: &str, mark: char) -> String {
        let cuts = self.cuts(content);
        if cuts.is_empty() {
            return content.to_owned();
        }
        let mut marked = String::with_capacity(content.len() + cuts.len() * mark.len_utf8());
        for (at, next) in content.char_indices() {
            if cuts.binary_search(&at).is_ok() {
                marked.push(mark);
            }
            marked.push(next);
        }
        marked
    }
}

/// Returns a mark that none of the texts contains.
pub(super) fn unused_mark<'t>(texts: impl Iterator<Item = &'t str> + Clone) -> Option<char> {
    UNUSED.filter_map(char::from_u32).find(|mark| !texts.clone().any(|text| text.contains(*mark)))
}

impl From<&str> for Prompt {
    /// Creates a prompt without content: every control token in the text is one.
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), cuts: Vec::new() }
    }
}

impl Prompt {
    /// Creates a prompt from text rendered with marked content.
    pub(super) fn of_marked(rendered: &str, mark: char) -> Self {
        let mut prompt = Self::default();
        for (number, piece) in rendered.split(mark).enumerate() {
            if number > 0 {
                prompt.cuts.push(prompt.text.len());
            }
            prompt.text.push_str(piece);
        }
        prompt
    }

    /// Creates a prompt from rendered text in which these ranges are content.
    pub(crate) fn of_text(text: &str, content: &[Range<usize>], control: &ControlTokens) -> Self {
        let mut prompt = Self::from(text);
        for range in content {
            let Some(content) = text.get(range.clone()) else { continue };
            for cut in control.cuts(content) {
                prompt.cuts.push(range.start + cut);
            }
        }
        prompt
    }

    /// Cuts the text at its end: what follows is encoded separately.
    pub fn cut(&mut self) {
        self.cuts.push(self.text.len());
    }

    /// Appends content.
    pub fn push(&mut self, content: &str, control: &ControlTokens) {
        for cut in control.cuts(content) {
            self.cuts.push(self.text.len() + cut);
        }
        self.text.push_str(content);
    }

    /// Whether this text with its cuts begins with another one.
    pub(super) fn begins_with(&self, other: &Self) -> bool {
        let end = other.text.len();
        self.text.starts_with(&other.text)
            && self.cuts.iter().filter(|cut| **cut < end).eq(other.cuts.iter().filter(|cut| **cut < end))
    }

    /// Returns the first place from `from` on at which one of these control tokens stands, and the number of that token.
    pub(super) fn first_control(&self, from: usize, tokens: &[String]) -> Option<(usize, usize)> {
        let rest = self.text.get(from..)?;
        let mut first = None;
        for (number, token) in tokens.iter().enumerate() {
            // An empty text stands for a token that is no control token: it would be found everywhere.
            if token.is_empty() {
                continue;
            }
            for (offset, _) in rest.match_indices(token.as_str()) {
                let at = from + offset;
                // A cut within it: the same text, but as content.
                if self.cuts.iter().any(|cut| at < *cut && *cut < at + token.len()) {
                    continue;
                }
                if first.is_none_or(|earlier| (at, number) < earlier) {
                    first = Some((at, number));
                }
                break;
            }
        }
        first
    }

    /// Returns the tokens, each with its byte range in the text.
    ///
    /// # Errors
    /// When the tokenizer cannot read the text.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<(u32, Range<usize>)>, String> {
        self.encode_part(tokenizer, 0..self.text.len())
    }

    /// Returns the tokens of a part of the text, encoded separately.
    ///
    /// # Errors
    /// When the tokenizer cannot read the text, or the range does not fit it.
    pub(crate) fn encode_part(
        &self,
        tokenizer: &Tokenizer,
        part: Range<usize>,
    ) -> Result<Vec<(u32, Range<usize>)>, String> {
        let within = self.cuts.iter().copied().filter(|cut| part.start < *cut && *cut < part.end);
        let (mut tokens, mut start) = (Vec::new(), part.start);
        for end in within.chain([part.end]) {
            let piece = self.text.get(start..end).ok_or("a range does not fit the text")?;
            let encoded = tokenizer.encode(piece, false).map_err(|error| error.to_string())?;
            // The offsets count from the start of the piece.
            for (token, (from, to)) in encoded.get_ids().iter().zip(encoded.get_offsets()) {
                tokens.push((*token, start + from..start + to));
            }
            start = end;
        }
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use searchmill_fixtures::models::byte_tokenizer;

    #[test]
    fn content_holds_no_control_token_however_they_overlap() {
        let control = ControlTokens(vec!["<<".to_owned(), "<|a|>".to_owned()]);
        assert_eq!(control.cuts("x<<<|a|> é<|a|>"), [2, 3, 4, 12]);
        assert_eq!(control.marked("é<|a|>", '!'), "é<!|a|>");
        assert_eq!(control.marked("plain < text", '!'), "plain < text");
    }

    #[test]
    fn a_cut_token_is_plain_text_and_the_templates_own_is_not() {
        let tokenizer = byte_tokenizer();
        let control = ControlTokens::of(&tokenizer);
        let mut prompt = Prompt::of_text("<|im_start|>a<|im_end|>", &[], &control);
        assert_eq!(prompt.encode(&tokenizer).unwrap().iter().map(|token| token.0).collect::<Vec<_>>(), [257, 97, 258]);
        prompt.push("<|im_end|>", &control);
        let tokens = prompt.encode(&tokenizer).unwrap();
        assert_eq!(tokens.len(), 3 + "<|im_end|>".len());
        assert_eq!(tokens[3], (u32::from(b'<'), 23..24));
        assert_eq!(tokens.last(), Some(&(u32::from(b'>'), 32..33)));
    }

    #[test]
    fn control_tokens_of_content_are_not_found() {
        let control = ControlTokens(vec!["<|e|>".to_owned()]);
        let prompt = Prompt::of_text("a<|e|>b<|e|>c", std::slice::from_ref(&(1..6)), &control);
        let stops = ["<|x|>".to_owned(), "<|e|>".to_owned()];
        assert_eq!(prompt.first_control(0, &stops), Some((7, 1)));
        assert_eq!(prompt.first_control(8, &stops), None);
        assert!(prompt.begins_with(&Prompt::of_text("a<|e|>b", std::slice::from_ref(&(1..6)), &control)));
        assert!(!prompt.begins_with(&"a<|e|>b".into()), "the same text, but not as content");
    }

    #[test]
    fn a_mark_is_one_that_no_text_holds() {
        assert_eq!(unused_mark(["a"].into_iter()), Some('\u{FDD0}'));
        assert_eq!(unused_mark(["\u{FDD0}", "\u{FDD1}"].into_iter()), Some('\u{FDD2}'));
    }
}
