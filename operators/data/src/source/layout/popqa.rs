//! PopQA (Mallen et al. 2023): TSV with one fact per row; `possible_answers` is a list as JSON text.

use searchmill_schemas::Question;
use serde_json::{Map, Value};

use super::field::{as_text, metadata, need_text, object, take_id, take_text};

/// Reads one question. Its type is the relation (`prop`).
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let mut fields = object(record)?;
    let id = take_id(&mut fields, &["id"], number);
    let text = need_text(&mut fields, &["question"])?;
    let golden_answers = possible_answers(&mut fields)?;
    let question_type = take_text(&mut fields, &["prop"]);
    let metadata = metadata(fields);
    Ok(Question { id, question: text, golden_answers, question_type, evidence: Vec::new(), metadata })
}

fn possible_answers(fields: &mut Map<String, Value>) -> Result<Vec<String>, String> {
    let list = match fields.remove("possible_answers") {
        None => return Err("`possible_answers` is missing".to_owned()),
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(list) => list,
            Err(error) => return Err(format!("`possible_answers` is not a list of texts in JSON: {error}")),
        },
        // A copy in another format than TSV has the list itself.
        Some(list) => list,
    };
    let answers: Option<Vec<String>> = match &list {
        Value::Array(items) => items.iter().map(as_text).collect(),
        _ => None,
    };
    answers.ok_or("`possible_answers` is not a list of texts in JSON: something else was found".to_owned())
}
