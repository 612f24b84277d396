//! MuSiQue (Trivedi et al. 2022), in its original layout, in FlashRAG's, and as a corpus of paragraphs.
//!
//! Different paragraphs share a title, so titles do not identify the gold ones: a paragraph's id is derived from its
//! text, and evidence names that id.

use searchmill_schemas::{Document, Evidence, Question};
use searchmill_text::retrieval_metrics::passage_id;
use serde_json::Value;

use super::context::Passage;
use super::field::{as_text, flatten_metadata, metadata, need_text, object, take_list, take_text, take_texts};

/// Reads one question. Its type is the number of hops (`2hop`), its evidence the supporting paragraphs.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let mut fields = object(record)?;
    let id = take_text(&mut fields, &["id", "_id"]).unwrap_or_else(|| number.to_string());
    let text = need_text(&mut fields, &["question"])?;
    let mut golden_answers = take_texts(&mut fields, &["golden_answers", "answer"])?;
    golden_answers.extend(take_texts(&mut fields, &["answer_aliases"])?);
    flatten_metadata(&mut fields);
    let paragraphs = take_list(&mut fields, "paragraphs");
    let mut steps = take_list(&mut fields, "question_decomposition");
    let evidence = evidence(&paragraphs, &steps);
    let question_type = (!steps.is_empty()).then(|| format!("{}hop", steps.len()));
    for step in steps.iter_mut().filter_map(Value::as_object_mut) {
        step.remove("support_paragraph");
    }
    if !steps.is_empty() {
        fields.insert("question_decomposition".to_owned(), Value::Array(steps));
    }
    Ok(Question { id, question: text, golden_answers, question_type, evidence, metadata: metadata(fields) })
}

fn evidence(paragraphs: &[Value], steps: &[Value]) -> Vec<Evidence> {
    let marked = paragraphs.iter().filter(|paragraph| paragraph.get("is_supporting") == Some(&Value::Bool(true)));
    let named = steps.iter().filter_map(|step| step.get("support_paragraph"));
    let mut evidence: Vec<Evidence> = Vec::new();
    for paragraph in marked.chain(named) {
        let document_id = document(paragraph).ok().map(|document| document.id);
        let title = paragraph.get("title").and_then(as_text);
        let found = Evidence { document_id, title, fact: None };
        if found != Evidence::default() && !evidence.contains(&found) {
            evidence.push(found);
        }
    }
    evidence
}

/// Reads the paragraphs of one question: all of them in the original layout, the supporting ones in FlashRAG's. A record
/// of a corpus (`title, text`) is one paragraph.
pub(super) fn documents(record: &Value) -> Result<Vec<Document>, String> {
    let inner = record.get("metadata").unwrap_or(record);
    if let Some(paragraphs) = record.get("paragraphs").or_else(|| inner.get("paragraphs")) {
        return paragraphs.as_array().into_iter().flatten().map(document).collect();
    }
    let steps = inner.get("question_decomposition").and_then(Value::as_array);
    match steps {
        Some(steps) => {
            let named = steps.iter().filter_map(|step| step.get("support_paragraph"));
            named.filter(|found| !found.is_null()).map(document).collect()
        }
        None if record.get("title").is_some() => Ok(vec![document(record)?]),
        None => Err("there is neither `paragraphs` nor `question_decomposition` nor `title`".to_owned()),
    }
}

fn document(paragraph: &Value) -> Result<Document, String> {
    let text = |name: &str| paragraph.get(name).and_then(as_text);
    match (text("title"), text("paragraph_text").or_else(|| text("text"))) {
        (Some(title), Some(body)) => {
            let document = Passage { title, sentences: vec![body] }.document();
            Ok(Document { id: passage_id(&document.id, &document.text), ..document })
        }
        _ => Err("a paragraph lacks `title`, or `paragraph_text` or `text`".to_owned()),
    }
}
