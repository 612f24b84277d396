//! FNV-1a with 64 bits (Fowler, Noll and Vo, RFC 9923): a hash that is equal on every machine, for random choices.
//!
//! Content digests and cache keys are the engine's and do not use it.

/// The offset basis: the initial hash.
pub const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// Continues the hash `start` with `bytes`.
pub fn fnv1a(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published test vectors.
    #[test]
    fn known_hashes() {
        assert_eq!(fnv1a(OFFSET, b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(OFFSET, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(OFFSET, b"foobar"), 0x8594_4171_f739_67e8);
    }
}
