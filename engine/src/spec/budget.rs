//! Bounds on what a text may unfold to, so that no few lines of YAML fill the memory.

use super::value::{Spanned, Value};

/// Deepest nesting.
pub(super) const MAX_DEPTH: usize = 64;
/// Largest number of values that a text spells out.
pub(super) const MAX_VALUES: usize = 1_000_000;
/// Largest number of values that aliases, params and matrices may add, in units of [`weight`].
pub(super) const MAX_COPIED: usize = 500_000;
/// Longest string that `${…}` may put together.
pub(super) const MAX_STRING: usize = 1 << 20;

/// Counts copied values.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    copied: usize,
}

impl Budget {
    /// Counts a copy; `false` when that was too much.
    pub(super) fn charge(&mut self, weight: usize) -> bool {
        self.copied = self.copied.saturating_add(weight);
        self.copied <= MAX_COPIED
    }

    /// Was too much copied?
    pub(super) fn spent(self) -> bool {
        self.copied > MAX_COPIED
    }
}

/// What a copy of this value costs: one for each value and for each 64 bytes of text.
pub(super) fn weight(value: &Spanned) -> usize {
    1 + match &value.value {
        Value::String(text) => text.len() / 64,
        Value::List(items) => items.iter().map(weight).sum(),
        Value::Map(entries) => entries.iter().map(|(key, value)| key.text.len() / 64 + weight(value)).sum(),
        _ => 0,
    }
}

/// How deep a value nests: 1 for a scalar.
pub(super) fn height(value: &Spanned) -> usize {
    1 + match &value.value {
        Value::List(items) => items.iter().map(height).max().unwrap_or(0),
        Value::Map(entries) => entries.iter().map(|(_, value)| height(value)).max().unwrap_or(0),
        _ => 0,
    }
}
