//! Limits on expansion, so that a few lines of YAML cannot fill the memory.

use super::value::{Spanned, Value};

/// Limit of nesting depth.
pub(super) const MAX_DEPTH: usize = 64;
/// Limit of values written out in a text.
pub(super) const MAX_VALUES: usize = 500_000;
/// Limit of values added by aliases, params and matrices, in units of [`weight`].
pub(super) const MAX_COPIED: usize = 250_000;
/// Limit of a string's length in bytes after replacing `${…}`.
pub(super) const MAX_STRING: usize = 1 << 20;

/// Counts copied values.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    copied: usize,
}

impl Budget {
    /// Counts a copy. Returns `false` if the limit is exceeded.
    pub(super) fn charge(&mut self, weight: usize) -> bool {
        // The count must not wrap around to an allowed one.
        self.copied = self.copied.saturating_add(weight);
        self.copied <= MAX_COPIED
    }

    /// Whether the limit is exceeded.
    pub(super) fn spent(self) -> bool {
        self.copied > MAX_COPIED
    }
}

/// Returns the cost of copying a value: one per value and per 64 bytes of text.
pub(super) fn weight(value: &Spanned) -> usize {
    1 + match &value.value {
        Value::String(text) => text.len() / 64,
        Value::List(items) => items.iter().map(weight).sum(),
        Value::Map(entries) => entries.iter().map(|(key, value)| key.text.len() / 64 + weight(value)).sum(),
        _ => 0,
    }
}

/// Returns the nesting depth of a value: 1 for a scalar.
pub(super) fn height(value: &Spanned) -> usize {
    1 + value.children().map(height).max().unwrap_or(0)
}
