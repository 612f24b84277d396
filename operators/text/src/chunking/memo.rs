//! Caches the token count of words in a bounded two-way set-associative table; a lookup reads one cache line.
//!
//! Whole keys are stored, so two words never share a count. Each set holds its two latest words.

use std::ops::Range;

const SETS: usize = 1 << 15;
const KEY_BYTES: usize = 30;

/// 30 bytes of key, 1 byte of length, 1 byte of count. Length 0 marks an empty slot.
type Slot = [u64; 4];

/// Two slots on one cache line, the later word first.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Set([Slot; 2]);

const LENGTH_BIT: u32 = 48;
const COUNT_BIT: u32 = 56;

/// Word → token count, for one counter and one thread at a time (2 MiB after the first use).
#[derive(Default)]
pub struct Memo {
    sets: Vec<Set>,
}

impl Memo {
    /// Returns the count of the word at `range` of `text`, cached or from `count`. Words over 30 bytes and counts over
    /// 255 are not cached.
    #[inline]
    pub fn count(&mut self, text: &str, range: Range<usize>, count: impl FnOnce() -> usize) -> usize {
        if range.is_empty() || range.len() > KEY_BYTES {
            return count();
        }
        if self.sets.is_empty() {
            self.sets = vec![Set([[0; 4]; 2]); SETS];
        }
        let key = key(text.as_bytes(), range);
        let Set([first, second]) = &mut self.sets[set_of(&key)];
        for slot in [&first, &second] {
            // Without branches: all four numbers are compared at once, the last one without its count.
            let last = (slot[3] ^ key[3]) << (64 - COUNT_BIT);
            if (slot[0] ^ key[0]) | (slot[1] ^ key[1]) | (slot[2] ^ key[2]) | last == 0 {
                return (slot[3] >> COUNT_BIT) as usize;
            }
        }
        let found = count();
        // The older of the two words of the set goes.
        if let Ok(small) = u8::try_from(found) {
            *second = *first;
            *first = [key[0], key[1], key[2], key[3] | u64::from(small) << COUNT_BIT];
        }
        found
    }
}

/// The word as four numbers, padded with zeros; the last one also holds the length.
#[inline]
fn key(text: &[u8], range: Range<usize>) -> Slot {
    let (at, length) = (range.start, range.len());
    let last = (length as u64) << LENGTH_BIT;
    if length <= 8 {
        return [load(text, at, length), 0, 0, last];
    }
    let mut key = [load(text, at, 8), 0, 0, last];
    for (word, from) in (8..length).step_by(8).enumerate() {
        key[word + 1] |= load(text, at + from, (length - from).min(8));
    }
    key
}

/// Reads at most eight bytes as a number, with one load if `text` has eight bytes at `at`.
#[inline]
fn load(text: &[u8], at: usize, length: usize) -> u64 {
    if let Some(eight) = text[at..].first_chunk::<8>() {
        return u64::from_le_bytes(*eight) & (u64::MAX >> (64 - 8 * length));
    }
    text[at..at + length].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Returns the set of a key. Multiplication mixes the high bits best, so those select the set.
#[inline]
fn set_of(key: &Slot) -> usize {
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 / golden ratio, as in Fibonacci hashing
    let mix = |state: u64, word: u64| (state ^ word).wrapping_mul(MIX).rotate_left(29);
    let short = mix(key[3], key[0]);
    let state = if key[1] == 0 { short } else { mix(mix(short, key[1]), key[2]) };
    (state.wrapping_mul(MIX) >> (64 - SETS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(memo: &mut Memo, word: &str, found: usize) -> usize {
        memo.count(word, 0..word.len(), || found)
    }

    #[test]
    fn every_word_keeps_its_own_count_when_slots_are_shared() {
        let mut memo = Memo::default();
        let words: Vec<String> = (0..5 * SETS).map(|i| "w".repeat(i % 24) + &i.to_string()).collect();
        for round in 0..2 {
            for (i, word) in words.iter().enumerate() {
                assert_eq!(count(&mut memo, word, i % 200), i % 200, "round {round}, {word}");
            }
        }
    }

    #[test]
    fn a_word_is_counted_once_wherever_it_stands() {
        for word in ["I", "fourfour", "fourfours", "sixteen_sixteen_", "sixteen_sixteen_sixteen_sixtee"] {
            let mut memo = Memo::default();
            assert_eq!(count(&mut memo, word, 2), 2);
            let text = format!("({word})ful");
            assert_eq!(memo.count(&text, 1..1 + word.len(), || panic!("counted again")), 2, "{word}");
            assert_eq!(memo.count(&text, 1..2 + word.len(), || 5), 5, "{word}");
        }
    }

    #[test]
    fn long_words_and_large_counts_are_counted_each_time() {
        let mut memo = Memo::default();
        let long = "x".repeat(KEY_BYTES + 1);
        assert_eq!([count(&mut memo, &long, 7), count(&mut memo, &long, 8)], [7, 8]);
        assert_eq!([count(&mut memo, "big", 300), count(&mut memo, "big", 301)], [300, 301]);
        assert_eq!(count(&mut memo, "", 4), 4);
    }
}
