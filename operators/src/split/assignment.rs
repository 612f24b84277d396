//! Assigns units (a row, or rows that stay together) to parts.

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use searchmill_text::fnv::{OFFSET, fnv1a};

use super::params::{PartSize, share_of};

/// Rows that stay together in one part.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// Number of rows.
    pub rows: u64,
    /// Whether the rows share a key. Rows without evidence do not.
    pub linked: bool,
    rank: u64,
    share: f64,
}

impl Unit {
    /// Creates an empty unit. Its rank depends only on the seed and its name: the first two words of ChaCha8 keyed
    /// with the seed, the name's length and two 64-bit FNV-1a sums of the name.
    pub(super) fn new(seed: u64, name: &str, linked: bool) -> Self {
        let mut key = [0; 32];
        // Two sums: with 64 bits, two of some billion names would likely have one key.
        let words = [seed, name.len() as u64, fnv1a(OFFSET, name.as_bytes()), fnv1a(!OFFSET, name.as_bytes())];
        for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let mut stream = ChaCha8Rng::from_seed(key);
        let rank = stream.next_u64();
        // 53 bits are all that an f64 holds: a share of 64 bits could round up to 1.
        Self { rows: 0, linked, rank, share: (stream.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 }
    }
}

/// Assigns each unit independently of the others: row counts take the units of lowest rank that fit, shares cut the
/// unit interval.
pub(super) fn by_position(units: &[Unit], sizes: &[PartSize]) -> Vec<Option<usize>> {
    let mut assigned = vec![None; units.len()];
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|unit| (units[*unit].rank, *unit));
    for (part, size) in sizes.iter().enumerate() {
        let PartSize::Rows(wanted) = *size else { continue };
        let mut left = wanted;
        for unit in order.iter().copied() {
            if assigned[unit].is_none() && units[unit].rows <= left {
                assigned[unit] = Some(part);
                left -= units[unit].rows;
            }
        }
    }
    // Upper bounds of the parts with a share, in order.
    let (mut bounds, mut upper) = (Vec::new(), 0.0);
    for (part, share) in shares(sizes).into_iter().enumerate() {
        if share > 0.0 {
            upper += share;
            bounds.push((part, upper));
        }
    }
    for (unit, part) in assigned.iter_mut().enumerate() {
        if part.is_none() {
            // Rounding may leave the last bound below 1.
            let bound = bounds.iter().find(|(_, upper)| units[unit].share < *upper);
            *part = bound.or(bounds.last()).map(|(part, _)| *part);
        }
    }
    assigned
}

/// Shares of the rows left after the row counts; `rest` has what the other shares leave.
fn shares(sizes: &[PartSize]) -> Vec<f64> {
    let sum: f64 = sizes.iter().filter_map(|size| share_of(*size)).sum();
    let shares = sizes.iter().map(|size| match size {
        PartSize::Rows(_) => 0.0,
        PartSize::Share(share) => *share,
        PartSize::Rest(_) => 1.0 - sum,
    });
    shares.collect()
}

/// Assigns each unit to the part that lacks the most rows: largest units first, unlinked rows last, ties by rank. If
/// parts lack equally many rows, the earlier one gets the unit. If all sizes are row counts, the remaining rows go to
/// an extra part that is dropped.
pub(super) fn balanced(units: &[Unit], sizes: &[PartSize]) -> Vec<Option<usize>> {
    let mut lacks = targets(units, sizes);
    let mut order: Vec<usize> = (0..units.len()).collect();
    // Large units first, while all parts have room for them; unlinked rows fill the gaps.
    order.sort_by_key(|unit| (!units[*unit].linked, u64::MAX - units[*unit].rows, units[*unit].rank, *unit));
    let mut assigned = vec![None; units.len()];
    for unit in order {
        let part = (0..lacks.len()).max_by(|a, b| lacks[*a].total_cmp(&lacks[*b]).then(b.cmp(a))).unwrap_or(0);
        lacks[part] -= units[unit].rows as f64;
        if part < sizes.len() {
            assigned[unit] = Some(part);
        }
    }
    assigned
}

/// Rows that each part should have; last the extra part, if all sizes are row counts.
fn targets(units: &[Unit], sizes: &[PartSize]) -> Vec<f64> {
    let total: u64 = units.iter().map(|unit| unit.rows).sum();
    let counts = sizes.iter().map(|size| if let PartSize::Rows(rows) = size { *rows } else { 0 });
    let left = total.saturating_sub(counts.clone().sum()) as f64;
    let shares = shares(sizes);
    let mut targets: Vec<f64> = counts.zip(&shares).map(|(count, share)| count as f64 + share * left).collect();
    if shares.iter().all(|share| *share <= 0.0) {
        targets.push(left);
    }
    targets
}
