//! TriviaQA (Joshi et al. 2017): the official `{"Data": [{Question, Answer: {Value, Aliases}}]}` and the Hub's rows with
//! lower-case names.

use searchmill_schemas::Question;
use serde_json::Value;

use super::field::{as_text, asked, items, metadata, text_of};

/// Pages and search results: long, and no gold evidence.
const PAGES: [&str; 4] = ["EntityPages", "SearchResults", "entity_pages", "search_results"];

/// Reads one question. Its answers are the answer's value, then its aliases.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let ids = ["QuestionId", "question_id"];
    let (question, mut fields) = asked(number, record, [&ids, &["Question", "question"], &[]])?;
    let answer = fields.remove("Answer").or_else(|| fields.remove("answer"));
    let golden_answers = match &answer {
        // The test set has no answers.
        None | Some(Value::Null) => Vec::new(),
        Some(answer) => answers(answer)?,
    };
    fields.retain(|name, _| !PAGES.contains(&name.as_str()));
    Ok(Question { golden_answers, metadata: metadata(fields), ..question })
}

fn answers(answer: &Value) -> Result<Vec<String>, String> {
    let value = text_of(answer.get("Value").or(answer.get("value")));
    let value = value.ok_or("`Answer` has no text in `Value` or `value`")?;
    let mut found = vec![value];
    for alias in items(answer.get("Aliases").or(answer.get("aliases"))) {
        // The aliases often hold the value too.
        if let Some(alias) = as_text(alias)
            && !found.contains(&alias)
        {
            found.push(alias);
        }
    }
    Ok(found)
}
