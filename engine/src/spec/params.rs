//! `params:`: the declared values of a file, and what replaces them.

use super::field;
use super::model::Overrides;
use super::scope::Shared;
use super::set;
use super::value::{Spanned, Value};
use crate::diagnostic::{FileId, Span};

/// Params that override those declared in the file.
pub(super) enum Over<'o> {
    CommandLine(&'o Overrides),
    Include(Spanned),
}

/// Returns the params of a file, with those that override them.
pub(super) fn params(value: Option<Spanned>, file: FileId, over: Over<'_>, shared: &mut Shared<'_>) -> Spanned {
    let nowhere = Span::new(file, 0, 0);
    let span = value.as_ref().map_or(nowhere, |value| value.span);
    let entries = value.and_then(|value| field::map(value, "`params`", &mut shared.problems)).unwrap_or_default();
    let mut params = Spanned::new(Value::Map(entries), span);
    match over {
        Over::CommandLine(overrides) => set::apply(&mut params, overrides, shared),
        Over::Include(over) => set::lay(&mut params, over, &mut Vec::new(), shared),
    }
    params
}
