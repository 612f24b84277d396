//! Vectors of length 1 as the number of their nearest centroid and a few bits per dimension for the rest: the residual
//! compression of ColBERTv2 (Santhanam et al. 2022, arXiv:2112.01488, section 3.3).
//!
//! A dimension of the rest falls into one of 2ᵇ buckets. Their limits are the quantiles k / 2ᵇ of rests of a sample; a
//! bucket stands for its middle quantile, (k + ½) / 2ᵇ. The sum of centroid and rest is scaled to length 1
//! (`colbert/indexing/codecs/residual.py` in github.com/stanford-futuredata/ColBERT). A code is the centroid's number,
//! 4 bytes, and the buckets, the first dimension in the lowest bits of the first byte.

use crate::clusters::nearest;
use crate::vectorized::sum_of_squares;

/// Bytes of a centroid's number.
const NUMBER: usize = size_of::<u32>();

/// Compresses and restores vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct Codec {
    dimensions: usize,
    bits: u32,
    /// Concatenated; of length 1 each.
    centroids: Vec<f32>,
    /// Upper limits of all buckets but the last.
    limits: Vec<f32>,
    /// What a bucket stands for.
    values: Vec<f32>,
    /// The values of the buckets in each possible byte.
    unpacked: Vec<f32>,
}

impl Codec {
    /// Makes a codec from its parts, as [`Self::centroids`], [`Self::limits`] and [`Self::values`] return them. Returns
    /// `None` if they do not fit together.
    pub fn new(dimensions: usize, centroids: Vec<f32>, limits: Vec<f32>, values: Vec<f32>) -> Option<Self> {
        let bits = [1u32, 2, 4].into_iter().find(|bits| values.len() == 1 << bits)?;
        if dimensions == 0 || !centroids.len().is_multiple_of(dimensions) || limits.len() + 1 != values.len() {
            return None;
        }
        let mask = values.len() - 1;
        // A table of all bytes: restoring a code looks up several dimensions at a time.
        let mut unpacked = Vec::with_capacity(256 * 8 / bits as usize);
        for byte in 0..256 {
            for shift in (0..8).step_by(bits as usize) {
                unpacked.push(values[byte >> shift & mask]);
            }
        }
        Some(Self { dimensions, bits, centroids, limits, values, unpacked })
    }

    /// Learns the buckets of `bits` bits (1, 2 or 4) from a sample of vectors. Without vectors, all rests are 0.
    pub fn learn(sample: &[f32], centroids: Vec<f32>, dimensions: usize, bits: u32) -> Option<Self> {
        let mut rests = Vec::with_capacity(sample.len());
        for (vector, owner) in sample.chunks_exact(dimensions).zip(nearest(sample, &centroids, dimensions)) {
            let centroid = &centroids[owner as usize * dimensions..][..dimensions];
            rests.extend(vector.iter().zip(centroid).map(|(number, centre)| number - centre));
        }
        rests.sort_unstable_by(f32::total_cmp);
        let buckets = 1u32 << bits;
        let limits = (1..buckets).map(|k| quantile(&rests, f64::from(k) / f64::from(buckets)));
        let values = (0..buckets).map(|k| quantile(&rests, (f64::from(k) + 0.5) / f64::from(buckets)));
        Self::new(dimensions, centroids, limits.collect(), values.collect())
    }

    pub fn centroids(&self) -> &[f32] {
        &self.centroids
    }

    pub fn limits(&self) -> &[f32] {
        &self.limits
    }

    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the bytes of a code.
    pub fn code_bytes(&self) -> usize {
        NUMBER + (self.dimensions * self.bits as usize).div_ceil(8)
    }

    /// Appends the codes of vectors.
    pub fn compress(&self, vectors: &[f32], codes: &mut Vec<u8>) {
        let in_byte = 8 / self.bits as usize;
        for (vector, owner) in
            vectors.chunks_exact(self.dimensions).zip(nearest(vectors, &self.centroids, self.dimensions))
        {
            codes.extend(owner.to_le_bytes());
            let centroid = &self.centroids[owner as usize * self.dimensions..][..self.dimensions];
            for (numbers, centres) in vector.chunks(in_byte).zip(centroid.chunks(in_byte)) {
                let mut byte = 0;
                for (index, (number, centre)) in numbers.iter().zip(centres).enumerate() {
                    // The number of limits below it: at most 15 are compared without a branch.
                    let bucket = self.limits.iter().map(|limit| u8::from(number - centre > *limit)).sum::<u8>();
                    byte |= bucket << (index as u32 * self.bits);
                }
                codes.push(byte);
            }
        }
    }

    /// Replaces the content of `vectors` by the vectors of codes. Returns `None` if a code names no centroid.
    pub fn restore(&self, codes: &[u8], vectors: &mut Vec<f32>) -> Option<()> {
        vectors.clear();
        vectors.resize(codes.len() / self.code_bytes() * self.dimensions, 0.0);
        for (code, vector) in codes.chunks_exact(self.code_bytes()).zip(vectors.chunks_exact_mut(self.dimensions)) {
            let (number, bytes) = code.split_first_chunk::<NUMBER>()?;
            let start = (u32::from_le_bytes(*number) as usize).checked_mul(self.dimensions)?;
            vector.copy_from_slice(self.centroids.get(start..start.checked_add(self.dimensions)?)?);
            // A constant number of buckets in each byte: the loop is unrolled.
            match self.bits {
                1 => add_rests::<8>(&self.unpacked, bytes, vector),
                2 => add_rests::<4>(&self.unpacked, bytes, vector),
                _ => add_rests::<2>(&self.unpacked, bytes, vector),
            }
            let length = sum_of_squares(vector).sqrt();
            if length > 0.0 {
                for number in vector {
                    *number /= length;
                }
            }
        }
        Some(())
    }
}

/// Adds the values of bytes that hold `N` buckets each.
fn add_rests<const N: usize>(unpacked: &[f32], bytes: &[u8], vector: &mut [f32]) {
    let (table, _) = unpacked.as_chunks::<N>();
    let (whole, last) = vector.as_chunks_mut::<N>();
    let (bytes, byte) = bytes.split_at(whole.len());
    for (numbers, byte) in whole.iter_mut().zip(bytes) {
        for (number, rest) in numbers.iter_mut().zip(&table[usize::from(*byte)]) {
            *number += rest;
        }
    }
    for (numbers, byte) in last.chunks_mut(N).zip(byte) {
        for (number, rest) in numbers.iter_mut().zip(&table[usize::from(*byte)]) {
            *number += rest;
        }
    }
}

/// Returns the quantile of sorted numbers, linear between neighbours (as PyTorch's `quantile`); 0 of none.
fn quantile(sorted: &[f32], share: f64) -> f32 {
    let position = share * sorted.len().saturating_sub(1) as f64;
    let low = sorted.get(position.floor() as usize).copied().unwrap_or_default();
    let high = sorted.get(position.ceil() as usize).copied().unwrap_or_default();
    low + (high - low) * position.fract() as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusters::spherical;

    const DIMENSIONS: usize = 20;

    fn vectors(count: usize) -> Vec<f32> {
        let mut all: Vec<f32> = (0..count * DIMENSIONS).map(|n| ((n * 7919) % 1013) as f32 / 500.0 - 1.0).collect();
        for vector in all.chunks_mut(DIMENSIONS) {
            let length = sum_of_squares(vector).sqrt();
            for number in vector {
                *number /= length;
            }
        }
        all
    }

    fn learned(bits: u32) -> Codec {
        let sample = vectors(600);
        Codec::learn(&sample, spherical(&sample, DIMENSIONS, 32, 4), DIMENSIONS, bits).unwrap()
    }

    fn restored(codec: &Codec, vectors: &[f32]) -> Vec<f32> {
        let (mut codes, mut back) = (Vec::new(), Vec::new());
        codec.compress(vectors, &mut codes);
        assert_eq!(codes.len(), vectors.len() / DIMENSIONS * codec.code_bytes());
        codec.restore(&codes, &mut back).unwrap();
        back
    }

    #[test]
    fn more_bits_restore_vectors_better() {
        let all = vectors(600);
        let error = |bits: u32| {
            let back = restored(&learned(bits), &all);
            for vector in back.chunks(DIMENSIONS) {
                assert!((sum_of_squares(vector) - 1.0).abs() < 1e-5);
            }
            all.iter().zip(&back).map(|(a, b)| f64::from((a - b).powi(2))).sum::<f64>() / 600.0
        };
        let errors = [1, 2, 4].map(error);
        assert!(errors[0] > 2.0 * errors[1] && errors[1] > 4.0 * errors[2], "{errors:?}");
        assert_eq!([1, 2, 4].map(|bits| learned(bits).code_bytes()), [4 + 3, 4 + 5, 4 + 10]);
    }

    #[test]
    fn a_code_is_the_centroid_and_its_buckets_from_the_lowest_bits_on() {
        let codec = Codec::new(5, vec![1.0, 0.0, 0.0, 0.0, 0.0], vec![-0.5, 0.0, 0.5], vec![-0.75, -0.25, 0.25, 0.75]);
        let codec = codec.unwrap();
        let mut codes = Vec::new();
        codec.compress(&[0.3, -0.2, 0.0, 0.6, 0.2], &mut codes);
        // Rests -0.7, -0.2, 0 (a limit belongs to the bucket below it), 0.6, 0.2.
        assert_eq!(codes, [0, 0, 0, 0, 0b11_01_01_00, 0b10]);
        let mut back = Vec::new();
        codec.restore(&codes, &mut back).unwrap();
        let plain = [0.25f32, -0.25, -0.25, 0.75, 0.25];
        let length = sum_of_squares(&plain).sqrt();
        assert_eq!(back, plain.map(|number| number / length));
        assert_eq!(codec.restore(&[1, 0, 0, 0, 0, 0], &mut back), None, "there is one centroid");
    }

    #[test]
    fn parts_that_do_not_fit_and_samples_of_nothing() {
        assert_eq!(Codec::new(2, vec![1.0; 3], vec![0.0], vec![0.0; 2]), None);
        assert_eq!(Codec::new(1, vec![1.0; 3], vec![0.0; 2], vec![0.0; 3]), None);
        assert!(Codec::learn(&[], Vec::new(), 4, 2).unwrap().values().iter().all(|value| *value == 0.0));
        assert_eq!([0.0, 0.5, 0.9].map(|share| quantile(&[1.0, 2.0, 4.0], share)), [1.0, 2.0, 3.6]);
    }
}
