//! `seed:`: a whole number, or a list of whole numbers that together make one seed (`["${repeat.round}", "${matrix.seed}"]`).

use super::field::{self, Problems, refuse};
use super::value::{Spanned, Value};
use crate::diagnostic::Diagnostic;
use crate::operator::spread;

/// Bits of a seed made of several numbers: JSON numbers hold that many exactly.
const BITS: u32 = 53;

pub(super) fn read(value: &Spanned, problems: &mut Problems) -> Option<u64> {
    match &value.value {
        Value::List(items) if items.is_empty() => {
            let fault = Diagnostic::error("bad-value", "`seed` is an empty list").at(value.span, "");
            refuse(problems, fault.help("write a whole number, or a list of whole numbers"))
        }
        Value::List(items) => {
            // All are read, so that all errors are reported.
            let numbers: Vec<u64> = items.iter().filter_map(|item| field::whole(item, "`seed`", 0, problems)).collect();
            (numbers.len() == items.len()).then(|| together(&numbers))
        }
        Value::String(_) => {
            let fault = field::wrong_type(value, "`seed`", "a whole number");
            let help = "several `${…}` in one string are a text: write a list of numbers, which together make one seed: \
                 `seed: [\"${repeat.round}\", \"${matrix.seed}\"]`";
            refuse(problems, fault.help(help))
        }
        _ => field::whole(value, "`seed`", 0, problems),
    }
}

/// Mixes numbers to one seed. Their order counts.
fn together(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0, |state, number| mixed(state ^ *number)) >> (u64::BITS - BITS)
}

/// A step of SplitMix64.
fn mixed(state: u64) -> u64 {
    spread(state.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pair_of_small_numbers_has_its_own_seed_on_every_machine() {
        let pairs = (0..200).flat_map(|one| (0..200).map(move |other| together(&[one, other])));
        let seeds: BTreeSet<u64> = pairs.collect();
        assert_eq!(seeds.len(), 40_000);
        assert!(seeds.iter().all(|seed| *seed < 1 << BITS));
        // The first number of SplitMix64 with the state 0.
        assert_eq!(mixed(0), 0xe220_a839_7b1d_cdaf);
    }
}
