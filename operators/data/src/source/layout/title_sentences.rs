//! A corpus as one object `{title: [sentence, …]}`, the format of HippoRAG's HotpotQA corpus.

use searchmill_schemas::Document;
use serde_json::Value;

use super::context::Passage;
use super::field::as_text;

/// Reads the document of one member.
pub(super) fn documents(record: &Value) -> Result<Vec<Document>, String> {
    let mut documents = Vec::new();
    let Value::Object(members) = record else { return Ok(documents) };
    for (title, body) in members {
        let sentences: Option<Vec<String>> = match body {
            Value::Array(items) => items.iter().map(as_text).collect(),
            value => as_text(value).map(|text| vec![text]),
        };
        let Some(sentences) = sentences else {
            return Err(format!("the text of `{title}` is not a list of sentences"));
        };
        documents.push(Passage { title: title.clone(), sentences }.document());
    }
    Ok(documents)
}
