//! BrowseComp-Plus (Chen et al. 2025): decrypted queries with their relevant documents, and the corpus `docid, text,
//! url`.

use searchmill_schemas::{Document, Evidence, Question};
use serde_json::{Map, Value};

use super::field::{metadata, need_text, object, take_id, take_list, take_texts, text_of};

/// Reads one query. Evidence is all documents that the answer follows from (`evidence_docs`); metadata lists the ids of
/// those that contain it (`gold_docs`) and of the hard negatives.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let mut fields = object(record)?;
    let id = take_id(&mut fields, &["query_id"], number);
    let text = need_text(&mut fields, &["query"])?;
    // Base64 text: one long word, where a question has several.
    if text.len() >= 40 && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=')) {
        return Err("`query` is encrypted: decrypt the file with the script of texttron/BrowseComp-Plus".to_owned());
    }
    let golden_answers = take_texts(&mut fields, &["answer"])?;
    let relevant = ids(&mut fields, "evidence_docs").into_iter();
    let evidence = relevant.map(|id| Evidence { document_id: Some(id), ..Evidence::default() }).collect();
    // Ids alone: the texts of all documents would fill the metadata.
    for name in ["gold_docs", "negative_docs"] {
        if fields.contains_key(name) {
            let ids = ids(&mut fields, name);
            fields.insert(name.to_owned(), ids.into());
        }
    }
    Ok(Question { id, question: text, golden_answers, question_type: None, evidence, metadata: metadata(fields) })
}

/// Takes the ids of a list of documents.
fn ids(fields: &mut Map<String, Value>, name: &str) -> Vec<String> {
    take_list(fields, name).iter().filter_map(|document| text_of(document.get("docid"))).collect()
}

/// Reads one document of the corpus. Its title is in the header (`---`, `title: …`) that precedes most texts; the text
/// is unchanged.
pub(super) fn document(record: Value) -> Result<Document, String> {
    let mut fields = object(record)?;
    let id = need_text(&mut fields, &["docid"])?;
    let text = need_text(&mut fields, &["text"])?;
    let header = text.strip_prefix("---\ntitle: ").unwrap_or_default();
    let line = header.lines().next().unwrap_or_default().trim();
    let title = if line.is_empty() { None } else { Some(line.to_owned()) };
    Ok(Document { id, title, text, metadata: metadata(fields) })
}
