//! Pooling: the vector of a text from the vectors of its tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the vector of a text is computed from the vectors of its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The mean of all tokens.
    #[default]
    Mean,
    /// The first token's vector.
    Cls,
}

impl Pooling {
    /// Computes the vector of a text from the concatenated vectors of its tokens.
    pub(super) fn pool(self, tokens: &[f32], dimensions: usize) -> Vec<f32> {
        let mut vector = vec![0.0; dimensions];
        match self {
            Self::Cls => vector.copy_from_slice(&tokens[..dimensions]),
            Self::Mean => {
                let share = 1.0 / (tokens.len() / dimensions).max(1) as f32;
                for token in tokens.chunks_exact(dimensions) {
                    for (sum, number) in vector.iter_mut().zip(token) {
                        *sum += number;
                    }
                }
                for sum in &mut vector {
                    *sum *= share;
                }
            }
        }
        vector
    }
}
