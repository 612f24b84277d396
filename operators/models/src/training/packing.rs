//! Examples of each step, and how they are packed into passes.

use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Minimum capacity of a row in tokens, within the limit of a pass.
const ROW: usize = 1024;

/// The order of examples, shuffled by the seed for each epoch.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    pub examples: usize,
    pub batch: usize,
    pub seed: u64,
}

impl Order {
    /// Returns the steps per epoch; the last batch of an epoch may be smaller.
    pub fn steps_per_epoch(&self) -> u64 {
        self.examples.div_ceil(self.batch) as u64
    }

    /// Returns the examples of a step; steps count from 0.
    pub fn batch(&self, step: u64) -> Vec<usize> {
        let epoch = step / self.steps_per_epoch();
        let first = (step % self.steps_per_epoch()) as usize * self.batch;
        // Computed anew for each step: a training that resumes needs no state of the order.
        let shuffled = shuffled(self.examples, self.seed, epoch);
        shuffled[first..(first + self.batch).min(self.examples)].to_vec()
    }
}

/// Returns the numbers below `count`, shuffled by `seed` and `stream`.
pub fn shuffled(count: usize, seed: u64, stream: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    chance.set_stream(stream);
    order.shuffle(&mut chance);
    order
}

/// The examples of one forward and backward pass, row by row.
pub type Pass = Vec<Vec<usize>>;

/// Packs examples, given by number and length, into passes of at most `most` tokens, padding included. A longer example gets
/// a pass to itself. Rows are filled first-fit, longest examples first.
pub fn pack(lengths: &[(usize, usize)], most: usize) -> Vec<Pass> {
    let longest = lengths.iter().map(|(_, length)| *length).max().unwrap_or(0);
    let capacity = longest.max(ROW.min(most));
    // Ties by number, so that the packing depends on nothing else.
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
            "a longer example has its own pass"
        );
    }
}
