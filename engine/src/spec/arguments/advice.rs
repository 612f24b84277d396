//! Advice for values of the wrong type.

use super::schema::Schema;
use crate::spec::scalar;
use crate::spec::value::{Spanned, Value};

/// Returns how to write what was probably meant.
pub(super) fn advice(value: &Spanned, schema: Schema<'_>) -> Option<String> {
    let text = value.scalar_text();
    match (&value.value, text.as_deref()) {
        (Value::String(_), Some(text @ ("yes" | "on" | "y" | "Yes" | "On"))) if schema.allows("boolean") => {
            Some(format!("write `true` for `{text}`"))
        }
        (Value::String(_), Some(text @ ("no" | "off" | "n" | "No" | "Off"))) if schema.allows("boolean") => {
            Some(format!("write `false` for `{text}`"))
        }
        (Value::String(_), Some(text)) if !matches!(scalar::resolve(text), Value::String(_) | Value::Null) => {
            Some(format!("write `{text}` without quotes"))
        }
        (_, Some(text)) if schema.allows("array") => Some(format!("write a list: `[{text}]`")),
        _ => None,
    }
}
