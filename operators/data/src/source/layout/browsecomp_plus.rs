//! BrowseComp-Plus (Chen et al. 2025): decrypted queries with their relevant documents, and the corpus `docid, text,
//! url`.

use searchmill_schemas::{Document, Evidence, Question};
use serde_json::{Map, Value};

use super::field::{as_text, metadata, need_text, object, take_list, take_text, take_texts};

/// Reads one query. Evidence is all documents that the answer follows from (`evidence_docs`); metadata lists the ids of
/// those that contain it (`gold_docs`) and of the hard negatives.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let mut fields = object(record)?;
    let id = take_text(&mut fields, &["query_id"]).unwrap_or_else(|| number.to_string());
    let text = need_text(&mut fields, &["query"])?;
    if is_encrypted(&text) {
        return Err("`query` is encrypted: decrypt the file with the script of texttron/BrowseComp-Plus".to_owned());
    }
    let golden_answers = take_texts(&mut fields, &["answer"])?;
    let evidence = ids(&mut fields, "evidence_docs").into_iter();
    let evidence = evidence.map(|id| Evidence { document_id: Some(id), ..Evidence::default() }).collect();
    for name in ["gold_docs", "negative_docs"] {
        if fields.contains_key(name) {
            let ids = ids(&mut fields, name);
            fields.insert(name.to_owned(), ids.into());
        }
    }
    Ok(Question { id, question: text, golden_answers, question_type: None, evidence, metadata: metadata(fields) })
}

/// Whether a query is Base64 text: one long word, where a question has several.
fn is_encrypted(query: &str) -> bool {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    query.len() >= 40 && query.chars().all(is_base64)
}

/// Takes the ids of a list of documents.
fn ids(fields: &mut Map<String, Value>, name: &str) -> Vec<String> {
    let documents = take_list(fields, name);
    documents.iter().filter_map(|document| document.get("docid").and_then(as_text)).collect()
}

/// Reads one document of the corpus. Its title is in the header (`---`, `title: …`) that precedes most texts; the text
/// is unchanged.
pub(super) fn document(record: Value) -> Result<Document, String> {
    let mut fields = object(record)?;
    let id = need_text(&mut fields, &["docid"])?;
    let text = need_text(&mut fields, &["text"])?;
    let title = text.strip_prefix("---\ntitle: ").and_then(|rest| rest.lines().next());
    let title = title.map(|title| title.trim().to_owned()).filter(|title| !title.is_empty());
    Ok(Document { id, title, text, metadata: metadata(fields) })
}
