//! Randomness that depends only on a row and its sample, so that every run and order gives the same result.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use searchmill_text::fnv::{OFFSET, fnv1a};

/// Returns a random stream for one sample of one row.
pub fn stream(seed: u64, row: &str, sample: u32) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    // A collision only gives equal wording, so no stronger hash is needed.
    key[8..16].copy_from_slice(&fnv1a(OFFSET, row.as_bytes()).to_le_bytes());
    key[16..20].copy_from_slice(&sample.to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;

    #[test]
    fn rows_samples_and_seeds_have_streams_of_their_own() {
        let draw = |seed, row, sample| stream(seed, row, sample).random::<u64>();
        assert_eq!(draw(1, "q7", 2), draw(1, "q7", 2));
        assert_ne!(draw(1, "q7", 2), draw(1, "q7", 3));
        assert_ne!(draw(1, "q7", 2), draw(1, "q8", 2));
        assert_ne!(draw(1, "q7", 2), draw(2, "q7", 2));
    }
}
