//! Random numbers by index: a stream for any (seed, purpose, index), and permutations without tables.

/// The output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// SplitMix64's increment: the odd number nearest to 2^64 divided by the golden ratio.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random numbers.
pub struct Draws(u64);

impl Draws {
    /// The stream of a purpose and index. Streams of different purposes or indices are independent.
    pub fn new(seed: u64, purpose: u64, index: u64) -> Self {
        let keyed = mix(seed.wrapping_add(GAMMA)) ^ mix(purpose.wrapping_mul(GAMMA).wrapping_add(1));
        Self(mix(keyed.wrapping_add(mix(index.wrapping_add(GAMMA)))))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Returns a number from 0 to `bound - 1` (0 for a bound of 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply and shift (Lemire): no division, and a bias below `bound` / 2^64.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true with probability 1 / `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Picks one of the choices.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// Picks one of the words.
    pub fn word<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Shuffles by the Fisher-Yates algorithm.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// A keyed permutation of `0..size` in constant memory: a Feistel network of four rounds, repeated until the result is
/// in range.
#[derive(Clone)]
pub(crate) struct Permutation {
    size: u64,
    half: u32,
    keys: [u64; 4],
}

impl Permutation {
    /// The permutation of a seed and purpose.
    pub(crate) fn new(seed: u64, purpose: u64, size: u64) -> Self {
        let bits = u64::BITS - size.max(2).saturating_sub(1).leading_zeros();
        let mut draws = Draws::new(seed, purpose, u64::MAX);
        Self { size, half: bits.div_ceil(2), keys: std::array::from_fn(|_| draws.next()) }
    }

    fn round(&self, key: usize, half: u64) -> u64 {
        mix(half.wrapping_add(self.keys[key])) & ((1 << self.half) - 1)
    }

    /// Returns the image of `number`.
    pub(crate) fn forward(&self, number: u64) -> u64 {
        self.walk(number, |halves| (0..4).fold(halves, |(left, right), key| (right, left ^ self.round(key, right))))
    }

    /// Returns the number whose image is `number`.
    pub(crate) fn inverse(&self, number: u64) -> u64 {
        self.walk(number, |halves| {
            (0..4).rev().fold(halves, |(left, right), key| (right ^ self.round(key, left), left))
        })
    }

    fn walk(&self, mut number: u64, rounds: impl Fn((u64, u64)) -> (u64, u64)) -> u64 {
        loop {
            let (left, right) = rounds((number >> self.half, number & ((1 << self.half) - 1)));
            number = (left << self.half) | right;
            // The network permutes a power of two. A number out of range is permuted again, which stays a permutation.
            if number < self.size {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_hits_every_number_once_and_inverts() {
        for size in [1, 2, 3, 100, 1_001] {
            let permutation = Permutation::new(7, 3, size);
            let mut seen: Vec<u64> = (0..size).map(|number| permutation.forward(number)).collect();
            assert!((0..size).all(|number| permutation.inverse(permutation.forward(number)) == number));
            seen.sort_unstable();
            assert_eq!(seen, (0..size).collect::<Vec<_>>());
        }
    }

    #[test]
    fn draws_are_even_and_depend_on_every_part_of_their_key() {
        let mut counts = [0_u32; 10];
        let mut draws = Draws::new(1, 2, 3);
        (0..10_000).for_each(|_| counts[draws.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
        let first = |seed, purpose, index| Draws::new(seed, purpose, index).next();
        let all = [first(1, 2, 3), first(2, 1, 3), first(1, 3, 2), first(3, 2, 1), first(1, 2, 4), first(0, 0, 0)];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
    }
}
