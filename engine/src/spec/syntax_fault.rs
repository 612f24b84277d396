//! Explains errors of the YAML parser in the user's terms.

use saphyr_parser::ScanError;

use super::budget::MAX_DEPTH;
use crate::diagnostic::{Diagnostic, FileId, Span};

/// Returns a diagnostic with advice for a syntax error at a byte of the text.
pub(super) fn explain(error: &ScanError, offset: usize, file: FileId, text: &str) -> Diagnostic {
    let place = Place::new(file, text, offset);
    if error.info().contains("recursion limit") {
        return too_deep(place.span());
    }
    // The parser stumbles over what follows from a tab or a bare `${…}`: these are the mistakes to show.
    if let Some(fault) = tabs(&place).or_else(|| reference(error, &place)) {
        return fault;
    }
    let (message, help) = wording(error.info());
    Diagnostic::error("syntax", message).at(place.span(), "").help_some(help)
}

pub(super) fn too_deep(span: Span) -> Diagnostic {
    Diagnostic::error("too-deep", format!("values are nested more than {MAX_DEPTH} deep (limit)"))
        .at(span, "reading stopped here")
}

struct Place<'t> {
    file: FileId,
    offset: usize,
    line: &'t str,
    line_start: usize,
    text: &'t str,
}

impl<'t> Place<'t> {
    fn new(file: FileId, text: &'t str, offset: usize) -> Self {
        let offset = offset.min(text.len());
        let line_start = text[..offset].rfind('\n').map_or(0, |at| at + 1);
        let line = text[line_start..].lines().next().unwrap_or_default();
        Self { file, offset, line, line_start, text }
    }

    fn span(&self) -> Span {
        let width = self.text[self.offset..].chars().next().filter(|ch| *ch != '\n').map_or(0, char::len_utf8);
        Span::new(self.file, self.offset, self.offset + width)
    }
}

fn tabs(place: &Place<'_>) -> Option<Diagnostic> {
    let indent = place.line.len() - place.line.trim_start_matches([' ', '\t']).len();
    let tab = place.line[..indent].find('\t')?;
    let start = place.line_start + tab;
    let fault = Diagnostic::error("tab-indentation", "YAML may not be indented with tabs");
    Some(fault.at(Span::new(place.file, start, start + 1), "a tab").help("indent with spaces"))
}

/// Detects `{size: ${params.n}}`: the brace of an unquoted reference starts a map.
fn reference(error: &ScanError, place: &Place<'_>) -> Option<Diagnostic> {
    let in_flow = error.info().contains("flow") || error.info().contains("':'");
    let start = place.line.find("${")?;
    let end = place.line[start..].find('}').map_or(place.line.len(), |at| start + at + 1);
    let quoted = place.line[..start].ends_with(['"', '\'']);
    if !in_flow || quoted {
        return None;
    }
    let written = &place.line[start..end];
    let span = Span::new(place.file, place.line_start + start, place.line_start + end);
    let fault = Diagnostic::error("syntax", "inside braces or brackets, `${…}` must be quoted");
    Some(fault.at(span, "").help(format!("write `\"{written}\"`")))
}

/// Returns message and advice for a parser error; its own message if there is nothing better.
fn wording(info: &str) -> (String, Option<&'static str>) {
    const CASES: &[(&str, &str, &str)] = &[
        (
            "mapping values are not allowed",
            "unexpected `:`",
            "quote a value that holds `: `; is a `:` missing on the line before?",
        ),
        ("unexpected character", "a value may not start with this character", "quote the value"),
        ("unknown anchor", "unknown alias", "an anchor (`&name`) must precede its alias"),
        ("found unexpected end of stream", "unterminated quoted string at the end of the file", "close the quote"),
        ("expected ',' or '}'", "expected `,` or `}`", "a map in braces: `{a: 1, b: 2}`"),
        ("expected ',' or ']'", "expected `,` or `]`", "a list in brackets: `[a, b]`"),
        ("illegal placement of ':'", "unexpected `:`", "is a `]` or `}` missing before it?"),
        ("misplaced bracket", "this bracket closes nothing", ""),
        ("did not find expected key", "expected a key", "keys of one map must start in the same column"),
        (
            "did not find expected '-'",
            "expected a list item (`- …`)",
            "a list and a map cannot start in the same column",
        ),
        ("simple key expect", "`:` is missing after this key", "a key and its value: `key: value`"),
        ("unknown escape character", "this escape is unknown", "in single quotes, `\\` stands for itself"),
        ("invalid trailing content", "something follows a quoted string", "quote the whole value or none of it"),
        (
            "invalid indentation in flow",
            "this line must be indented further",
            "is a `}` or `]` missing on a line before it?",
        ),
        ("invalid indentation in quoted", "unterminated quoted string", "close the quote, or indent its further lines"),
        ("invalid indentation", "inconsistent indentation", ""),
        ("the handle wasn't declared", "this tag is unknown", "remove the tag"),
        ("unexpected eof", "unexpected end of file", ""),
    ];
    // The first match counts: a text stands before the shorter ones that it contains.
    match CASES.iter().find(|(part, _, _)| info.contains(part)) {
        Some((_, message, help)) => ((*message).to_owned(), (!help.is_empty()).then_some(*help)),
        None => (info.to_owned(), None),
    }
}
