//! What a file is: by its name, and by its first bytes.

use super::content::{damaged, wrong_type};
use crate::source::format::{endings, unpacked_name};
use crate::source::record::Fault;

/// A kind of document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Markdown,
    Html,
    Pdf,
    Docx,
    /// Records of a crawl, with pages (WARC) or their texts (WET).
    Warc,
}

/// File name endings of documents.
pub const ENDINGS: &[&str] =
    endings!(".txt" ".text" ".md" ".markdown" ".html" ".htm" ".xhtml" ".pdf" ".docx" ".warc" ".wet");

/// Bytes that are looked at.
const LOOKED_AT: usize = 8192;

/// First bytes of what no reader is for.
const OTHERS: [(&[u8], &str); 12] = [
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"RIFF", "a WebP image, sound or video"),
    (b"\x7fELF", "a program"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\xd0\xcf\x11\xe0", "an Office file of the old format, or an encrypted one"),
    (b"{\\rtf", "an RTF file"),
    (b"PAR1", "a Parquet file"),
    (b"SQLite format 3", "an SQLite database"),
];

/// What the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Html,
    Pdf,
    /// Text with the mark of a PDF file inside: readers of PDF files skip what precedes it.
    TextBeforePdf {
        is_html: bool,
    },
    Zip,
    Warc,
    Text,
    Other(&'static str),
}

impl Found {
    fn name(self) -> &'static str {
        match self {
            Self::Html | Self::TextBeforePdf { is_html: true } => "an HTML page",
            Self::Pdf | Self::TextBeforePdf { is_html: false } => "a PDF file",
            Self::Zip => "a ZIP archive",
            Self::Warc => "a WARC file",
            Self::Text => "text",
            Self::Other(name) => name,
        }
    }

    fn of(bytes: &[u8]) -> Self {
        let start = &bytes[..bytes.len().min(LOOKED_AT)];
        if let Some((_, name)) = OTHERS.iter().find(|(first, _)| start.starts_with(first)) {
            return Self::Other(name);
        }
        // UTF-16 has zeros too.
        let is_wide = start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff");
        let is_binary = !is_wide && start.contains(&0);
        match memchr::memmem::find(&start[..start.len().min(1024)], b"%PDF-") {
            Some(at) if at > 0 && !is_binary => return Self::TextBeforePdf { is_html: is_html(start) },
            Some(_) => return Self::Pdf,
            None => {}
        }
        // Of any kind: whether it is a DOCX file is looked up only if nothing else says so.
        if start.starts_with(b"PK\x03\x04") {
            return Self::Zip;
        }
        if start.starts_with(b"WARC/") {
            return Self::Warc;
        }
        if is_binary {
            return Self::Other("binary data");
        }
        if is_html(start) { Self::Html } else { Self::Text }
    }
}

/// Whether the first tag, after comments and declarations, is that of a page.
fn is_html(start: &[u8]) -> bool {
    let text: String =
        start.iter().filter(|byte| **byte != 0).map(|byte| char::from(byte.to_ascii_lowercase())).collect();
    let mut rest = text.trim_start_matches(|c: char| !c.is_ascii()).trim_start();
    for (open, close) in [("<?xml", "?>"), ("<!--", "-->"), ("<!--", "-->")] {
        if let Some((_, after)) = rest.strip_prefix(open).and_then(|inner| inner.split_once(close)) {
            rest = after.trim_start();
        }
    }
    rest.starts_with("<!doctype html") || rest.starts_with("<html") || rest.starts_with("<head>")
}

impl Kind {
    /// Returns the kind that a file name says, without the ending of its compression.
    pub fn of_name(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        match unpacked_name(&lower).rsplit_once('.')?.1 {
            "txt" | "text" => Some(Self::Text),
            "md" | "markdown" => Some(Self::Markdown),
            "html" | "htm" | "xhtml" => Some(Self::Html),
            "pdf" => Some(Self::Pdf),
            "docx" => Some(Self::Docx),
            "warc" | "wet" => Some(Self::Warc),
            _ => None,
        }
    }

    /// Returns the kind of a `Content-Type`, without its parameters.
    pub(super) fn of_content_type(content_type: &str) -> Option<Self> {
        let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if media_type == "application/xhtml+xml" {
            return Some(Self::Html);
        }
        let mut kinds = [Self::Text, Self::Markdown, Self::Html, Self::Pdf, Self::Docx].into_iter();
        kinds.find(|kind| kind.media_type() == media_type)
    }

    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain",
            Self::Markdown => "text/markdown",
            Self::Html => "text/html",
            Self::Pdf => "application/pdf",
            Self::Docx => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
            Self::Warc => "application/warc",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Markdown => "Markdown",
            Self::Html => "an HTML page",
            Self::Pdf => "a PDF file",
            Self::Docx => "a DOCX file",
            Self::Warc => "a WARC file",
        }
    }

    /// Returns the kind of bytes that are claimed to be `claimed`.
    fn fitting(claimed: Option<Self>, found: Found, bytes: &[u8]) -> Option<Self> {
        match (claimed, found) {
            (Some(Self::Text | Self::Markdown), Found::Text | Found::TextBeforePdf { is_html: false })
            | (Some(Self::Html), Found::Html | Found::Text | Found::TextBeforePdf { .. })
            | (Some(Self::Pdf), Found::Pdf | Found::TextBeforePdf { .. })
            | (Some(Self::Docx), Found::Zip) => claimed,
            (None, Found::Html) => Some(Self::Html),
            (None, Found::Pdf | Found::TextBeforePdf { .. }) => Some(Self::Pdf),
            (None, Found::Zip) if memchr::memmem::find(bytes, b"word/document.xml").is_some() => Some(Self::Docx),
            (None, Found::Text) => Some(Self::Text),
            _ => None,
        }
    }

    /// Returns the kind of the bytes of a record whose headers say `claimed`.
    ///
    /// # Errors
    /// A reject for bytes of another kind.
    pub(super) fn of_record(claimed: Self, bytes: &[u8]) -> Result<Self, Fault> {
        let found = Found::of(bytes);
        Self::fitting(Some(claimed), found, bytes).ok_or_else(|| {
            wrong_type(format!("its headers say that it is {}, but its content is {}", claimed.name(), found.name()))
        })
    }

    /// Returns the kind of the bytes of a file whose name says `claimed`.
    ///
    /// # Errors
    /// A reject for an empty file, for bytes of another kind, and for bytes that no reader is for.
    pub(super) fn of(claimed: Option<Self>, bytes: &[u8]) -> Result<Self, Fault> {
        if bytes.is_empty() {
            return Err(damaged("the file is empty"));
        }
        let found = Found::of(bytes);
        Self::fitting(claimed, found, bytes).ok_or_else(|| match claimed {
            Some(claimed) => wrong_type(format!(
                "it is called {}, but its content is {}; give it the ending of its content, or leave it out",
                claimed.name(),
                found.name()
            )),
            None if found == Found::Warc => {
                wrong_type("a WARC file whose name does not end with .warc or .wet; rename it")
            }
            None => wrong_type(format!(
                "no reader for {}; texts, Markdown, HTML, PDF, DOCX, WARC and WET files are read",
                found.name()
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_has_a_kind() {
        assert!(ENDINGS.iter().all(|ending| Kind::of_name(&format!("A{}", ending.to_uppercase())).is_some()));
        assert_eq!(ENDINGS.len(), 11 * 4);
        assert_eq!(Kind::of_name("x.warc.wet.gz"), Some(Kind::Warc));
        assert_eq!(["a.rst", "README", "a.jsonl"].map(Kind::of_name), [None; 3]);
    }

    #[test]
    fn a_file_that_lies_is_told_what_it_is() {
        let message = |said, bytes: &[u8]| Kind::of(said, bytes).unwrap_err().message;
        let page = b"\n<!-- x --><!DOCTYPE html><p>";
        assert!(message(Some(Kind::Pdf), page).contains("called a PDF file, but its content is an HTML page"));
        assert!(message(Some(Kind::Text), b"\x89PNG\r\n").contains("called a text, but its content is a PNG image"));
        assert!(message(Some(Kind::Markdown), b"a\0b").contains("is binary data"));
        assert!(message(Some(Kind::Docx), b"\xd0\xcf\x11\xe0").contains("encrypted"));
        assert!(message(None, b"GIF89a").contains("no reader for a GIF image"));
        assert_eq!(Kind::of(Some(Kind::Text), b"").unwrap_err().kind, "damaged");
    }

    #[test]
    fn the_mark_of_a_pdf_file_inside_a_text_is_text() {
        let about = b"A PDF file begins with %PDF-1.7, and ends with %%EOF.";
        assert_eq!(Kind::of(Some(Kind::Text), about), Ok(Kind::Text));
        assert_eq!(Kind::of(Some(Kind::Markdown), about), Ok(Kind::Markdown));
        assert_eq!(Kind::of(Some(Kind::Html), b"<html><p>%PDF-1.7"), Ok(Kind::Html));
        assert_eq!(Kind::of(Some(Kind::Pdf), b"junk%PDF-1.4"), Ok(Kind::Pdf));
        let lying = Kind::of(Some(Kind::Text), b"%PDF-1.7\n").unwrap_err();
        assert!(lying.message.contains("its content is a PDF file"), "{lying:?}");
    }

    #[test]
    fn files_without_a_known_ending_are_what_they_contain() {
        assert_eq!(Kind::of(None, b"<?xml version='1.0'?>\n<html><p>"), Ok(Kind::Html));
        assert_eq!(Kind::of(None, b"junk%PDF-1.4"), Ok(Kind::Pdf));
        assert_eq!(Kind::of(None, b"\xff\xfea\0b\0"), Ok(Kind::Text));
        assert_eq!(Kind::of(None, "Über".as_bytes()), Ok(Kind::Text));
        assert_eq!(Kind::of(Some(Kind::Html), b"<p>a fragment"), Ok(Kind::Html));
    }
}
