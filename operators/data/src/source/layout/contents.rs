//! FlashRAG's documents (Jin et al. 2024): `id, contents`, with the title on the first line of `contents`. Its questions
//! (`id, question, golden_answers, metadata`) are read as those of other sets.

use searchmill_schemas::Document;
use serde_json::Value;

use super::field::{flatten_metadata, metadata, need_text, object, take_id, take_text};

/// Reads one document. The first line of `contents` is the title (without surrounding quotes), the rest the text. A
/// single line is a text without title.
pub(super) fn document(number: u64, record: Value) -> Result<Document, String> {
    let mut fields = object(record)?;
    let id = take_id(&mut fields, &["id", "_id"], number);
    let own_title = take_text(&mut fields, &["title"]);
    let contents = need_text(&mut fields, &["contents", "text"])?;
    let (title, text) = match (own_title, contents.split_once('\n')) {
        (None, Some((title, text))) => (Some(unquoted(title)), text.to_owned()),
        (Some(title), Some((first, text))) if unquoted(first) == title => (Some(title), text.to_owned()),
        // The first line is another one than the title: it is text.
        (title, _) => (title, contents),
    };
    let title = title.filter(|title| !title.is_empty());
    flatten_metadata(&mut fields);
    Ok(Document { id, title, text, metadata: metadata(fields) })
}

fn unquoted(title: &str) -> String {
    let title = title.trim();
    title.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(title).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_line_is_the_title() {
        let row =
            document(0, json!({"id": 7, "contents": "\"Evan Morris\"\nEvan was.", "metadata": {"url": "u"}})).unwrap();
        assert_eq!((row.id.as_str(), row.title.as_deref(), row.text.as_str()), ("7", Some("Evan Morris"), "Evan was."));
        assert_eq!(row.metadata.as_deref(), Some(r#"{"url":"u"}"#));
        let row = document(3, json!({"contents": "no title here"})).unwrap();
        assert_eq!((row.id.as_str(), row.title, row.text.as_str()), ("3", None, "no title here"));
    }
}
