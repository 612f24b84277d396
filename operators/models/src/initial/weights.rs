//! Seeded random weights of an untrained network.

use candle_core::{Device, Tensor};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use searchmill_engine::operator::OperatorError;

/// Returns random weights as a `.safetensors` file in f32: normally distributed with this deviation, as in transformers; norms
/// are 1 and biases 0. Each tensor has its own random stream, so it depends on the seed, its index and its size only.
pub fn file(tensors: &[(String, Vec<usize>)], deviation: f64, seed: u64) -> Result<Vec<u8>, OperatorError> {
    let mut drawn = Vec::with_capacity(tensors.len());
    for (index, (name, shape)) in tensors.iter().enumerate() {
        let numbers = draw(name, shape.iter().product(), deviation, seed, index as u64);
        let tensor = Tensor::from_vec(numbers, shape.as_slice(), &Device::Cpu).map_err(unwritable)?;
        drawn.push((name.as_str(), tensor));
    }
    // transformers reads only files that name their framework.
    let metadata = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(drawn, Some(metadata)).map_err(unwritable)
}

fn unwritable(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::engine(format!("cannot write the weights: {error}"))
}

fn draw(name: &str, count: usize, deviation: f64, seed: u64, index: u64) -> Vec<f32> {
    if name.ends_with("norm.weight") {
        return vec![1.0; count];
    }
    if name.rsplit('.').next() == Some("bias") {
        return vec![0.0; count];
    }
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    chance.set_stream(index);
    (0..count).map(|_| (normal(&mut chance) * deviation) as f32).collect()
}

/// Draws a normally distributed number (Box and Muller 1958).
fn normal(chance: &mut ChaCha8Rng) -> f64 {
    // 1 minus the number, which may be 0 but never 1: its logarithm is finite.
    let radius = (-2.0 * (1.0 - chance.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * chance.random::<f64>()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_have_the_deviation_asked_for() {
        let numbers = draw("model.embed_tokens.weight", 100_000, 0.02, 7, 0);
        let mean = numbers.iter().map(|x| f64::from(*x)).sum::<f64>() / 1e5;
        let variance = numbers.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 3e-4 && (variance.sqrt() - 0.02).abs() < 2e-4, "{mean} {variance}");
        assert_eq!(draw("model.norm.weight", 2, 0.02, 7, 1), [1.0, 1.0]);
        assert_eq!(draw("q_proj.bias", 2, 0.02, 7, 1), [0.0, 0.0]);
    }

    #[test]
    fn a_file_depends_on_its_seed() {
        let tensors = [("a.weight".to_owned(), vec![3, 2]), ("b.weight".to_owned(), vec![2])];
        let once = file(&tensors, 0.02, 1).unwrap();
        assert_eq!(file(&tensors, 0.02, 1).unwrap(), once);
        assert_ne!(file(&tensors, 0.02, 2).unwrap(), once);
        let read = safetensors::SafeTensors::deserialize(&once).unwrap();
        assert_eq!(read.tensor("a.weight").unwrap().shape(), [3, 2]);
    }
}
