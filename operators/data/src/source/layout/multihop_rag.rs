//! MultiHop-RAG (Tang and Yang 2024): `MultiHopRAG.json`, `corpus.json`, and questions in FlashRAG's layout.

use searchmill_schemas::{Document, Evidence, Question};
use serde_json::{Map, Value};

use super::field::{as_text, flatten_metadata, metadata, need_text, object, take_list, take_text, take_texts};

/// Reads one question. Evidence names articles by title; its sources and URLs stay in the metadata.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let mut fields = object(record)?;
    let id = take_text(&mut fields, &["id", "_id"]).unwrap_or_else(|| number.to_string());
    let text = need_text(&mut fields, &["question", "query"])?;
    let golden_answers = take_texts(&mut fields, &["golden_answers", "answer"])?;
    flatten_metadata(&mut fields);
    let question_type = take_text(&mut fields, &["question_type", "type"]);
    let mut entries = take_list(&mut fields, "evidence_list");
    let evidence = entries.iter_mut().filter_map(Value::as_object_mut).map(evidence).collect();
    if entries.iter().any(|entry| entry.as_object().is_some_and(|left| !left.is_empty())) {
        fields.insert("evidence_list".to_owned(), Value::Array(entries));
    }
    Ok(Question { id, question: text, golden_answers, question_type, evidence, metadata: metadata(fields) })
}

fn evidence(entry: &mut Map<String, Value>) -> Evidence {
    let mut take = |name: &str| entry.remove(name).as_ref().and_then(as_text);
    Evidence { document_id: None, title: take("title"), fact: take("fact") }
}

/// Reads one article of the corpus. Ids are positions, as in DeepSearch-RL's preparation.
pub(super) fn document(number: u64, record: Value) -> Result<Document, String> {
    let mut fields = object(record)?;
    let id = take_text(&mut fields, &["id", "_id"]).unwrap_or_else(|| number.to_string());
    if !fields.contains_key("body") && fields.contains_key("contents") {
        fields.insert("id".to_owned(), Value::String(id));
        return super::contents::document(number, Value::Object(fields));
    }
    let title = take_text(&mut fields, &["title"]);
    let text = need_text(&mut fields, &["body", "text"])?;
    Ok(Document { id, title, text, metadata: metadata(fields) })
}
