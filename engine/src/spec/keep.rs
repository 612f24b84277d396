//! `keep:` of a loop: of which rounds the folders (models, states, indexes) stay in the store.

use super::field::{self, take_whole};
use super::model::Kept;
use super::scope::{Scope, Shared};
use super::value::{Spanned, Value};

const KEYS: &[&str] = &["every", "last"];

/// Reads `last` or `{every: 10, last: 2}`; what is not written: the last round alone.
pub(super) fn read(value: Option<Spanned>, scope: &mut Scope<'_>, shared: &mut Shared<'_>) -> Option<Kept> {
    let mut value = value?;
    scope.apply(&mut value, None, shared);
    match &value.value {
        Value::Broken => None,
        Value::Map(_) => {
            let mut fields = field::fields(value, "`keep`", KEYS, &mut shared.problems);
            let every = take_whole(&mut fields, "every", 1, &mut shared.problems);
            let last = take_whole(&mut fields, "last", 1, &mut shared.problems);
            Some(Kept { every, last: last.unwrap_or(Kept::LAST.last) })
        }
        // The only word: to keep all rounds, leave `keep` out.
        Value::String(word) if word == "last" => Some(Kept::LAST),
        _ => {
            let fault = field::wrong_type(&value, "`keep`", "`last` or a map");
            shared.report(fault.help("write `keep: last` or `keep: {every: 10, last: 2}`"));
            None
        }
    }
}
