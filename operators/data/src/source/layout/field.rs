//! Takes fields out of a JSON record one by one; the rest becomes metadata.

use serde_json::{Map, Value};

/// Returns the record's fields.
pub(super) fn object(record: Value) -> Result<Map<String, Value>, String> {
    match record {
        Value::Object(fields) => Ok(fields),
        _ => Err("the record is not a JSON object".to_owned()),
    }
}

/// Returns a value as text: strings unchanged, numbers and booleans as JSON.
pub(super) fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Takes the first of the fields that holds a text.
pub(super) fn take_text(fields: &mut Map<String, Value>, names: &[&str]) -> Option<String> {
    let name = names.iter().find(|name| fields.get(**name).and_then(as_text).is_some())?;
    fields.remove(*name).as_ref().and_then(as_text)
}

/// Takes the first of the fields that holds a text; an error if none does.
pub(super) fn need_text(fields: &mut Map<String, Value>, names: &[&str]) -> Result<String, String> {
    take_text(fields, names).ok_or_else(|| {
        let found: Vec<_> = fields.keys().take(12).map(|name| format!("`{name}`")).collect();
        format!("there is no text in `{}`; the record has {}", names.join("` or `"), found.join(", "))
    })
}

/// Takes the first of the fields that is present as a list of texts; a single text becomes a one-item list.
pub(super) fn take_texts(fields: &mut Map<String, Value>, names: &[&str]) -> Vec<String> {
    let Some(name) = names.iter().find(|name| fields.get(**name).is_some_and(|value| !value.is_null())) else {
        return Vec::new();
    };
    match fields.remove(*name) {
        Some(Value::Array(items)) => items.iter().filter_map(as_text).collect(),
        Some(value) => as_text(&value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Replaces `metadata` by its fields, if it holds an object.
pub(super) fn flatten_metadata(fields: &mut Map<String, Value>) {
    if fields.get("metadata").is_some_and(Value::is_object)
        && let Some(Value::Object(inner)) = fields.remove("metadata")
    {
        fields.extend(inner);
    }
}

/// Takes a field that holds a list; empty if it does not.
pub(super) fn take_list(fields: &mut Map<String, Value>, name: &str) -> Vec<Value> {
    match fields.remove(name) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// Returns the remaining fields as metadata.
pub(super) fn metadata(fields: Map<String, Value>) -> Option<String> {
    (!fields.is_empty()).then(|| Value::Object(fields).to_string())
}
