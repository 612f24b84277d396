//! The tool `open`: shows a document, or a section of it, by an id that the conversation showed.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use searchmill_engine::operator::{OperatorError, RowsInput};
use searchmill_retrieval::Found;
use searchmill_schemas::{Chunk, Document, Message, RecordKind, Role, SchemaError, from_batch, text_column};
use serde_json::Value;

use super::params::OpenParams;
use crate::protocol::OfferedCall;
use crate::tool::ToolResult;

/// Where a row is.
type Place = (usize, usize);

/// The documents, or the chunks of documents, that can be opened. Held in memory.
pub struct Opener {
    params: OpenParams,
    kind: RecordKind,
    batches: Vec<RecordBatch>,
    /// Rows by id: of documents, or of chunks.
    rows: BTreeMap<String, Place>,
    /// Rows of the chunks of a document, by its id.
    sections: BTreeMap<String, Vec<Place>>,
}

impl Opener {
    /// Reads the input `documents`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(params: &OpenParams, input: &RowsInput) -> Result<Self, OperatorError> {
        let batches = input.batches().collect::<Result<Vec<_>, _>>()?;
        let (mut rows, mut sections) = (BTreeMap::new(), BTreeMap::<String, Vec<Place>>::new());
        for (number, batch) in batches.iter().enumerate() {
            let ids = text_column(batch, "id")?;
            let documents =
                if input.kind == RecordKind::Chunk { Some(text_column(batch, "document_id")?) } else { None };
            for row in 0..batch.num_rows() {
                rows.insert(ids.value(row).to_owned(), (number, row));
                if let Some(documents) = documents {
                    sections.entry(documents.value(row).to_owned()).or_default().push((number, row));
                }
            }
        }
        Ok(Self { params: params.clone(), kind: input.kind, batches, rows, sections })
    }

    /// The name of the tool.
    pub fn name(&self) -> &str {
        &self.params.name
    }

    /// Returns what the model is shown for a call.
    ///
    /// # Errors
    /// If the input does not fit its kind.
    pub fn call(&self, call: OfferedCall<'_>, messages: &[Message]) -> Result<ToolResult, OperatorError> {
        let id = call.arguments["id"].as_str().unwrap_or_default().trim();
        // Only ids that were shown: a guessed id would open a document that no search found.
        let Some(document) = shown(id, messages) else {
            return Ok(Err(format!("the id `{id}` was not shown: open ids that a search result shows")));
        };
        let Some(opened) = self.opened(id, document)? else {
            return Ok(Err(format!("`{id}` cannot be opened: it is not in the collection")));
        };
        let page = call.arguments.get("page").and_then(Value::as_u64).unwrap_or(1);
        Ok(self.page(opened, page))
    }

    /// Returns what is shown of an id, not yet cut into pages.
    fn opened(&self, id: &str, document: &str) -> Result<Option<Found>, SchemaError> {
        if self.kind == RecordKind::Chunk {
            let Some(place) = self.rows.get(id) else { return self.joined(id) };
            let Some(Chunk { id, document_id, title, text, .. }) = self.row(*place)? else { return Ok(None) };
            return Ok(Some(whole(id, document_id, title, text)));
        }
        // A section is opened with its document.
        let Some(place) = self.rows.get(id).or_else(|| self.rows.get(document)) else { return Ok(None) };
        let Some(Document { id, title, text, .. }) = self.row(*place)? else { return Ok(None) };
        Ok(Some(whole(id.clone(), id, title, text)))
    }

    /// Joins the chunks of a document; what two of them share is shown once.
    fn joined(&self, document: &str) -> Result<Option<Found>, SchemaError> {
        let mut chunks: Vec<Chunk> = Vec::new();
        for place in self.sections.get(document).into_iter().flatten() {
            chunks.extend(self.row::<Chunk>(*place)?);
        }
        chunks.sort_by_key(|chunk| chunk.position);
        let Some(first) = chunks.first() else { return Ok(None) };
        let (title, mut text, mut end) = (first.title.clone(), String::new(), first.start);
        for chunk in &chunks {
            if chunk.start > end {
                text.push_str("\n…\n");
            }
            // Chunks of one document may overlap.
            let known = usize::try_from(end - chunk.start).unwrap_or_default();
            text.push_str(chunk.text.get(known..).unwrap_or_default());
            end = end.max(chunk.end);
        }
        Ok(Some(whole(document.to_owned(), document.to_owned(), title, text)))
    }

    fn row<R: searchmill_schemas::Record>(&self, (batch, row): Place) -> Result<Option<R>, SchemaError> {
        Ok(from_batch(&self.batches[batch].slice(row, 1))?.pop())
    }

    fn page(&self, mut opened: Found, page: u64) -> ToolResult {
        let text: Vec<char> = opened.contents.trim().chars().collect();
        let pages = text.len().div_ceil(self.params.page_chars).max(1);
        let Some(at) = usize::try_from(page).ok().filter(|page| (1..=pages).contains(page)) else {
            return Err(format!("`{}` has no page {page}: its pages are 1 to {pages}", opened.chunk_id));
        };
        let shown: String = text.chunks(self.params.page_chars).nth(at - 1).unwrap_or_default().iter().collect();
        let heading = opened.title.as_ref().map_or_else(String::new, |title| format!("{title}\n"));
        let pages = if pages > 1 { format!("\n(page {at} of {pages})") } else { String::new() };
        opened.contents = format!("{heading}{shown}{pages}");
        Ok(vec![opened])
    }
}

fn whole(chunk_id: String, document_id: String, title: Option<String>, contents: String) -> Found {
    Found { chunk_id, document_id, title, contents, score: 0.0, sources: Vec::new() }
}

/// Returns the document of an id that a tool of this conversation showed.
fn shown<'m>(id: &str, messages: &'m [Message]) -> Option<&'m str> {
    let tools = messages.iter().filter(|message| message.role == Role::Tool.name());
    let mut seen = tools.flat_map(|message| &message.observations);
    let seen = seen.find(|seen| seen.chunk_id == id || seen.document_id == id)?;
    Some(&seen.document_id)
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::InputArtifact;
    use searchmill_engine::operator::testing::rows_input;
    use searchmill_schemas::{Observation, Record};
    use serde_json::json;

    use super::*;

    fn opener<R: Record>(rows: &[R], page_chars: usize) -> Opener {
        let InputArtifact::Rows(input) = rows_input(rows) else { panic!("rows") };
        Opener::open(&OpenParams { page_chars, ..OpenParams::default() }, &input).expect("a tool")
    }

    fn searched() -> Vec<Message> {
        let mut message = Message::text(Role::Tool, "…");
        let (chunk_id, document_id) = ("d1#0".to_owned(), "d1".to_owned());
        message.observations = vec![Observation { chunk_id, document_id, title: None, score: 1.0 }];
        vec![message]
    }

    fn open(opener: &Opener, arguments: &Value) -> ToolResult {
        let call = OfferedCall { id: "c", tool: "open", arguments };
        opener.call(call, &searched()).expect("a result")
    }

    fn text(result: &ToolResult) -> &str {
        &result.as_ref().expect("a text")[0].contents
    }

    #[test]
    fn documents_open_by_the_ids_that_were_shown() {
        let document = |id: &str, text: &str| Document {
            id: id.to_owned(),
            title: Some("Rome".to_owned()),
            text: text.to_owned(),
            metadata: None,
        };
        let opener = opener(&[document("d1", "A city in Italy."), document("d2", "Hidden.")], 8);
        let one = open(&opener, &json!({"id": "d1#0"}));
        assert_eq!(text(&one), "Rome\nA city i\n(page 1 of 2)");
        assert_eq!(text(&open(&opener, &json!({"id": "d1", "page": 2}))), "Rome\nn Italy.\n(page 2 of 2)");
        assert!(open(&opener, &json!({"id": "d2"})).is_err_and(|error| error.contains("was not shown")));
        assert!(open(&opener, &json!({"id": "d1", "page": 3})).is_err_and(|error| error.contains("pages are 1 to 2")));
        assert!(open(&opener, &json!({"id": ""})).is_err());
    }

    #[test]
    fn sections_open_alone_and_their_document_without_repeated_text() {
        let chunk = |position: i32, start: i64, text: &str| Chunk {
            id: format!("d1#{position}"),
            document_id: "d1".to_owned(),
            position,
            document_chunks: 3,
            title: None,
            text: text.to_owned(),
            contents: text.to_owned(),
            start,
            end: start + text.len() as i64,
            tokens: 1,
            metadata: None,
        };
        let opener = opener(&[chunk(0, 0, "one two "), chunk(1, 4, "two three"), chunk(2, 20, "end")], 100);
        assert_eq!(text(&open(&opener, &json!({"id": "d1#0"}))), "one two");
        assert_eq!(text(&open(&opener, &json!({"id": "d1"}))), "one two three\n…\nend");
    }
}
