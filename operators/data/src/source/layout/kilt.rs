//! KILT (Petroni et al. 2021): task files `id, input, output`, and the knowledge source of whole Wikipedia pages.

use searchmill_schemas::{Document, Evidence, Question};
use serde_json::Value;

use super::field::{as_text, asked, items, metadata, need_text, object, take_list, text_of};

/// Marks of list items and section titles in the knowledge source; R1-Searcher's corpora drop them too.
const MARKS: [&str; 2] = ["BULLET::::", "Section::::"];

/// Reads one question. As in KILT's evaluation, answers are stripped and each counts once; evidence is the pages that
/// the outputs name as provenance.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let (mut question, mut fields) = asked(number, record, [&["id"], &["input"], &[]])?;
    for output in take_list(&mut fields, "output") {
        // An output may hold an answer, provenance, or both.
        let answer = text_of(output.get("answer")).unwrap_or_default().trim().to_owned();
        if !answer.is_empty() && !question.golden_answers.contains(&answer) {
            question.golden_answers.push(answer);
        }
        for page in items(output.get("provenance")) {
            let document_id = text_of(page.get("wikipedia_id"));
            let found = Evidence { document_id, title: text_of(page.get("title")), fact: None };
            if found != Evidence::default() && !question.evidence.contains(&found) {
                question.evidence.push(found);
            }
        }
    }
    Ok(Question { metadata: metadata(fields), ..question })
}

/// Reads one page of the knowledge source: its paragraphs without marks and without the title that precedes them.
pub(super) fn document(record: Value) -> Result<Document, String> {
    let mut fields = object(record)?;
    let id = need_text(&mut fields, &["wikipedia_id", "_id"])?;
    let title = need_text(&mut fields, &["wikipedia_title"])?;
    let Some(Value::Array(paragraphs)) = fields.remove("text") else {
        return Err("`text` is not a list of paragraphs".to_owned());
    };
    let mut paragraphs: Vec<String> = paragraphs.iter().filter_map(as_text).collect();
    if paragraphs.first().is_some_and(|first| first.trim() == title) {
        paragraphs.remove(0);
    }
    let mut text = paragraphs.concat();
    for mark in MARKS {
        text = text.replace(mark, "");
    }
    fields.retain(|name, _| name == "wikidata_info" || name == "categories");
    Ok(Document { id, title: Some(title), text: text.trim().to_owned(), metadata: metadata(fields) })
}
