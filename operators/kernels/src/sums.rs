//! Sums of scores per document, added from posting lists and searched for the highest.

use pulp::Arch;

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
    let least = least.max(f32::MIN_POSITIVE);
    Arch::new().dispatch(|| {
        for (block, start) in sums.chunks(SCANNED).zip((0u32..).step_by(SCANNED)) {
            // Counting is vectorised, unlike a search for the first match.
            if block.iter().map(|sum| u32::from(*sum >= least)).sum::<u32>() > 0 {
                let hits = block.iter().zip(start..).filter(|(sum, _)| **sum >= least);
                found.extend(hits.map(|(sum, document)| (document, *sum)));
            }
        }
    });
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
        clear(&mut sums, 250);
        assert_eq!(sums, vec![0.0; 250]);
    }
}
