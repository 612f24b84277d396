//! Windows of a fixed number of units, with overlap.

use super::{Piece, Tally};

/// Windows of `size` units, each starting `size - overlap` units behind the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenWindow {
    /// Units in a window.
    pub(crate) size: usize,
    /// Units that a window shares with the one before; less than `size`.
    pub(crate) overlap: usize,
}

impl TokenWindow {
    /// Cuts `text` where its units start, so what lies between two units belongs to the first. The last window ends
    /// with the text; none lies wholly inside the one before.
    pub(crate) fn cut(&self, text: &str, tally: &mut Tally<'_>) -> Vec<Piece> {
        let starts = tally.starts(text);
        let offset = |unit: usize| match unit {
            0 => 0,
            unit => starts.get(unit).copied().unwrap_or(text.len()),
        };
        let mut pieces = Vec::new();
        let mut first = 0;
        loop {
            let last = (first + self.size).min(starts.len());
            let end = if last == starts.len() { text.len() } else { offset(last) };
            if offset(first) < end {
                pieces.push(Piece { start: offset(first), end, tokens: last - first });
            }
            if last == starts.len() {
                return pieces;
            }
            first += self.size - self.overlap;
        }
    }
}
