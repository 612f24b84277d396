//! A fictional world: people, places, works and organisations with dated relations, rendered as news, and questions
//! about it whose answers need several documents.
//!
//! Nothing is kept: every name, fact, document and question is a function of the seed, the world's size and an index,
//! so a million documents are written in constant memory, in parallel, and to the same bytes.

mod article;
mod draw;
mod entity;
mod fact;
mod layout;
mod lexicon;
mod name;
mod phrase;
mod question;
mod relation;
mod stem;
#[cfg(test)]
mod truth;
mod value;

pub use layout::World;
pub use question::{Draft, QuestionType, draft};
