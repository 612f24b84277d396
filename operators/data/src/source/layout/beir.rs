//! BEIR (Thakur et al. 2021): `corpus.jsonl` and `queries.jsonl`.

use searchmill_schemas::{Document, Question};
use serde_json::Value;

use super::field::{ANSWERS, asked, flatten_metadata, metadata, need_text, object, take_id, take_text};

/// Reads one document of the corpus.
pub(super) fn document(number: u64, record: Value) -> Result<Document, String> {
    let mut fields = object(record)?;
    let id = take_id(&mut fields, &["_id", "id"], number);
    // Corpora without titles have empty ones.
    let title = take_text(&mut fields, &["title"]).filter(|title| !title.is_empty());
    let text = need_text(&mut fields, &["text"])?;
    flatten_metadata(&mut fields);
    Ok(Document { id, title, text, metadata: metadata(fields) })
}

/// Reads one query. BEIR has no answers; sets with answers use `answer` or `golden_answers`.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let (question, mut fields) = asked(number, record, [&["_id", "id"], &["text", "question"], ANSWERS])?;
    flatten_metadata(&mut fields);
    Ok(Question { metadata: metadata(fields), ..question })
}
