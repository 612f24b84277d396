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

pub use counter::Counter;
pub use counter::Tally;
pub use memo::Memo;
pub use recursive::Recursive;
pub use sentence::Sentences;
pub use token_window::TokenWindow;
pub use tokenizer::{TokenCounter, TokenizerFault, tokenizer_file};

/// One piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Byte offset of its first byte.
    pub start: usize,
    /// Byte offset behind its last byte.
    pub end: usize,
    /// Its length as the rule counts it, in the counter's unit.
    pub tokens: usize,
}
