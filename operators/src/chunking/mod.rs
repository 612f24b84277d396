//! Cutting a text into pieces: what is counted (`counter`), and where it is cut (`recursive`, `token_window`,
//! `sentence`). Every rule gives byte ranges of the text it was given, in order; nothing of the text is lost.

mod counter;
#[cfg(test)]
pub(crate) mod fixture;
mod memo;
mod recursive;
mod segment;
mod sentence;
mod token_window;
mod tokenizer;
mod wordpiece;

pub(crate) use counter::{Counter, Tally};
pub(crate) use memo::Memo;
pub(crate) use recursive::Recursive;
pub(crate) use sentence::Sentences;
pub(crate) use token_window::TokenWindow;
pub(crate) use tokenizer::{TokenCounter, TokenizerFault, tokenizer_file};

/// One piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Byte offset of its first byte.
    pub(crate) start: usize,
    /// Byte offset behind its last byte.
    pub(crate) end: usize,
    /// Its length as the rule counts it, in the counter's unit.
    pub(crate) tokens: usize,
}
