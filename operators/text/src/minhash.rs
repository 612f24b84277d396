//! MinHash signatures, banding, and Jaccard similarity.
//!
//! The share of equal values in the signatures of two sets estimates their Jaccard similarity: Broder 1997, On the
//! resemblance and containment of documents. Sets whose signatures agree in all rows of a band are candidates: Leskovec,
//! Rajaraman and Ullman, Mining of Massive Datasets, chapter 3.4.
//!
//! Signatures are equal to those of datasketch 2 (`MinHash(num_perm, seed)`, its default scheme `affine32` and hash): the
//! first 32 bits of SHA-1, mixed by the finaliser of MurmurHash3, then the permutations `a·x + b mod 2^32` with odd `a`;
//! `a` and `b` are drawn by NumPy's `RandomState(seed)`. Bands and rows are those of its `MinHashLSH` with equal weights.

use sha1::{Digest, Sha1};

use crate::fnv;

/// Returns the first 64 bits of SHA-1, little-endian. Their lower half is datasketch's hash.
pub fn hash(text: &str) -> u64 {
    let digest: [u8; 20] = Sha1::digest(text.as_bytes()).into();
    digest[..8].iter().rev().fold(0, |hash, byte| (hash << 8) | u64::from(*byte))
}

/// Returns the hashes of a set, sorted, each once.
pub fn set<'a>(members: impl Iterator<Item = &'a str>) -> Box<[u64]> {
    let mut hashes: Vec<u64> = members.map(hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes.into()
}

/// Returns the Jaccard similarity of two sorted sets; 0 if both are empty.
pub fn jaccard(a: &[u64], b: &[u64]) -> f64 {
    let (mut left, mut right, mut shared) = (a, b, 0_usize);
    while let ([first, rest @ ..], [other, others @ ..]) = (left, right) {
        shared += usize::from(first == other);
        (left, right) = (if first <= other { rest } else { left }, if other <= first { others } else { right });
    }
    let whole = a.len() + b.len() - shared;
    if whole == 0 { 0.0 } else { shared as f64 / whole as f64 }
}

/// Random permutations of 32-bit hashes.
pub struct Permutations {
    factors: Vec<u32>,
    offsets: Vec<u32>,
}

impl Permutations {
    /// Draws `count` permutations.
    pub fn new(count: usize, seed: u32) -> Self {
        let mut random = Twister::new(seed);
        // All factors before all offsets, as datasketch draws them.
        let factors = (0..count).map(|_| (random.next_u32() << 1) | 1).collect();
        let offsets = (0..count).map(|_| random.next_u32()).collect();
        Self { factors, offsets }
    }

    /// Returns the signature of a set: for each permutation, the smallest permuted hash.
    pub fn signature(&self, set: &[u64]) -> Vec<u32> {
        let mut signature = vec![u32::MAX; self.factors.len()];
        pulp::Arch::new().dispatch(|| {
            for hash in set {
                let hash = mix(*hash as u32);
                let permutations = self.factors.iter().zip(&self.offsets);
                // Without branches, so that it runs on the vector unit.
                for (least, (factor, offset)) in signature.iter_mut().zip(permutations) {
                    *least = (*least).min(factor.wrapping_mul(hash).wrapping_add(*offset));
                }
            }
        });
        signature
    }
}

/// The finaliser of MurmurHash3 (Appleby).
fn mix(hash: u32) -> u32 {
    let hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    let hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// The Mersenne Twister (Matsumoto and Nishimura 1998), seeded as NumPy's `RandomState` is.
struct Twister {
    state: [u32; 624],
    next: usize,
}

impl Twister {
    fn new(seed: u32) -> Self {
        let mut state = [seed; 624];
        for index in 1..state.len() {
            let before = state[index - 1];
            state[index] = 1_812_433_253_u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(index as u32);
        }
        Self { state, next: state.len() }
    }

    fn next_u32(&mut self) -> u32 {
        let count = self.state.len();
        if self.next == count {
            for index in 0..count {
                let joined = (self.state[index] & 0x8000_0000) | (self.state[(index + 1) % count] & 0x7fff_ffff);
                let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[index] = self.state[(index + 397) % count] ^ (joined >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut value = self.state[self.next];
        self.next += 1;
        value ^= value >> 11;
        value ^= (value << 7) & 0x9d2c_5680;
        value ^= (value << 15) & 0xefc6_0000;
        value ^ (value >> 18)
    }
}

/// Returns the number of bands, and of rows in each, that minimise the sum of two areas: the probability that two sets
/// below the threshold become candidates, and the probability that two sets above it do not.
pub fn banding(threshold: f64, permutations: usize) -> (usize, usize) {
    let mut best = (f64::INFINITY, (1, permutations));
    for bands in 1..=permutations {
        for rows in 1..=permutations / bands {
            let wrong = area(0.0, threshold, |similarity| collision(similarity, bands, rows));
            let error = wrong + area(threshold, 1.0, |similarity| 1.0 - collision(similarity, bands, rows));
            if error < best.0 {
                best = (error, (bands, rows));
            }
        }
    }
    best.1
}

/// Returns the probability that two sets become candidates.
fn collision(similarity: f64, bands: usize, rows: usize) -> f64 {
    1.0 - (1.0 - similarity.powi(rows as i32)).powi(bands as i32)
}

/// Integrates by Simpson's rule.
fn area(from: f64, to: f64, height: impl Fn(f64) -> f64) -> f64 {
    const STEPS: usize = 200;
    let width = (to - from) / STEPS as f64;
    let heights = (0..=STEPS).map(|step| {
        let weight = match step {
            0 | STEPS => 1.0,
            step if step % 2 == 1 => 4.0,
            _ => 2.0,
        };
        weight * height(from + step as f64 * width)
    });
    heights.sum::<f64>() * width / 3.0
}

/// Signatures by the hashes of their bands.
pub struct Bands {
    rows: usize,
    /// For each band: hash and number of each signature, sorted.
    tables: Vec<Vec<(u64, u32)>>,
}

impl Bands {
    /// Starts without signatures.
    pub fn new(bands: usize, rows: usize) -> Self {
        Self { rows, tables: vec![Vec::new(); bands] }
    }

    fn hashes<'a>(&self, signature: &'a [u32]) -> impl Iterator<Item = u64> + use<'a> {
        let bands = signature.chunks_exact(self.rows);
        bands.map(|band| band.iter().fold(fnv::OFFSET, |hash, value| fnv::fnv1a(hash, &value.to_le_bytes())))
    }

    /// Adds the signature with this number.
    pub fn add(&mut self, number: u32, signature: &[u32]) {
        let hashes = self.hashes(signature);
        for (table, hash) in self.tables.iter_mut().zip(hashes) {
            table.push((hash, number));
        }
    }

    /// Sorts the signatures: call it after the last one.
    pub fn sort(&mut self) {
        self.tables.iter_mut().for_each(|table| table.sort_unstable());
    }

    /// Returns the groups of two and more signatures with an equal band, band by band. Numbers ascend in a group.
    pub fn groups(&self) -> impl Iterator<Item = impl Iterator<Item = u32>> {
        let tables = self.tables.iter().flat_map(|table| table.chunk_by(|a, b| a.0 == b.0));
        tables.filter(|group| group.len() > 1).map(|group| group.iter().map(|(_, number)| *number))
    }

    /// Returns the numbers of the signatures that share a band with this one, ascending, each once.
    pub fn candidates(&self, signature: &[u32]) -> Vec<u32> {
        let mut found = Vec::new();
        for (table, hash) in self.tables.iter().zip(self.hashes(signature)) {
            let start = table.partition_point(|entry| entry.0 < hash);
            let equal = table[start..].iter().take_while(|entry| entry.0 == hash);
            found.extend(equal.map(|(_, number)| *number));
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::words::Words;

    fn of(text: &str, n: usize) -> Box<[u64]> {
        set(Words::normalized(text).grams(n))
    }

    const BROWN: &str = "The quick brown fox jumps over the lazy dog near the river bank.";
    const RED: &str = "the quick red fox jumps over the lazy dog near the river bank";

    /// Values of datasketch 2.0.0 on NumPy 2.4.6; `benches/near.py --golden` prints them.
    #[test]
    fn signatures_are_those_of_datasketch() {
        let first = [218_225_662, 104_230_875, 135_017_423, 463_606_098, 20_830, 287_021_171, 1_704_384, 78_411_368];
        check(BROWN, 1, &first, 458_192_080, 38_506_034_041);
        let first = [218_225_662, 104_230_875, 135_017_423, 10_114_281, 20_830, 279_311_347, 424_918_528, 78_411_368];
        check(RED, 1, &first, 313_250_659, 43_101_761_022);
        check(BROWN, u32::MAX, &[413_954_074, 600_824_702, 667_099_502, 363_000_246], 136_663_595, 47_930_609_224);
        check("東 京 é", 7, &[3_396_812_027, 3_793_824_860, 80_103_091, 2_288_242_191], 4_059_900_306, 291_555_331_453);
    }

    /// Compares a signature of 3-grams with its first values, its last one, and the sum of all 128.
    fn check(text: &str, seed: u32, first: &[u32], last: u32, sum: u64) {
        let signature = Permutations::new(128, seed).signature(&of(text, 3));
        assert_eq!((&signature[..first.len()], signature[127]), (first, last), "{text}");
        assert_eq!(signature.iter().map(|value| u64::from(*value)).sum::<u64>(), sum, "{text}");
    }

    /// Values of NumPy 2.4.6; `benches/near.py --golden` prints them.
    #[test]
    fn the_twister_is_numpys() {
        let mut random = Twister::new(1);
        let drawn: Vec<u32> = (0..1_600).map(|_| random.next_u32()).collect();
        assert_eq!((drawn[0], drawn[1], drawn[1_599]), (1_791_095_845, 4_282_876_139, 1_412_104_154));
        assert_eq!(drawn.iter().map(|value| u64::from(*value)).sum::<u64>(), 3_399_766_835_534);
    }

    /// Bands and rows of datasketch 2.0.0 (`MinHashLSH`, by threshold and number of permutations);
    /// `benches/near.py --golden` prints them.
    #[test]
    fn bands_are_those_of_datasketch() {
        for (threshold, permutations, bands, rows) in [
            (0.2, 16, 7, 1),
            (0.2, 64, 28, 2),
            (0.2, 128, 28, 2),
            (0.2, 256, 85, 3),
            (0.5, 16, 5, 3),
            (0.5, 64, 14, 4),
            (0.5, 128, 25, 5),
            (0.5, 256, 42, 6),
            (0.6, 16, 4, 4),
            (0.6, 64, 10, 6),
            (0.6, 128, 18, 7),
            (0.6, 256, 32, 8),
            (0.7, 16, 3, 5),
            (0.7, 64, 8, 8),
            (0.7, 128, 14, 9),
            (0.7, 256, 25, 10),
            (0.8, 16, 2, 8),
            (0.8, 64, 5, 11),
            (0.8, 128, 9, 13),
            (0.8, 256, 17, 15),
            (0.9, 16, 1, 15),
            (0.9, 64, 3, 21),
            (0.9, 128, 5, 25),
            (0.9, 256, 9, 28),
            (0.95, 16, 1, 16),
            (0.95, 64, 2, 32),
            (0.95, 128, 3, 42),
            (0.95, 256, 5, 51),
        ] {
            assert_eq!(banding(threshold, permutations), (bands, rows), "{threshold} {permutations}");
        }
    }

    #[test]
    fn the_mean_estimate_is_the_similarity() {
        let words: Vec<String> = (0..400).map(|number| format!("w{number}")).collect();
        let (a, b) = (set(words[..300].iter().map(String::as_str)), set(words[100..].iter().map(String::as_str)));
        assert!((jaccard(&a, &b) - 0.5).abs() < 1e-9);
        let mean = (0..20).map(|seed| {
            let permutations = Permutations::new(128, seed);
            let equal =
                permutations.signature(&a).iter().zip(permutations.signature(&b)).filter(|(x, y)| **x == *y).count();
            equal as f64 / 128.0
        });
        let mean = mean.sum::<f64>() / 20.0;
        assert!((mean - 0.5).abs() < 0.04, "{mean}");
    }

    #[test]
    fn empty_sets_are_similar_to_nothing() {
        let (none, some): (Box<[u64]>, _) = (of("?!", 5), of(BROWN, 5));
        assert_eq!((jaccard(&none, &none), jaccard(&none, &some), jaccard(&some, &some)), (0.0, 0.0, 1.0));
    }

    #[test]
    fn groups_and_candidates_share_a_band() {
        let mut bands = Bands::new(2, 2);
        let signatures = [[1, 2, 3, 4, 9], [1, 2, 7, 7, 9], [5, 5, 3, 4, 9], [6, 6, 6, 6, 9], [1, 2, 3, 4, 8]];
        for (number, signature) in signatures.iter().enumerate() {
            bands.add(number as u32, signature);
        }
        bands.sort();
        let mut groups: Vec<Vec<u32>> = bands.groups().map(Iterator::collect).collect();
        groups.sort();
        assert_eq!(groups, [vec![0, 1, 4], vec![0, 2, 4]]);
        assert_eq!(bands.candidates(&[1, 2, 3, 4, 0]), [0, 1, 2, 4]);
        assert_eq!(bands.candidates(&[0, 0, 7, 7, 0]), [1]);
        assert!(bands.candidates(&[9, 9, 9, 9, 9]).is_empty());
    }

    proptest! {
        #[test]
        fn jaccard_is_that_of_sets(a in prop::collection::btree_set(0_u64..40, 0..30), b in prop::collection::btree_set(0_u64..40, 0..30)) {
            let (left, right): (Vec<u64>, Vec<u64>) = (a.iter().copied().collect(), b.iter().copied().collect());
            let whole = a.union(&b).count();
            let wanted = if whole == 0 { 0.0 } else { a.intersection(&b).count() as f64 / whole as f64 };
            prop_assert_eq!(jaccard(&left, &right), wanted);
        }
    }
}
