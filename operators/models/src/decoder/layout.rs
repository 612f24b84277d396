//! Positions of the tokens of a batch, and the keys that each of them sees.
//!
//! A token always sees a range of consecutive keys: causal, from the start of its text. One pair of numbers per token
//! therefore describes padding and packed texts.

use std::sync::{Arc, OnceLock};

use candle_core::{Device, Result, Tensor};
use searchmill_kernels::attention::Span;

use super::dropout::Dropout;

/// Layout of a batch of `rows` × `columns` tokens.
#[derive(Clone, Debug)]
pub struct Layout {
    pub rows: usize,
    pub columns: usize,
    /// Position of each token in its text, row by row.
    pub positions: Arc<[u32]>,
    /// Range of keys that each token sees, row by row.
    pub spans: Arc<[Span]>,
    /// The spans on a device.
    seen: Arc<OnceLock<(Tensor, Tensor)>>,
    /// Dropout masks, in training.
    pub dropout: Option<Dropout>,
}

impl Layout {
    /// One text per row, without padding.
    pub fn whole(rows: usize, columns: usize) -> Self {
        Self::packed(&vec![1; rows * columns], columns)
    }

    /// Several texts per row that do not see each other. `segments` has one number per token, row by row: adjacent equal
    /// numbers are a text, 0 is padding, which sees only itself.
    pub fn packed(segments: &[u32], columns: usize) -> Self {
        let (mut positions, mut spans) = (Vec::new(), Vec::new());
        for row in segments.chunks(columns.max(1)) {
            let mut start = 0;
            for (at, segment) in row.iter().enumerate() {
                // Padding sees only itself: a softmax over nothing would be no number.
                if *segment == 0 || at > 0 && row[at - 1] != *segment {
                    start = at as u32;
                }
                positions.push(at as u32 - start);
                spans.push(Span { start, end: at as u32 + 1 });
            }
        }
        let (rows, seen) = (segments.len() / columns.max(1), Arc::default());
        Self { rows, columns, positions: positions.into(), spans: spans.into(), seen, dropout: None }
    }

    /// Returns start and end of the ranges that the tokens see, rows × columns each, on a device (always the same one).
    pub(super) fn seen(&self, device: &Device) -> Result<&(Tensor, Tensor)> {
        if self.seen.get().is_none() {
            let shape = (self.rows, self.columns);
            let (starts, ends) = self.spans.iter().map(|span| (span.start, span.end)).unzip();
            let (starts, ends) = (Tensor::from_vec(starts, shape, device)?, Tensor::from_vec(ends, shape, device)?);
            // Another thread may have set equal tables first.
            drop(self.seen.set((starts, ends)));
        }
        match self.seen.get() {
            Some(seen) => Ok(seen),
            None => candle_core::bail!("the spans are gone"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_texts_start_over_and_padding_sees_itself_alone() {
        let packed = Layout::packed(&[1, 1, 2, 2, 0, 7], 6);
        let shown = packed.positions.iter().zip(packed.spans.iter()).map(|(at, span)| (*at, span.start, span.end));
        let wanted = [(0, 0, 1), (1, 0, 2), (0, 2, 3), (1, 2, 4), (0, 4, 5), (0, 5, 6)];
        assert_eq!(shown.collect::<Vec<_>>(), wanted);
        assert_eq!(packed.rows, 1);
    }
}
