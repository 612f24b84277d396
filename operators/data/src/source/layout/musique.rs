//! MuSiQue (Trivedi et al. 2022), in its original layout, in FlashRAG's, and as a corpus of paragraphs.
//!
//! Different paragraphs share a title, so titles do not identify the gold ones: a paragraph's id is derived from its
//! text, and evidence names that id.

use searchmill_schemas::{Document, Evidence, Question};
use searchmill_text::retrieval_metrics::passage_id;
use serde_json::Value;

use super::field::{ANSWERS, asked, flatten_metadata, items, metadata, take_list, take_texts, text_of};

/// Reads one question. Its type is the number of hops (`2hop`), its evidence the supporting paragraphs.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let (mut question, mut fields) = asked(number, record, [&["id", "_id"], &["question"], ANSWERS])?;
    question.golden_answers.extend(take_texts(&mut fields, &["answer_aliases"])?);
    flatten_metadata(&mut fields);
    for paragraph in take_list(&mut fields, "paragraphs") {
        if paragraph.get("is_supporting") == Some(&Value::Bool(true)) {
            add_evidence(&mut question.evidence, &paragraph);
        }
    }
    let mut steps = take_list(&mut fields, "question_decomposition");
    if !steps.is_empty() {
        question.question_type = Some(format!("{}hop", steps.len()));
        for step in &mut steps {
            let Value::Object(step) = step else { continue };
            // Whole paragraphs are read as documents; the evidence names them.
            if let Some(paragraph) = step.remove("support_paragraph") {
                add_evidence(&mut question.evidence, &paragraph);
            }
        }
        fields.insert("question_decomposition".to_owned(), Value::Array(steps));
    }
    Ok(Question { metadata: metadata(fields), ..question })
}

fn add_evidence(evidence: &mut Vec<Evidence>, paragraph: &Value) {
    let document_id = document(paragraph).ok().map(|document| document.id);
    let found = Evidence { document_id, title: text_of(paragraph.get("title")), fact: None };
    // Two steps may rest on one paragraph.
    if found != Evidence::default() && !evidence.contains(&found) {
        evidence.push(found);
    }
}

/// Reads the paragraphs of one question: all of them in the original layout, the supporting ones in FlashRAG's. A record
/// of a corpus (`title, text`) is one paragraph.
pub(super) fn documents(record: &Value) -> Result<Vec<Document>, String> {
    let inner = record.get("metadata").unwrap_or(record);
    let paragraphs = record.get("paragraphs").or(inner.get("paragraphs"));
    if paragraphs.is_some() {
        return items(paragraphs).iter().map(document).collect();
    }
    match inner.get("question_decomposition") {
        Some(Value::Array(steps)) => {
            let shown = steps.iter().filter_map(|step| step.get("support_paragraph"));
            shown.filter(|paragraph| !paragraph.is_null()).map(document).collect()
        }
        _ if record.get("title").is_some() => Ok(vec![document(record)?]),
        _ => Err("there is neither `paragraphs` nor `question_decomposition` nor `title`".to_owned()),
    }
}

fn document(paragraph: &Value) -> Result<Document, String> {
    let body = text_of(paragraph.get("paragraph_text")).or(text_of(paragraph.get("text")));
    match (text_of(paragraph.get("title")), body) {
        (Some(title), Some(body)) => {
            let document = super::context::Passage { title, sentences: vec![body] }.document();
            Ok(Document { id: passage_id(&document.id, &document.text), ..document })
        }
        _ => Err("a paragraph lacks `title`, or `paragraph_text` or `text`".to_owned()),
    }
}
