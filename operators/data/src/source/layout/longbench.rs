//! LongBench (Bai et al. 2024) and LongBench-E: `input, context, answers, length, dataset, language, all_classes, _id`.

use searchmill_schemas::{Document, Question};
use serde_json::Value;

use super::field::{metadata, need_text, object, take_id, take_text, take_texts};

/// Buckets by which LongBench-E reports its scores: words of the context, and the name from there on
/// (`eval.py` of THUDM/LongBench at 2e00731).
const BUCKETS: [(u64, &str); 3] = [(8000, "8k+"), (4000, "4-8k"), (0, "0-4k")];

/// Reads one question; its type is the `dataset`. Metadata omits the context: read the same file `as: document`.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let mut fields = object(record)?;
    let id = take_id(&mut fields, &["_id"], number);
    let text = need_text(&mut fields, &["input"])?;
    if text.trim().is_empty() {
        return Err("`input` is empty: the tasks of LongBench that only summarise a text ask no question".to_owned());
    }
    let golden_answers = take_texts(&mut fields, &["answers"])?;
    let question_type = take_text(&mut fields, &["dataset"]);
    fields.remove("context");
    fields.retain(|_, value| !value.is_null());
    let metadata = metadata(fields);
    Ok(Question { id, question: text, golden_answers, question_type, evidence: Vec::new(), metadata })
}

/// Reads one question of LongBench-E, with its `length_bucket` in the metadata.
pub(super) fn question_e(number: u64, mut record: Value) -> Result<Question, String> {
    let length = record.get("length").and_then(Value::as_u64).ok_or("there is no whole number in `length`")?;
    // From the longest down; the last bucket takes every length.
    let bucket = BUCKETS.iter().find(|(least, _)| length >= *least);
    if let (Value::Object(fields), Some((_, name))) = (&mut record, bucket) {
        fields.insert("length_bucket".to_owned(), Value::from(*name));
    }
    question(number, record)
}

/// Reads the passages of one context, titled by their first lines. A context without passages is one document without
/// title whose id is that of its question.
pub(super) fn documents(number: u64, record: Value) -> Result<Vec<Document>, String> {
    let mut fields = object(record)?;
    let id = take_id(&mut fields, &["_id"], number);
    let context = need_text(&mut fields, &["context"])?;
    let passages = passages(&context);
    if passages.is_empty() {
        return Ok(vec![Document { id, title: None, text: context, metadata: None }]);
    }
    Ok(passages.into_iter().filter_map(document).collect())
}

/// Returns the texts below the lines `Passage 1:`, `Passage 2:`, …; none if the context does not begin with the first.
/// A line with another number than the next is text.
fn passages(context: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let Some(mut rest) = context.trim_start().strip_prefix("Passage 1:\n") else { return found };
    while let Some((passage, after)) = rest.split_once(&format!("\nPassage {}:\n", found.len() + 2)) {
        found.push(passage);
        rest = after;
    }
    found.push(rest);
    found
}

/// An empty passage is no document.
fn document(passage: &str) -> Option<Document> {
    let (title, text) = passage.trim().split_once('\n').unwrap_or((passage.trim(), ""));
    let (id, text) = (title.trim().to_owned(), text.trim().to_owned());
    let (title, text) = if text.is_empty() { (None, id.clone()) } else { (Some(id.clone()), text) };
    if id.is_empty() { None } else { Some(Document { id, title, text, metadata: None }) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn passages_are_numbered_and_titled() {
        let context = "Passage 1:\nAda\nAda wrote.\nPassage 9:\nstays\n\nPassage 2:\nBob\nBob read.\n";
        let rows = documents(0, json!({"_id": "x", "context": context})).unwrap();
        let found: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.text.as_str())).collect();
        assert_eq!(found, [("Ada", "Ada wrote.\nPassage 9:\nstays"), ("Bob", "Bob read.")]);
        let empty = "Passage 1:\n\nPassage 2:\nBob\nBob read.\nPassage 3:\n \n";
        let rows = documents(0, json!({"_id": "x", "context": empty})).unwrap();
        assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["Bob"], "an empty passage is none");
        let rows = documents(0, json!({"_id": "x", "context": "One long story."})).unwrap();
        assert_eq!((rows[0].id.as_str(), &rows[0].title, rows[0].text.as_str()), ("x", &None, "One long story."));
    }

    #[test]
    fn buckets_begin_at_4000_and_8000_words() {
        let bucket = |length: u64| {
            let row = question_e(0, json!({"input": "?", "length": length})).unwrap();
            serde_json::from_str::<Value>(&row.metadata.unwrap()).unwrap()["length_bucket"].clone()
        };
        assert_eq!([3999, 4000, 7999, 8000].map(bucket), ["0-4k", "4-8k", "4-8k", "8k+"].map(Value::from));
        assert!(question_e(0, json!({"input": "?"})).unwrap_err().contains("`length`"));
    }
}
