//! Remembers the token count of words: a direct-mapped table, so it is bounded and a lookup is one comparison.
//!
//! Keys are kept whole, so an answer is never another word's. Where two words meet in one slot, the later one stays.

const SLOTS: usize = 1 << 16;
const KEY_BYTES: usize = 30;

#[derive(Clone, Copy)]
#[repr(align(32))]
struct Slot {
    length: u8,
    count: u8,
    key: [u8; KEY_BYTES],
}

const EMPTY: Slot = Slot { length: 0, count: 0, key: [0; KEY_BYTES] };

/// Word → token count, for one counter and one thread at a time (2 MiB once used).
#[derive(Default)]
pub(crate) struct Memo {
    slots: Vec<Slot>,
}

impl Memo {
    /// The count of `word`, from memory or from `count`. Words over 30 bytes are not remembered.
    #[inline]
    pub(crate) fn count(&mut self, word: &str, count: impl FnOnce() -> usize) -> usize {
        let bytes = word.as_bytes();
        if bytes.is_empty() || bytes.len() > KEY_BYTES {
            return count();
        }
        if self.slots.is_empty() {
            self.slots = vec![EMPTY; SLOTS];
        }
        let slot = &mut self.slots[hash(bytes) as usize % SLOTS];
        if usize::from(slot.length) == bytes.len() && slot.key[..bytes.len()] == *bytes {
            return usize::from(slot.count);
        }
        let found = count();
        if let Ok(small) = u8::try_from(found) {
            slot.length = bytes.len() as u8;
            slot.count = small;
            slot.key[..bytes.len()].copy_from_slice(bytes);
        }
        found
    }
}

/// Mixes eight bytes at a time by multiplication; the high half is best mixed and becomes the slot.
#[inline]
fn hash(bytes: &[u8]) -> u32 {
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 / golden ratio, as in Fibonacci hashing
    let mut state = bytes.len() as u64;
    let mut rest = bytes;
    while let Some((head, tail)) = rest.split_first_chunk::<8>() {
        state = (state ^ u64::from_le_bytes(*head)).wrapping_mul(MIX).rotate_left(29);
        rest = tail;
    }
    if let Some((head, tail)) = rest.split_first_chunk::<4>() {
        state = (state ^ u64::from(u32::from_le_bytes(*head))).wrapping_mul(MIX).rotate_left(29);
        rest = tail;
    }
    for &byte in rest {
        state = (state << 8) ^ (state >> 56) ^ u64::from(byte);
    }
    (state.wrapping_mul(MIX) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_keeps_its_own_count_when_slots_are_shared() {
        let mut memo = Memo::default();
        let words: Vec<String> = (0..3 * SLOTS).map(|i| format!("w{i}")).collect();
        for round in 0..2 {
            for (i, word) in words.iter().enumerate() {
                assert_eq!(memo.count(word, || i % 200), i % 200, "round {round}, {word}");
            }
        }
    }

    #[test]
    fn a_word_is_counted_once() {
        let mut memo = Memo::default();
        assert_eq!(memo.count("searching", || 2), 2);
        assert_eq!(memo.count("searching", || panic!("counted again")), 2);
    }

    #[test]
    fn long_words_and_large_counts_are_counted_each_time() {
        let mut memo = Memo::default();
        let long = "x".repeat(KEY_BYTES + 1);
        assert_eq!([memo.count(&long, || 7), memo.count(&long, || 8)], [7, 8]);
        assert_eq!([memo.count("big", || 300), memo.count("big", || 301)], [300, 301]);
    }
}
