//! PopQA (Mallen et al. 2023): TSV with one fact per row; `possible_answers` is a list as JSON text.

use searchmill_schemas::Question;
use serde_json::{Map, Value};

use super::field::{as_text, asked, metadata, take_text};

/// Reads one question. Its type is the relation (`prop`).
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let (question, mut fields) = asked(number, record, [&["id"], &["question"], &[]])?;
    let golden_answers = possible_answers(&mut fields)?;
    let question_type = take_text(&mut fields, &["prop"]);
    Ok(Question { golden_answers, question_type, metadata: metadata(fields), ..question })
}

fn possible_answers(fields: &mut Map<String, Value>) -> Result<Vec<String>, String> {
    let list = match fields.remove("possible_answers") {
        None => return Err("`possible_answers` is missing".to_owned()),
        Some(Value::String(text)) => serde_json::from_str(&text)
            .map_err(|error| format!("`possible_answers` is not a list of texts in JSON: {error}"))?,
        // A copy in another format than TSV has the list itself.
        Some(list) => list,
    };
    let answers: Option<Vec<String>> = match &list {
        Value::Array(items) => items.iter().map(as_text).collect(),
        _ => None,
    };
    answers.ok_or("`possible_answers` is not a list of texts in JSON: something else was found".to_owned())
}
