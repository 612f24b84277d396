//! Numbers as 16-bit floats (IEEE 754 binary16) in little-endian bytes.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// Appends the numbers, rounded to 16 bits.
pub fn narrow(numbers: &[f32], bytes: &mut Vec<u8>) {
    // The whole slice at a time: the processor has an instruction for several numbers.
    let mut halves = vec![f16::ZERO; numbers.len()];
    halves.convert_from_f32_slice(numbers);
    bytes.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
}

/// Replaces the content of `numbers` by the numbers in the bytes; an odd last byte is ignored.
pub fn widen(bytes: &[u8], numbers: &mut Vec<f32>) {
    let bits: Vec<u16> = bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    numbers.resize(bits.len(), 0.0);
    bits.reinterpret_cast::<f16>().convert_to_f32_slice(numbers);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_read_back_and_round_to_nearest() {
        let (mut bytes, mut back) = (Vec::new(), vec![9.0; 99]);
        narrow(&[0.0, -1.0, 0.5, 65504.0, 0.1], &mut bytes);
        assert_eq!(bytes.len(), 10);
        assert_eq!(&bytes[..6], [0, 0, 0, 0xbc, 0, 0x38]);
        widen(&bytes, &mut back);
        assert_eq!(back, [0.0, -1.0, 0.5, 65504.0, 0.099_975_586]);
    }
}
