//! The paired permutation test: how often a mean difference of this size occurs if each sign is a coin.

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

/// Most differences for which all signs are tried: 2^20 sums.
const EXACT: usize = 20;
/// Sums that differ by less than this share of all differences are equal.
const ROUNDING: f64 = 1e-12;

/// A two-sided p-value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Test {
    pub(super) p: f64,
    /// Whether all signs were tried.
    pub(super) exact: bool,
}

/// Random signs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flips {
    pub(super) permutations: u32,
    pub(super) seed: u64,
    pub(super) stream: u64,
}

/// Tests that the differences are symmetric around 0. `None` without differences, or if the test would be random and has
/// no permutations. A random test counts the observed signs as one of the permutations, so that p is never 0 (Phipson and
/// Smyth 2010).
pub(super) fn sign_flip(differences: &[f64], flips: Flips) -> Option<Test> {
    // The sign of a zero changes no sum.
    let mut changed = differences.to_vec();
    changed.retain(|difference| *difference != 0.0);
    let all: f64 = changed.iter().map(|difference| difference.abs()).sum();
    // The observed signs are one of those tried; rounding must not exclude them.
    let least = changed.iter().sum::<f64>().abs() - ROUNDING * all;
    if differences.is_empty() || (changed.len() > EXACT && flips.permutations == 0) {
        return None;
    }
    if changed.len() <= EXACT {
        return Some(Test { p: exact(&changed, least), exact: true });
    }
    let blocks = blocks(&changed);
    let draws = (0..flips.permutations).into_par_iter();
    let count = draws.filter(|draw| random_sum(&blocks, flips, *draw).abs() >= least).count();
    Some(Test { p: (count + 1) as f64 / (f64::from(flips.permutations) + 1.0), exact: false })
}

/// Share of all signs whose sum is at least as far from 0. Sums of two halves are added, so that no error builds up.
fn exact(changed: &[f64], least: f64) -> f64 {
    let (one, other) = changed.split_at(changed.len() / 2);
    let (one, other) = (sums(one), sums(other));
    let mut count = 0;
    for a in &one {
        count += other.iter().filter(|b| (a + **b).abs() >= least).count();
    }
    count as f64 / (one.len() * other.len()) as f64
}

/// Returns the sums of the values with each of their signs.
fn sums(values: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0];
    for value in values {
        sums = sums.iter().flat_map(|sum| [sum + value, sum - value]).collect();
    }
    sums
}

/// The sums of four differences with each of their 16 signs: a draw adds one of them instead of four numbers.
fn blocks(changed: &[f64]) -> Vec<[f64; 16]> {
    let mut blocks = Vec::with_capacity(changed.len().div_ceil(4));
    for chunk in changed.chunks(4) {
        blocks.push(std::array::from_fn(|signs| {
            let values = chunk.iter().enumerate();
            values.map(|(bit, value)| if (signs >> bit) & 1 == 1 { -value } else { *value }).sum()
        }));
    }
    blocks
}

fn random_sum(blocks: &[[f64; 16]], flips: Flips, draw: u32) -> f64 {
    // A stream for each draw: its signs do not depend on the thread that draws them.
    let mut random = ChaCha8Rng::seed_from_u64(flips.seed);
    random.set_stream((flips.stream << 32) | u64::from(draw));
    let mut sum = 0.0;
    // One draw of 64 bits has the signs of 16 blocks of 4 differences.
    for blocks in blocks.chunks(16) {
        let mut signs = random.next_u64();
        for block in blocks {
            sum += block[(signs & 15) as usize];
            signs >>= 4;
        }
    }
    sum
}

/// Corrects p-values for the number of tests (Holm 1979, Scandinavian Journal of Statistics 6(2), 65–70), in their order.
pub(super) fn holm(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let (mut corrected, mut largest) = (vec![0.0; values.len()], 0.0_f64);
    for (rank, place) in order.into_iter().enumerate() {
        // Holm's correction must not give a larger p-value a smaller result than the one before it.
        largest = largest.max(values[place] * (values.len() - rank) as f64).min(1.0);
        corrected[place] = largest;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    const FLIPS: Flips = Flips { permutations: 20_000, seed: 3, stream: 1 };

    #[derive(Deserialize)]
    struct Golden {
        differences: Vec<f64>,
        p: f64,
    }

    #[derive(Deserialize)]
    struct GoldenHolm {
        p_values: Vec<f64>,
        holm: Vec<f64>,
    }

    fn golden() -> impl Iterator<Item = serde_json::Value> {
        let text = include_str!("../../../tests/golden/paired_tests.jsonl");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON"))
    }

    #[test]
    fn p_values_are_those_of_scipy() {
        let (mut exact, mut random) = (0, 0);
        for line in golden().filter(|line| line.get("p").is_some()) {
            let Golden { differences, p } = serde_json::from_value(line).expect("a test");
            let found = sign_flip(&differences, FLIPS).expect("a test");
            // The standard error of a share of 20,000 draws is below 0.0036.
            let tolerance = if found.exact { 1e-12 } else { 0.012 };
            assert!((found.p - p).abs() <= tolerance, "{differences:?}: {} for {p}", found.p);
            if found.exact { exact += 1 } else { random += 1 }
        }
        assert!(exact >= 30 && random >= 5, "{exact} {random}");
    }

    #[test]
    fn corrections_are_those_of_scipy() {
        let mut checked = 0;
        for line in golden().filter(|line| line.get("holm").is_some()) {
            let GoldenHolm { p_values, holm: wanted } = serde_json::from_value(line).expect("p-values");
            let near = holm(&p_values).iter().zip(&wanted).all(|(one, other)| (one - other).abs() < 1e-12);
            assert!(near, "{p_values:?}");
            checked += 1;
        }
        assert!(checked >= 5, "{checked}");
    }

    #[test]
    fn few_or_no_differences() {
        assert_eq!(sign_flip(&[], FLIPS), None);
        assert_eq!(sign_flip(&[0.0, 0.0], FLIPS), Some(Test { p: 1.0, exact: true }));
        assert_eq!(sign_flip(&[0.5, 0.0, 0.25], FLIPS), Some(Test { p: 0.5, exact: true }));
        let many = vec![0.1; 21];
        assert_eq!(sign_flip(&many, Flips { permutations: 0, ..FLIPS }), None);
        let random = sign_flip(&many, FLIPS).expect("a test");
        assert_eq!(random, Test { p: 1.0 / 20_001.0, exact: false });
    }

    #[test]
    fn threads_and_repetitions_change_nothing() {
        let differences: Vec<f64> = (0..100).map(|place| f64::from(place % 7) - 2.6).collect();
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool");
        assert_eq!(one.install(|| sign_flip(&differences, FLIPS)), sign_flip(&differences, FLIPS));
        let other = sign_flip(&differences, Flips { seed: 4, ..FLIPS });
        assert_ne!(other, sign_flip(&differences, FLIPS));
    }
}
