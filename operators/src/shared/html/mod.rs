//! Reports: self-contained HTML pages without scripts; light or dark follows the reader's system.

pub(crate) mod conversation;
pub(crate) mod plot;
pub(crate) mod table;

use std::borrow::Cow;
use std::path::Path;

use plot::escape;
use searchmill_engine::operator::OperatorError;
use serde_json::Value;

/// Writes a file of a report. Text of data cannot change the direction of the text beside it.
///
/// # Errors
/// Fails, with its path, if it cannot be written.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), OperatorError> {
    std::fs::write(path, &*directions_shown(text))
        .map_err(|error| OperatorError::machine(format!("cannot write {}: {error}", path.display())))
}

/// Writes a file of JSON, indented.
///
/// # Errors
/// Fails, with its path, if it cannot be written.
pub(crate) fn write_json(path: &Path, value: &Value) -> Result<(), OperatorError> {
    write(path, &format!("{value:#}\n"))
}

/// Writes embeddings, overrides and isolates of directions (Unicode Standard Annex 9) as `\u202e`, as on the terminal and
/// in JSON: `gpj.exe` behind an override would read as `exe.jpg`.
fn directions_shown(text: &str) -> Cow<'_, str> {
    fn steers(c: char) -> bool {
        matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    }
    // Nearly all reports have none of them, and are not copied.
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) {
            shown.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// A key figure: title, value and description.
pub(crate) struct Card(pub(crate) String, pub(crate) String, pub(crate) String);

/// Renders key figures; empty without any.
pub(crate) fn cards(cards: &[Card]) -> String {
    if cards.is_empty() {
        return String::new();
    }
    let mut out = String::from("<div class=\"cards\">");
    for Card(title, value, detail) in cards {
        let (value, detail) = (escape(value), escape(detail));
        out += &format!("<div class=\"card\"><span>{title}</span><b>{value}</b><small>{detail}</small></div>");
    }
    out + "</div>"
}

/// Renders a page with this heading.
pub(crate) fn page(title: &str, content: &str) -> String {
    styled_page(title, "", content)
}

/// Renders a page with rules of its own beside those of all pages.
pub(crate) fn styled_page(title: &str, rules: &str, content: &str) -> String {
    let (title, style) = (escape(title), include_str!("page.css"));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{style}{rules}</style></head><body>\
         <main><h1>{title}</h1>{content}</main></body></html>\n"
    )
}

/// Renders remarks as a list; empty without remarks.
pub(crate) fn list(lines: &[String]) -> String {
    let mut out = String::new();
    for line in lines {
        out.push_str(if out.is_empty() { "<ul class=\"notes\"><li>" } else { "<li>" });
        out.push_str(&escape(line));
        out.push_str("</li>");
    }
    if out.is_empty() { out } else { out + "</ul>" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_turns_the_direction_of_a_page() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.html");
        write(&path, &page("a\u{202e}gpj.exe", &list(&["\u{2067}x\u{2069} שלום\u{200f} ü".to_owned()])))
            .expect("written");
        let shown = std::fs::read_to_string(path).expect("a page");
        assert!(shown.contains("a\\u202egpj.exe") && shown.contains("\\u2067x\\u2069 שלום\u{200f} ü"), "{shown}");
        assert!(!shown.contains(['\u{202e}', '\u{2067}', '\u{2069}']));
    }
}
