//! Positions of the tokens of a batch, and the keys that each of them sees.
//!
//! A token always sees a range of consecutive keys: causal, from the start of its text. One pair of numbers per token
//! therefore describes padding on either side, packed texts and caches of any length.

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
    /// Tokens of each row that are added to a cache.
    pub(super) kept: Vec<usize>,
    /// Padding keys before each row's text.
    pub(super) starts: Vec<usize>,
    /// The spans on a device.
    seen: Arc<OnceLock<(Tensor, Tensor)>>,
    /// Dropout masks, in training.
    pub dropout: Option<Dropout>,
}

/// Side on which short rows are padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

impl Layout {
    /// One text per row, without padding.
    pub fn whole(rows: usize, columns: usize) -> Self {
        Self::padded(&vec![columns; rows], columns, Side::Right)
    }

    /// One text of `lengths` tokens per row, padded to `columns`.
    pub fn padded(lengths: &[usize], columns: usize, side: Side) -> Self {
        let rows = lengths.iter().map(|length| {
            let length = (*length).min(columns);
            let text = 0..length as u32;
            match side {
                Side::Right => {
                    (0..columns as u32).map(|at| token(at, text.contains(&at).then_some(0))).collect::<Vec<_>>()
                }
                Side::Left => {
                    let start = (columns - length) as u32;
                    (0..columns as u32).map(|at| token(at, (at >= start).then_some(start))).collect()
                }
            }
        });
        let tokens = rows.flatten().collect();
        if side == Side::Right {
            return Self::of(tokens, columns, lengths.to_vec());
        }
        let starts = lengths.iter().map(|length| columns - length.min(&columns)).collect();
        Self { starts, ..Self::of(tokens, columns, vec![columns; lengths.len()]) }
    }

    /// Several texts per row that do not see each other. `segments` has one number per token, row by row: adjacent equal
    /// numbers are a text, 0 is padding.
    pub fn packed(segments: &[u32], columns: usize) -> Self {
        let mut tokens = Vec::with_capacity(segments.len());
        for row in segments.chunks(columns.max(1)) {
            let mut start = 0;
            for (at, segment) in row.iter().enumerate() {
                if at > 0 && row[at - 1] != *segment {
                    start = at as u32;
                }
                tokens.push(token(at as u32, (*segment != 0).then_some(start)));
            }
        }
        let rows = segments.len() / columns.max(1);
        Self::of(tokens, columns, vec![columns; rows])
    }

    /// Rows of `columns` tokens, of which `kept` are added to a cache.
    pub(super) fn of(tokens: Vec<(u32, Span)>, columns: usize, kept: Vec<usize>) -> Self {
        let (positions, spans): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
        let (rows, starts) = (kept.len(), vec![0; kept.len()]);
        let (seen, dropout) = (Arc::default(), None);
        Self { rows, columns, positions: positions.into(), spans: spans.into(), kept, starts, seen, dropout }
    }

    /// Returns start and end of the ranges that the tokens see, rows × columns each, on a device (always the same one).
    pub(super) fn seen(&self, device: &Device) -> Result<&(Tensor, Tensor)> {
        if self.seen.get().is_none() {
            let table = |of: fn(&Span) -> u32| {
                let numbers: Vec<u32> = self.spans.iter().map(of).collect();
                Tensor::from_vec(numbers, (self.rows, self.columns), device)
            };
            // Another thread may have set equal tables first.
            drop(self.seen.set((table(|span| span.start)?, table(|span| span.end)?)));
        }
        self.seen.get().ok_or_else(|| candle_core::Error::Msg("the spans are gone".to_owned()))
    }

    /// Adds dropout, for a training step.
    #[must_use]
    pub fn training(mut self, dropout: Dropout) -> Self {
        self.dropout = Some(dropout);
        self
    }
}

/// Returns position and span of the token at key `at` of a text that starts at key `start`. Padding sees only itself.
pub(super) fn token(at: u32, start: Option<u32>) -> (u32, Span) {
    match start {
        Some(start) => (at - start, Span { start, end: at + 1 }),
        None => (0, Span { start: at, end: at + 1 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(layout: &Layout) -> Vec<(u32, u32, u32)> {
        layout.positions.iter().zip(layout.spans.iter()).map(|(at, span)| (*at, span.start, span.end)).collect()
    }

    #[test]
    fn padding_sees_itself_alone() {
        let left = Layout::padded(&[2, 3], 3, Side::Left);
        assert_eq!(shown(&left), [(0, 0, 1), (0, 1, 2), (1, 1, 3), (0, 0, 1), (1, 0, 2), (2, 0, 3)]);
        assert_eq!((left.starts.clone(), left.kept.clone()), (vec![1, 0], vec![3, 3]));
        let right = Layout::padded(&[2, 3], 3, Side::Right);
        assert_eq!(shown(&right)[..3], [(0, 0, 1), (1, 0, 2), (0, 2, 3)]);
        assert_eq!(right.kept, [2, 3]);
    }

    #[test]
    fn packed_texts_start_over() {
        let packed = Layout::packed(&[1, 1, 2, 2, 0, 7], 6);
        assert_eq!(shown(&packed), [(0, 0, 1), (1, 0, 2), (0, 2, 3), (1, 2, 4), (0, 4, 5), (0, 5, 6)]);
        assert_eq!(packed.rows, 1);
    }
}
