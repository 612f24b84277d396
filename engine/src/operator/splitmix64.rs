//! Spreads numbers evenly, for seeds, hashes and samples that must be the same on every machine.

/// Spreads a number over all bits: the output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014,
/// <https://doi.org/10.1145/2660193.2660195>). A bijection, so different numbers stay different.
pub fn spread(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
