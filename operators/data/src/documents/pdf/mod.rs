//! PDF: the text of its pages. `font` and `cmap` decode the strings of a page, `page` interprets its content, `layout`
//! joins what it shows to lines and words.
//!
//! lopdf reads the file and bounds what a stream unpacks to, and how deep objects nest. A budget bounds what all pages
//! unpack to together, however often they show the same part.

mod cmap;
mod faults;
mod font;
mod layout;
mod page;

use std::collections::BTreeSet;

use lopdf::{Dictionary, Document, LoadOptions, Object, ObjectId, decode_text_string};
use serde_json::{Map, Value};

use self::faults::{encrypted, fault};
use self::page::Pages;
use super::content::{Content, damaged, no_text, too_large};
use crate::source::record::Fault;

/// Least room for each of the object streams of a file.
const MIN_OBJECT_STREAM: u64 = 64 << 10;

/// Reads the text of a PDF file. All its pages together unpack to at most four times `limit` bytes.
pub(super) fn read(bytes: &[u8], limit: u64) -> Result<Content, Fault> {
    // Object streams are unpacked while the file is loaded, each within its own limit.
    let streams = memchr::memmem::find_iter(bytes, b"ObjStm").count() as u64;
    let each = (4 * limit / streams.max(1)).clamp(MIN_OBJECT_STREAM, limit.max(MIN_OBJECT_STREAM));
    let options = LoadOptions::with_max_decompressed_size(each as usize);
    let mut document = Document::load_mem_with_options(bytes, options).map_err(|error| fault(&error, limit))?;
    font::prepare(&mut document);
    let pages = pages(&document);
    if pages.is_empty() {
        return Err(if document.trailer.has(b"Encrypt") { encrypted() } else { damaged("the file has no pages") });
    }
    let mut reader = Pages::new(&document, limit);
    let (mut text, mut offsets, mut empty) = (String::new(), Vec::new(), 0_u64);
    for page in &pages {
        let shown = reader.text(*page)?;
        if !text.is_empty() && !shown.is_empty() {
            text.push_str("\n\n");
        }
        offsets.push(text.len());
        empty += u64::from(shown.is_empty());
        text.push_str(&shown);
        if text.len() as u64 > limit {
            return Err(too_large("the text of the file", limit));
        }
    }
    if text.is_empty() {
        let advice = "run OCR on a scan first, for example with ocrmypdf";
        return Err(no_text(format!("there is no text on its {} pages; {advice}", pages.len())));
    }
    let all = text.chars().filter(|c| !c.is_whitespace()).count();
    if 2 * text.matches(char::REPLACEMENT_CHARACTER).count() > all {
        let message = "its fonts do not say which characters they show; run OCR on it, for example with ocrmypdf";
        return Err(no_text(message));
    }
    let mut details = Map::new();
    details.insert("pages".to_owned(), pages.len().into());
    details.insert("page_offsets".to_owned(), offsets.into_iter().map(Value::from).collect());
    if empty > 0 {
        details.insert("pages_without_text".to_owned(), empty.into());
    }
    let mut title = None;
    if let Ok(info) = document.trailer.get_deref(b"Info", &document).and_then(Object::as_dict) {
        details.extend(fact(&document, info, b"Author").map(|author| ("author".to_owned(), author.into())));
        title = fact(&document, info, b"Title");
    }
    // The names that word processors give are no titles.
    let title = title.filter(|title| !title.starts_with("Microsoft Word") && !title.eq_ignore_ascii_case("untitled"));
    Ok(Content { title, text, details })
}

/// Returns the pages in order, each once: a page tree may contain itself.
fn pages(document: &Document) -> Vec<ObjectId> {
    let root = document.catalog().and_then(|catalog| catalog.get(b"Pages")).and_then(Object::as_reference);
    let (mut open, mut seen, mut pages) = (Vec::from_iter(root.ok()), BTreeSet::new(), Vec::new());
    while let Some(id) = open.pop() {
        let Ok(node) = document.get_dictionary(id) else { continue };
        if !seen.insert(id) {
            continue;
        }
        match node.get_deref(b"Kids", document).and_then(Object::as_array) {
            Ok(kids) => open.extend(kids.iter().rev().filter_map(|kid| kid.as_reference().ok())),
            Err(_) => pages.push(id),
        }
    }
    pages
}

fn fact(document: &Document, info: &Dictionary, name: &[u8]) -> Option<String> {
    let text = decode_text_string(info.get_deref(name, document).ok()?).ok()?;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() { None } else { Some(text) }
}

#[cfg(test)]
mod tests;
