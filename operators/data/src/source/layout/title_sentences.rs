//! A corpus as one object `{title: [sentence, …]}`, the format of HippoRAG's HotpotQA corpus.

use searchmill_schemas::Document;
use serde_json::Value;

use super::context::Passage;
use super::field::as_text;

/// Reads the document of one member.
pub(super) fn documents(record: &Value) -> Result<Vec<Document>, String> {
    record.as_object().into_iter().flatten().map(|(title, body)| document(title, body)).collect()
}

fn document(title: &str, body: &Value) -> Result<Document, String> {
    let sentences = match body {
        Value::Array(items) => items.iter().map(as_text).collect::<Option<Vec<_>>>(),
        value => as_text(value).map(|text| vec![text]),
    };
    let sentences = sentences.ok_or_else(|| format!("the text of `{title}` is not a list of sentences"))?;
    Ok(Passage { title: title.to_owned(), sentences }.document())
}
