//! MultiHop-RAG (Tang and Yang 2024): `MultiHopRAG.json`, `corpus.json`, and questions in FlashRAG's layout.

use searchmill_schemas::{Document, Evidence, Question};
use serde_json::Value;

use super::field::{
    ANSWERS, asked, flatten_metadata, metadata, need_text, object, take_id, take_list, take_text, text_of,
};

/// Reads one question. Evidence names articles by title; its sources and URLs stay in the metadata.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let (question, mut fields) = asked(number, record, [&["id", "_id"], &["question", "query"], ANSWERS])?;
    flatten_metadata(&mut fields);
    let question_type = take_text(&mut fields, &["question_type", "type"]);
    let mut entries = take_list(&mut fields, "evidence_list");
    let (mut evidence, mut has_further_fields) = (Vec::new(), false);
    for entry in &mut entries {
        let Value::Object(entry) = entry else { continue };
        let (title, fact) = (entry.remove("title"), entry.remove("fact"));
        evidence.push(Evidence { document_id: None, title: text_of(title.as_ref()), fact: text_of(fact.as_ref()) });
        has_further_fields |= !entry.is_empty();
    }
    if has_further_fields {
        fields.insert("evidence_list".to_owned(), Value::Array(entries));
    }
    Ok(Question { question_type, evidence, metadata: metadata(fields), ..question })
}

/// Reads one article of the corpus. Ids are positions, as in DeepSearch-RL's preparation.
pub(super) fn document(number: u64, record: Value) -> Result<Document, String> {
    let mut fields = object(record)?;
    let id = take_id(&mut fields, &["id", "_id"], number);
    // FlashRAG's copy of the corpus.
    if !fields.contains_key("body") && fields.contains_key("contents") {
        fields.insert("id".to_owned(), Value::String(id));
        return super::contents::document(number, Value::Object(fields));
    }
    let title = take_text(&mut fields, &["title"]);
    let text = need_text(&mut fields, &["body", "text"])?;
    Ok(Document { id, title, text, metadata: metadata(fields) })
}
