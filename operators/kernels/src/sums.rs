//! Sums of scores per document, added from posting lists and searched for the highest.
#![expect(clippy::inline_always, reason = "only what is inlined is compiled for the vector unit of the loop it is in")]

use pulp::{Arch, Simd, WithSimd};

/// Sums compared at a time.
const SCANNED: usize = 64;

/// One zero per document.
pub fn clear(sums: &mut Vec<f32>, documents: usize) {
    sums.truncate(documents);
    sums.fill(0.0);
    sums.resize(documents, 0.0);
}

/// Adds `weight` × factor to the sum of each document of a list.
///
/// # Panics
/// When a document has no sum.
pub fn add_list(sums: &mut [f32], documents: &[u32], factors: &[f32], weight: f32) {
    for (document, factor) in documents.iter().zip(factors) {
        sums[*document as usize] += weight * factor;
    }
}

/// Returns the documents, in order, whose sum is above 0 and at least `least`, with their sums.
pub fn at_least(sums: &[f32], least: f32, found: &mut Vec<(u32, f32)>) {
    Arch::new().dispatch(Find { sums, least: least.max(f32::MIN_POSITIVE), found });
}

/// Returns the number of sums above 0 and at least `least`.
pub fn count(sums: &[f32], least: f32) -> u32 {
    Arch::new().dispatch(Count { sums, least: least.max(f32::MIN_POSITIVE) })
}

struct Find<'a> {
    sums: &'a [f32],
    least: f32,
    found: &'a mut Vec<(u32, f32)>,
}

// A closure in place of this is not always compiled for the vector unit.
impl WithSimd for Find<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (block, start) in self.sums.chunks(SCANNED).zip((0u32..).step_by(SCANNED)) {
            let (whole, rest) = S::as_simd_f32s(block);
            let mut highest = simd.splat_f32s(0.0);
            for sums in whole {
                highest = simd.max_f32s(highest, *sums);
            }
            // Most blocks have no such sum, so that only their maximum is computed.
            if rest.iter().copied().fold(simd.reduce_max_f32s(highest), f32::max) >= self.least {
                for (sum, document) in block.iter().zip(start..) {
                    if *sum >= self.least {
                        self.found.push((document, *sum));
                    }
                }
            }
        }
    }
}

struct Count<'a> {
    sums: &'a [f32],
    least: f32,
}

impl WithSimd for Count<'_> {
    type Output = u32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> u32 {
        let (whole, rest) = S::as_simd_f32s(self.sums);
        let [zero, one, least] = [0.0, 1.0, self.least].map(|number| simd.splat_f32s(number));
        let mut counts = zero;
        for sums in whole {
            let high = simd.greater_than_or_equal_f32s(*sums, least);
            counts = simd.add_f32s(counts, simd.select_f32s(high, one, zero));
        }
        simd.reduce_sum_f32s(counts) as u32 + rest.iter().filter(|sum| **sum >= self.least).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_added_cleared_and_found_in_order() {
        let mut sums = vec![7.0; 300];
        clear(&mut sums, 200);
        assert_eq!(sums, vec![0.0; 200]);
        add_list(&mut sums, &[3, 70, 199], &[1.0, 2.0, 0.5], 2.0);
        add_list(&mut sums, &[70, 71], &[1.0, 1.0], 1.0);
        let mut found = Vec::new();
        at_least(&sums, 0.0, &mut found);
        assert_eq!(found, [(3, 2.0), (70, 5.0), (71, 1.0), (199, 1.0)]);
        found.clear();
        at_least(&sums, 2.0, &mut found);
        assert_eq!(found, [(3, 2.0), (70, 5.0)]);
        assert_eq!((count(&sums, -1.0), count(&sums, 2.0), count(&sums, 6.0)), (4, 2, 0));
        clear(&mut sums, 250);
        assert_eq!(sums, vec![0.0; 250]);
    }
}
