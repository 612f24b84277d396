//! Open questions with answers only: Bamboogle (Press et al. 2023), NQ-open (Lee et al. 2019), R1-Searcher's training
//! and evaluation sets.

use searchmill_schemas::Question;
use serde_json::Value;

use super::field::{asked, metadata, take_text};

/// Reads one question, numbered by its `idx` or by its position in the file.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let answers = ["golden_answers", "answer", "Answer"];
    let (question, mut fields) = asked(number, record, [&["id", "idx"], &["question", "Question"], &answers])?;
    let question_type = take_text(&mut fields, &["type", "question_type"]);
    fields.retain(|_, value| *value != Value::String(String::new()));
    Ok(Question { question_type, metadata: metadata(fields), ..question })
}
