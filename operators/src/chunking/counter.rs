//! What a chunk's size is measured in: characters, words, or a tokenizer's tokens.

use super::memo::Memo;
use super::segment::Segmentation;
use super::tokenizer::TokenCounter;

/// The unit of size.
pub(crate) enum Counter {
    /// Unicode scalar values.
    Characters,
    /// What lies between single spaces, as chonkie's word tokenizer counts: one more than there are spaces.
    Words,
    /// Tokens of a Hugging Face tokenizer.
    Tokens(Box<TokenCounter>),
}

impl Counter {
    /// Starts counting in `document` and its parts.
    pub(crate) fn tally<'a>(&'a self, memo: &'a mut Memo, document: &str) -> Tally<'a> {
        let segmentation = match self {
            Self::Tokens(tokens) => tokens.segmentation_of(document),
            Self::Characters | Self::Words => None,
        };
        Tally { counter: self, memo, segmentation, fault: None }
    }
}

/// Counts within one document.
pub(crate) struct Tally<'a> {
    counter: &'a Counter,
    memo: &'a mut Memo,
    segmentation: Option<Segmentation>,
    fault: Option<String>,
}

impl Tally<'_> {
    /// The size of `text`, a part of the document.
    #[inline]
    pub(crate) fn count(&mut self, text: &str) -> usize {
        let counted = match (self.counter, self.segmentation) {
            (Counter::Characters, _) => Ok(text.chars().count()),
            (Counter::Words, _) => Ok(spaces(text) + 1),
            (Counter::Tokens(tokens), Some(rule)) => tokens.count(rule, text, self.memo),
            (Counter::Tokens(tokens), None) => tokens.encode(text),
        };
        counted.unwrap_or_else(|fault| self.failed(fault))
    }

    /// Byte offsets in `text`, a part of the document, where its units start; rising, on character boundaries.
    pub(crate) fn starts(&mut self, text: &str) -> Vec<usize> {
        match self.counter {
            Counter::Characters => text.char_indices().map(|(at, _)| at).collect(),
            Counter::Words => std::iter::once(0).chain(text.match_indices(' ').map(|(at, _)| at + 1)).collect(),
            Counter::Tokens(tokens) => tokens.starts(self.segmentation, text).unwrap_or_else(|fault| {
                self.failed(fault);
                Vec::new()
            }),
        }
    }

    /// What the tokenizer could not do since the tally began; all counts of the document are void then.
    pub(crate) fn fault(self) -> Option<String> {
        self.fault
    }

    #[cold]
    fn failed(&mut self, fault: String) -> usize {
        self.fault.get_or_insert(fault);
        0
    }
}

fn spaces(text: &str) -> usize {
    text.bytes().filter(|&byte| byte == b' ').count()
}
