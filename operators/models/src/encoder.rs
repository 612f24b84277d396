//! What every encoder can do.

use searchmill_engine::operator::OperatorError;

/// Which side of the search a text is on; some models want a prefix that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// What is searched for.
    Query,
    /// What is found.
    Passage,
}

/// Turns text into vectors. Any number of threads may encode at once.
pub trait Encoder: Send + Sync {
    /// Length of a vector.
    fn dimensions(&self) -> usize;

    /// The texts' vectors one after the other, in their order. A query's vector does not depend on what else is encoded
    /// with it, to the last bit.
    ///
    /// # Errors
    /// When a text cannot be tokenized or the model fails.
    fn encode(&self, texts: &[&str], role: Role) -> Result<Vec<f32>, OperatorError>;

    /// Bytes of the [`groups`](crate::groups::groups) in which passages are encoded, if that costs more than reading
    /// kept vectors: a passage's vector depends on its group alone.
    fn group_bytes(&self) -> Option<usize> {
        None
    }
}
