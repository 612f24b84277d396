//! HotpotQA (Yang et al. 2018) and 2WikiMultiHopQA (Ho et al. 2020), which share their layout.

use searchmill_schemas::{Document, Question};
use serde_json::{Map, Value};

use super::context::{Passage, evidence, passages};
use super::field::{flatten_metadata, metadata, need_text, object, take_text, take_texts};

/// Reads one question. Metadata omits the context: read the same file `as: document` to get it.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let mut fields = object(record)?;
    let id = take_text(&mut fields, &["id", "_id"]).unwrap_or_else(|| number.to_string());
    let text = need_text(&mut fields, &["question"])?;
    let golden_answers = take_texts(&mut fields, &["golden_answers", "answer"])?;
    flatten_metadata(&mut fields);
    let passages = passages(fields.remove("context").as_ref())?;
    let evidence = evidence(fields.remove("supporting_facts").as_ref(), &passages);
    let question_type = take_text(&mut fields, &["type", "question_type"]);
    Ok(Question { id, question: text, golden_answers, question_type, evidence, metadata: metadata(fields) })
}

/// Reads the passages of one question's context.
pub(super) fn documents(record: &Value) -> Result<Vec<Document>, String> {
    let empty = Map::new();
    let fields = record.as_object().ok_or("the record is not a JSON object")?;
    let inner = fields.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    let context = fields.get("context").or_else(|| inner.get("context"));
    let context = context.ok_or("there is neither `context` nor `metadata.context`")?;
    Ok(passages(Some(context))?.into_iter().map(Passage::document).collect())
}
