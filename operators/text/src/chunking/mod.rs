//! Cuts a text into pieces: `counter` defines the unit, `recursive`, `token_window`, `sentence` and
//! `sections` the cuts.
//!
//! Every rule returns byte ranges of its input, in order. No text is lost.

mod counter;
#[cfg(test)]
pub(crate) mod fixture;
mod memo;
mod recursive;
mod sections;
mod segment;
mod sentence;
mod token_window;
mod tokenizer;
mod wordpiece;

pub use counter::{Counter, Tally};
pub use memo::Memo;
pub use recursive::Recursive;
pub use sections::{Section, sections};
pub use sentence::Sentences;
pub use token_window::TokenWindow;
pub use tokenizer::{TokenCounter, TokenizerFault, tokenizer_file};

/// One piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Byte offset of the first byte.
    pub start: usize,
    /// Byte offset after the last byte.
    pub end: usize,
    /// Length in the counter's unit, as the rule counts it.
    pub tokens: usize,
}
