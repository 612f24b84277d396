//! Pooling: one vector for a text from those of its tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a text's vector is made of its tokens' vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The mean over all tokens.
    #[default]
    Mean,
    /// The first token's vector.
    Cls,
}

impl Pooling {
    /// A text's vector, of its tokens' vectors one after the other.
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
