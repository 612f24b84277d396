//! `chunk by: markdown`: pieces of sections, each with the headings above it and its pages.

use std::borrow::Cow;

use searchmill_text::chunking::{Piece, Recursive, Tally, sections};
use serde_json::{Map, Value};

/// Separates the headings of a path.
const SEPARATOR: &str = " > ";

/// A piece of a document, with its title and metadata.
pub(super) struct Cut<'a> {
    pub(super) piece: Piece,
    pub(super) title: Option<Cow<'a, str>>,
    pub(super) metadata: Option<Cow<'a, str>>,
}

/// Cuts a document at its headings, and sections that are too large by `rule`.
pub(super) fn cut<'a>(
    rule: &Recursive,
    title: Option<&'a str>,
    text: &str,
    metadata: Option<&'a str>,
    tally: &mut Tally<'_>,
) -> Vec<Cut<'a>> {
    // Metadata that is not a JSON object is passed on unchanged.
    let facts = metadata.and_then(|metadata| serde_json::from_str(metadata).ok()).map(Facts::of);
    let mut cuts = Vec::new();
    for section in sections(text) {
        let start = section.range.start;
        for piece in rule.cut(&text[section.range.clone()], tally) {
            let piece = Piece { start: start + piece.start, end: start + piece.end, ..piece };
            let metadata = match &facts {
                Some(facts) => Some(Cow::Owned(facts.of_piece(&section.path, piece))),
                None => metadata.map(Cow::Borrowed),
            };
            cuts.push(Cut { piece, title: path(title, &section.path), metadata });
        }
    }
    cuts
}

/// Returns the title of a document and the headings below it. A first heading that repeats the title is left out.
fn path<'a>(title: Option<&'a str>, headings: &[String]) -> Option<Cow<'a, str>> {
    let title = title.filter(|title| !title.is_empty());
    let below = match headings {
        [first, below @ ..] if title.is_some_and(|title| title.trim() == first) => below,
        all => all,
    };
    if below.is_empty() {
        return title.map(Cow::Borrowed);
    }
    let parts: Vec<&str> = title.into_iter().chain(below.iter().map(String::as_str)).collect();
    Some(Cow::Owned(parts.join(SEPARATOR)))
}

/// The metadata of a document. Its list of sections is left out: pieces have headings instead.
struct Facts {
    all: Map<String, Value>,
    /// Where its pages begin; the first begins at 0. A page does not begin before the one above it.
    pages: Option<Vec<u64>>,
}

impl Facts {
    fn of(mut all: Map<String, Value>) -> Self {
        all.remove("sections");
        let Some(Value::Array(offsets)) = all.remove("page_offsets") else { return Self { all, pages: None } };
        let (mut pages, mut last) = (Vec::new(), 0);
        for offset in offsets.iter().map_while(Value::as_u64) {
            // Sorted, for the binary search.
            last = offset.max(last);
            pages.push(last);
        }
        Self { all, pages: Some(pages) }
    }

    /// Returns the metadata with the headings and pages of a piece.
    fn of_piece(&self, headings: &[String], piece: Piece) -> String {
        let mut own = self.all.clone();
        if !headings.is_empty() {
            own.insert("headings".to_owned(), headings.into());
        }
        if let Some(offsets) = &self.pages {
            let first = offsets.partition_point(|offset| *offset <= piece.start as u64);
            // The end is exclusive: a piece that ends where a page begins has nothing of that page.
            let last = offsets.partition_point(|offset| *offset <= piece.end.saturating_sub(1) as u64);
            own.insert("page".to_owned(), first.into());
            if last > first {
                own.insert("last_page".to_owned(), last.into());
            }
        }
        Value::Object(own).to_string()
    }
}
