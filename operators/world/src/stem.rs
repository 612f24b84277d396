//! Stems of names: an unambiguous grammar of syllables, so that distinct numbers give distinct words.

pub(crate) const ONSETS: [&str; 24] = [
    "B", "Br", "D", "Dr", "F", "Fl", "G", "Gl", "H", "J", "K", "Kr", "L", "M", "N", "P", "Pr", "R", "S", "St", "T",
    "Tr", "V", "Z",
];
const FIRST_VOWELS: [&str; 10] = ["a", "e", "i", "o", "u", "au", "ei", "ie", "é", "ö"];
pub(crate) const MIDDLES: [&str; 40] = [
    "l", "r", "n", "m", "v", "d", "g", "k", "t", "z", "lm", "ld", "lv", "lk", "rn", "rm", "rv", "rd", "rk", "rth",
    "nd", "ng", "nk", "nt", "mb", "mp", "sk", "st", "sp", "zh", "vr", "dr", "gr", "kr", "tr", "ss", "ll", "nn", "sv",
    "x",
];
const LAST_VOWELS: [&str; 6] = ["a", "e", "i", "o", "u", "ai"];
const ENDS: [&str; 24] = [
    "l", "r", "n", "m", "s", "x", "k", "d", "th", "v", "sk", "st", "nd", "rn", "rk", "lm", "ld", "nt", "ss", "ng", "z",
    "rd", "lt", "mp",
];

/// The number of stems.
pub(crate) const STEMS: u64 =
    (ONSETS.len() * FIRST_VOWELS.len() * MIDDLES.len() * LAST_VOWELS.len() * ENDS.len()) as u64;

/// Returns word number `number`. Consonants and vowels alternate and each list has distinct entries, so no two words
/// are equal.
pub(crate) fn stem(number: u64) -> String {
    let (mut rest, mut stem) = (number, String::new());
    for list in [&ONSETS[..], &FIRST_VOWELS, &MIDDLES, &LAST_VOWELS, &ENDS] {
        stem.push_str(list[(rest % list.len() as u64) as usize]);
        rest /= list.len() as u64;
    }
    stem
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn stems_are_distinct() {
        let stems: BTreeSet<String> = (0..STEMS).map(stem).collect();
        assert_eq!(stems.len() as u64, STEMS);
        const { assert!(STEMS > 1_300_000) };
    }
}
