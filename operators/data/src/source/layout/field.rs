//! Takes fields out of a JSON record one by one; the rest becomes metadata.

use searchmill_schemas::Question;
use serde_json::{Map, Value};

use crate::source::python_list::{ListText, list_of};

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

/// Returns a field as text, if there is one that is a text.
pub(super) fn text_of(value: Option<&Value>) -> Option<String> {
    as_text(value?)
}

/// Returns the items of a field; none if it is not a list.
pub(super) fn items(value: Option<&Value>) -> &[Value] {
    match value {
        Some(Value::Array(items)) => items,
        _ => &[],
    }
}

/// Returns a whole number of a field; 0 if there is none.
pub(super) fn count(value: Option<&Value>) -> i64 {
    value.and_then(Value::as_i64).unwrap_or_default()
}

/// Takes the first of the fields that holds a text.
pub(super) fn take_text(fields: &mut Map<String, Value>, names: &[&str]) -> Option<String> {
    let name = names.iter().find(|name| text_of(fields.get(**name)).is_some())?;
    text_of(fields.remove(*name).as_ref())
}

/// Takes the id of a record; without one, its number in the file is its id.
pub(super) fn take_id(fields: &mut Map<String, Value>, names: &[&str], number: u64) -> String {
    take_text(fields, names).unwrap_or_else(|| number.to_string())
}

/// Takes the first of the fields that holds a text; an error if none does.
pub(super) fn need_text(fields: &mut Map<String, Value>, names: &[&str]) -> Result<String, String> {
    if let Some(text) = take_text(fields, names) {
        return Ok(text);
    }
    // Records of the wrong layout may have hundreds of fields.
    let found: Vec<_> = fields.keys().take(12).map(|name| format!("`{name}`")).collect();
    Err(format!("there is no text in `{}`; the record has {}", names.join("` or `"), found.join(", ")))
}

/// Takes the first of the fields that is present as a list of texts; a single text becomes a one-item list, and a list that
/// Python wrote as text its items.
pub(super) fn take_texts(fields: &mut Map<String, Value>, names: &[&str]) -> Result<Vec<String>, String> {
    let Some(name) = names.iter().find(|name| !matches!(fields.get(**name), None | Some(Value::Null))) else {
        return Ok(Vec::new());
    };
    let items = match fields.remove(*name) {
        Some(Value::Array(items)) => items,
        Some(value) => vec![value],
        None => Vec::new(),
    };
    let mut texts = Vec::with_capacity(items.len());
    for item in &items {
        if item.is_null() {
            continue;
        }
        let Some(text) = as_text(item) else { return Err(format!("`{name}` holds {item}, not a list of texts")) };
        texts.push(text);
    }
    // A cell of a table that pandas wrote holds a list as one text.
    let [text] = texts.as_slice() else { return Ok(texts) };
    match list_of(text) {
        ListText::Items(items) => Ok(items),
        ListText::Plain => Ok(texts),
        ListText::Broken => {
            Err(format!("`{name}` looks like a list but is neither JSON nor a list of Python: write `[\"a\", \"b\"]`"))
        }
    }
}

/// Fields of golden answers.
pub(super) const ANSWERS: &[&str] = &["golden_answers", "answer"];

/// Reads the id, the text and the golden answers of a question, each by the names of its fields. Returns the other fields,
/// too.
pub(super) fn asked(
    number: u64,
    record: Value,
    [ids, texts, answers]: [&[&str]; 3],
) -> Result<(Question, Map<String, Value>), String> {
    let mut fields = object(record)?;
    let id = take_id(&mut fields, ids, number);
    let question = need_text(&mut fields, texts)?;
    let golden_answers = take_texts(&mut fields, answers)?;
    Ok((Question { id, question, golden_answers, ..Question::default() }, fields))
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
    if fields.is_empty() { None } else { Some(Value::Object(fields).to_string()) }
}
