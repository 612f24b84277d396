//! The interface of encoders.

use searchmill_engine::operator::OperatorError;

/// Role of a text in a search. Some models need a prefix for each role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A search query.
    Query,
    /// A text to be found.
    Passage,
}

/// Encodes text as vectors. May be called from any number of threads.
pub trait Encoder: Send + Sync {
    /// Returns the length of a vector.
    fn dimensions(&self) -> usize;

    /// Returns the vectors of the texts, concatenated in order. A query's vector does not depend on the other texts, to the
    /// last bit.
    ///
    /// # Errors
    /// When a text cannot be tokenised, or the model fails.
    fn encode(&self, texts: &[&str], role: Role) -> Result<Vec<f32>, OperatorError>;

    /// Returns the bytes of the [`groups`](crate::groups::groups) in which passages are encoded, if encoding costs more than
    /// reading cached vectors. A passage's vector depends only on its group.
    fn group_bytes(&self) -> Option<usize> {
        None
    }
}
