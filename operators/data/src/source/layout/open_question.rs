//! Open questions with answers only: Bamboogle (Press et al. 2023), NQ-open (Lee et al. 2019), R1-Searcher's training
//! and evaluation sets.

use searchmill_schemas::Question;
use serde_json::Value;

use super::field::{metadata, need_text, object, take_id, take_text, take_texts};

/// Reads one question, numbered by its `idx` or by its position in the file.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let mut fields = object(record)?;
    let id = take_id(&mut fields, &["id", "idx"], number);
    let text = need_text(&mut fields, &["question", "Question"])?;
    let golden_answers = take_texts(&mut fields, &["golden_answers", "answer", "Answer"])?;
    let question_type = take_text(&mut fields, &["type", "question_type"]);
    fields.retain(|_, value| *value != Value::String(String::new()));
    Ok(Question { id, question: text, golden_answers, question_type, evidence: Vec::new(), metadata: metadata(fields) })
}
