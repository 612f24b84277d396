//! A fictional world rendered as news: people, places, works and organisations with dated relations, and questions
//! whose answers need several documents.
//!
//! Nothing is stored. Every name, fact, document and question is a function of the seed, the world's size and an index.
//! A million documents are therefore generated in constant memory, in parallel, with equal bytes.

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
mod truth_tests;
mod value;

pub use layout::World;
pub use question::{Draft, QuestionType, draft};
