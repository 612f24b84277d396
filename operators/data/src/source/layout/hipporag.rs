//! HippoRAG's corpora (Gutiérrez et al. 2024): `[{title, text}]`.

use searchmill_schemas::Document;
use serde_json::Value;

use super::field::{metadata, need_text, object, take_text};

/// Reads one passage. Its id is its title until duplicates are resolved.
pub(super) fn document(record: Value) -> Result<Document, String> {
    let mut fields = object(record)?;
    let title = need_text(&mut fields, &["title"])?;
    let text = need_text(&mut fields, &["text", "paragraph_text"])?;
    let id = take_text(&mut fields, &["id"]).unwrap_or_else(|| title.clone());
    // The position in the file says nothing of the passage.
    fields.remove("idx");
    Ok(Document { id, title: Some(title), text, metadata: metadata(fields) })
}
