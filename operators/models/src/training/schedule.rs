//! Which examples a step takes, how they are packed, and how fast it learns.

use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Tokens that a row of a pass takes at least, where the examples give as many.
const ROW: usize = 1024;

/// How the learning rate falls after the warm-up; as transformers' schedules of these names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// Half a cosine wave down to 0.
    #[default]
    Cosine,
    /// A straight line down to 0.
    Linear,
    /// Not at all.
    Constant,
}

/// The learning rate of each step.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub peak: f64,
    pub warmup: u64,
    pub total: u64,
    pub decay: Decay,
}

impl Rate {
    /// The rate of a step, from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * step as f64 / self.warmup as f64;
        }
        let share = (step - self.warmup) as f64 / (self.total - self.warmup).max(1) as f64;
        self.peak
            * match self.decay {
                Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * share).cos()),
                Decay::Linear => 1.0 - share,
                Decay::Constant => 1.0,
            }
    }
}

/// The order of examples: each epoch has one of its own, which the seed decides.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    pub examples: usize,
    pub batch: usize,
    pub seed: u64,
}

impl Order {
    /// Steps of one epoch; the last batch of an epoch may be smaller.
    pub fn steps_per_epoch(&self) -> u64 {
        self.examples.div_ceil(self.batch) as u64
    }

    /// The examples of a step, from 0.
    pub fn batch(&self, step: u64) -> Vec<usize> {
        let epoch = step / self.steps_per_epoch();
        let first = (step % self.steps_per_epoch()) as usize * self.batch;
        let shuffled = shuffled(self.examples, self.seed, epoch);
        shuffled[first..(first + self.batch).min(self.examples)].to_vec()
    }
}

/// 0 to `count` in an order that the seed and `stream` decide.
pub fn shuffled(count: usize, seed: u64, stream: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    chance.set_stream(stream);
    order.shuffle(&mut chance);
    order
}

/// What one forward and backward pass takes: the examples of each row.
pub type Pass = Vec<Vec<usize>>;

/// Packs examples of these lengths into passes of at most `most` tokens, filling up included (one example may be longer):
/// rows first, longest examples first, each into the first row that has room.
pub fn pack(lengths: &[(usize, usize)], most: usize) -> Vec<Pass> {
    let longest = lengths.iter().map(|(_, length)| *length).max().unwrap_or(0);
    let capacity = longest.max(ROW.min(most));
    let mut sorted = lengths.to_vec();
    sorted.sort_by_key(|(example, length)| (std::cmp::Reverse(*length), *example));
    let mut rows: Vec<(usize, Vec<usize>)> = Vec::new();
    for (example, length) in sorted {
        match rows.iter_mut().find(|(filled, _)| filled + length <= capacity) {
            Some((filled, row)) => {
                *filled += length;
                row.push(example);
            }
            None => rows.push((length, vec![example])),
        }
    }
    let rows: Vec<Vec<usize>> = rows.into_iter().map(|(_, row)| row).collect();
    rows.chunks((most / capacity).max(1)).map(<[_]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_transformers() {
        // get_cosine_schedule_with_warmup and get_linear_schedule_with_warmup, 2 of 10 steps, 4.56.
        let rate = |decay| Rate { peak: 1.0, warmup: 2, total: 10, decay };
        let near = |decay, wanted: [f64; 5]| {
            for (step, wanted) in [0, 1, 2, 6, 9].into_iter().zip(wanted) {
                assert!((rate(decay).at(step) - wanted).abs() < 1e-6, "{decay:?} {step}");
            }
        };
        near(Decay::Cosine, [0.0, 0.5, 1.0, 0.5, 0.038_060_2]);
        near(Decay::Linear, [0.0, 0.5, 1.0, 0.5, 0.125]);
        near(Decay::Constant, [0.0, 0.5, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn every_epoch_takes_each_example_once_in_an_order_of_its_own() {
        let order = Order { examples: 10, batch: 4, seed: 3 };
        assert_eq!(order.steps_per_epoch(), 3);
        let epoch = |first: u64| -> Vec<usize> { (first..first + 3).flat_map(|step| order.batch(step)).collect() };
        let (one, two) = (epoch(0), epoch(3));
        assert_ne!(one, two);
        for mut seen in [one, two] {
            seen.sort_unstable();
            assert_eq!(seen, (0..10).collect::<Vec<_>>());
        }
        assert_eq!(order.batch(2).len(), 2);
    }

    #[test]
    fn passes_hold_every_example_once_and_not_too_many_tokens() {
        let lengths: Vec<(usize, usize)> = (0..40).map(|n| (n, 100 + n * 37 % 400)).collect();
        let length = |example: &usize| lengths[*example].1;
        for most in [600, 2048, 100_000] {
            let passes = pack(&lengths, most);
            let mut seen: Vec<usize> = passes.iter().flatten().flatten().copied().collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..40).collect::<Vec<_>>());
            for pass in &passes {
                let widest = pass.iter().map(|row| row.iter().map(length).sum::<usize>()).max().unwrap();
                assert!(widest * pass.len() <= most, "{widest} {}", pass.len());
            }
        }
        assert_eq!(
            pack(&[(0, 5000), (1, 10)], 1000),
            [[[0]], [[1]]].map(|pass| pass.map(|row| row.to_vec()).to_vec()).to_vec(),
            "one too long stands alone"
        );
    }
}
