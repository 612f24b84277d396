//! HotpotQA (Yang et al. 2018) and 2WikiMultiHopQA (Ho et al. 2020), which share their layout.

use searchmill_schemas::{Document, Question};
use serde_json::Value;

use super::context::{Passage, evidence, passages};
use super::field::{ANSWERS, asked, flatten_metadata, metadata, take_text};

/// Reads one question. Metadata omits the context: read the same file `as: document` to get it.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let (question, mut fields) = asked(number, record, [&["id", "_id"], &["question"], ANSWERS])?;
    flatten_metadata(&mut fields);
    let passages = passages(fields.remove("context").as_ref())?;
    let evidence = evidence(fields.remove("supporting_facts").as_ref(), &passages);
    let question_type = take_text(&mut fields, &["type", "question_type"]);
    Ok(Question { question_type, evidence, metadata: metadata(fields), ..question })
}

/// Reads the passages of one question's context.
pub(super) fn documents(record: &Value) -> Result<Vec<Document>, String> {
    let Value::Object(fields) = record else { return Err("the record is not a JSON object".to_owned()) };
    // FlashRAG's copy has the context in the metadata.
    let context = fields.get("context").or(record.pointer("/metadata/context"));
    let context = context.ok_or("there is neither `context` nor `metadata.context`")?;
    Ok(passages(Some(context))?.into_iter().map(Passage::document).collect())
}
