//! Reads the text of a file (of limited size, UTF-8, printable) and parses it as YAML to values with locations. The parser
//! works on the events of saphyr-parser: it is iterative, limited in depth and size, and types plain scalars itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Tag};

use super::budget::{Budget, MAX_COPIED, MAX_DEPTH, MAX_VALUES, height, weight};
use super::syntax_fault::{self, too_deep};
use super::value::{Key, Spanned, Value};
use crate::diagnostic::{Diagnostic, FileId, SourceMap, Span};
use crate::operator::open_regular;

/// Code of the error about a file that does not exist.
pub(crate) const FILE_NOT_FOUND: &str = "file-not-found";

/// Limit of a file's size in bytes.
pub(super) const MAX_BYTES: usize = 4 << 20;

/// Reads a file into the map. `asked` is the location that names it, if any.
pub(super) fn read_file(path: &Path, asked: Option<Span>, sources: &mut SourceMap) -> Result<FileId, Diagnostic> {
    let mut bytes = Vec::new();
    // The user's own file may be a pipe (`searchmill run <(…)`); what a pipeline names may not: it could wait for ever.
    let file = if asked.is_some() { open_regular(path) } else { File::open(path) };
    // One byte more than allowed shows that the file is too large, whatever its size is said to be.
    let read = file.and_then(|file| file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes));
    if let Err(error) = read {
        let (code, why) = match error.kind() {
            std::io::ErrorKind::NotFound => (FILE_NOT_FOUND, "no such file".to_owned()),
            std::io::ErrorKind::IsADirectory => ("unreadable-file", "it is a folder".to_owned()),
            _ => ("unreadable-file", error.to_string()),
        };
        let message = format!("cannot read `{}`: {why}", path.display());
        return Err(Diagnostic::error(code, message).at_some(asked, "named here"));
    }
    if bytes.len() > MAX_BYTES {
        return Err(too_large(&path.display().to_string()).at_some(asked, "named here"));
    }
    match String::from_utf8(bytes) {
        Ok(text) => admit(path, text, sources),
        Err(error) => {
            // Shown with replacement characters: the bytes before it are as in the file.
            let at = error.utf8_error().valid_up_to();
            let byte = error.as_bytes().get(at).copied().unwrap_or_default();
            let utf16 = at == 0 && matches!(error.as_bytes(), [0xff, 0xfe, ..] | [0xfe, 0xff, ..]);
            let file = sources.add(path, String::from_utf8_lossy(error.as_bytes()));
            let found = Diagnostic::error("not-utf8", format!("`{}` is not UTF-8 text", path.display()))
                .at(Span::new(file, at, at + '\u{fffd}'.len_utf8()), format!("the byte 0x{byte:02x}"));
            Err(found.help(if utf16 { "it looks like UTF-16: save it as UTF-8" } else { "save the file as UTF-8" }))
        }
    }
}

/// Accepts a text from memory.
pub(super) fn take_text(path: &Path, text: String, sources: &mut SourceMap) -> Result<FileId, Diagnostic> {
    if text.len() > MAX_BYTES { Err(too_large(&path.display().to_string())) } else { admit(path, text, sources) }
}

fn too_large(shown: &str) -> Diagnostic {
    Diagnostic::error("file-too-large", format!("`{shown}` is larger than {} MiB", MAX_BYTES >> 20))
        .help("keep data in separate files and refer to them by path")
}

fn admit(path: &Path, text: String, sources: &mut SourceMap) -> Result<FileId, Diagnostic> {
    let control = UNPRINTABLE.find(&text).and_then(|found| Some((found.start(), found.as_str().chars().next()?)));
    let blank = !CONTENT.is_match(&text);
    // The error shows a line of the text: it is added first.
    let file = sources.add(path, text);
    if let Some((at, ch)) = control {
        let code = ch as u32;
        let message = format!("the control character U+{code:04X} is not allowed in YAML");
        let fault = Diagnostic::error("control-character", message).at(Span::new(file, at, at + ch.len_utf8()), "here");
        return Err(fault.help(format!("inside double quotes, write `\\u{code:04x}`")));
    }
    if blank {
        let fault = Diagnostic::error("empty-file", format!("`{}` is empty", path.display()));
        return Err(fault.at(Span::new(file, 0, 0), "").help("a pipeline has at least `name:` and `nodes:`"));
    }
    Ok(file)
}

/// Characters that YAML does not allow (<https://yaml.org/spec/1.2.2/#51-character-set>).
static UNPRINTABLE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"[^\t\n\r -~\x{85}\x{a0}-\x{d7ff}\x{e000}-\x{fffd}\x{10000}-\x{10ffff}]"));
/// A line that is neither blank nor a comment.
static CONTENT: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^\x{feff}?[ \t\r]*[^ \t\r\n#\x{feff}]"));

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is constant")
}

/// Parses a file of one document. Diagnostics go to `problems`; `None` if its text cannot be read.
pub(super) fn parse(file: FileId, sources: &SourceMap, problems: &mut Vec<Diagnostic>) -> Option<Spanned> {
    parse_at(file, sources.get(file).map_or("", |(_, text)| text), 0, problems)
}

/// Parses a text that starts at byte `start` of its file.
pub(super) fn parse_at(file: FileId, text: &str, start: usize, problems: &mut Vec<Diagnostic>) -> Option<Spanned> {
    let mut steps = Vec::new();
    // In ASCII, characters and bytes have the same positions.
    if !text.is_ascii() {
        steps.extend(text.char_indices().step_by(STEP).map(|(at, _)| at));
    }
    let marks = Marks { file, text, start, steps };
    let mut tree = Tree {
        marks: &marks,
        problems,
        open: Vec::new(),
        anchors: BTreeMap::new(),
        values: 0,
        budget: Budget::default(),
        documents: 0,
        root: None,
    };
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let step = match event {
            Ok((event, span)) => tree.event(event, marks.span(span)),
            Err(error) => Err(marks.fault(&error)),
        };
        if let Err(fault) = step {
            tree.problems.push(fault);
            return None;
        }
    }
    let root = tree.root;
    if root.is_none() {
        let fault = Diagnostic::error("empty-file", "no YAML document found");
        problems.push(fault.at(Span::new(file, start, start), ""));
    }
    root
}

/// Converts the parser's character positions to byte positions.
struct Marks<'t> {
    file: FileId,
    text: &'t str,
    /// Start of the text in its file.
    start: usize,
    /// Byte offset of every 64th character; empty for ASCII text.
    steps: Vec<usize>,
}

const STEP: usize = 64;

impl Marks<'_> {
    fn offset(&self, index: usize) -> usize {
        if self.steps.is_empty() {
            return index.min(self.text.len());
        }
        let start = self.steps.get(index / STEP).copied().unwrap_or(self.text.len());
        let rest = &self.text[start..];
        start + rest.char_indices().nth(index % STEP).map_or(rest.len(), |(at, _)| at)
    }

    fn span(&self, span: saphyr_parser::Span) -> Span {
        let start = self.offset(span.start.index());
        let mut end = self.offset(span.end.index()).max(start);
        let bytes = self.text.as_bytes();
        // The parser ends a plain scalar behind the white space that follows it.
        while end > start && bytes[end - 1].is_ascii_whitespace() {
            end -= 1;
        }
        Span::new(self.file, self.start + start, self.start + end)
    }

    fn fault(&self, error: &ScanError) -> Diagnostic {
        let mut fault = syntax_fault::explain(error, self.offset(error.marker().index()), self.file, self.text);
        for label in &mut fault.labels {
            label.span = Span::new(self.file, label.span.start + self.start, label.span.end + self.start);
        }
        fault
    }
}

/// A list or map that is not complete yet.
struct Open {
    span: Span,
    anchor: usize,
    items: Items,
}

enum Items {
    List(Vec<Spanned>),
    Map { entries: Vec<(Key, Spanned)>, key: Option<Name>, merged: Vec<Spanned> },
}

/// A key whose value is not complete yet.
enum Name {
    Key(Key),
    /// `<<`
    Merge(Span),
}

/// A complete anchored value.
struct Anchored {
    value: Spanned,
    weight: usize,
    height: usize,
}

struct Tree<'t, 'p> {
    marks: &'t Marks<'t>,
    problems: &'p mut Vec<Diagnostic>,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Anchored>,
    values: usize,
    budget: Budget,
    documents: usize,
    root: Option<Spanned>,
}

type Step = Result<(), Diagnostic>;

impl Tree<'_, '_> {
    fn event(&mut self, event: Event<'_>, span: Span) -> Step {
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents == 1 {
                    return Ok(());
                }
                let fault = Diagnostic::error("several-documents", "a pipeline file holds one YAML document");
                Err(fault.at(span, "the second one starts here").help("move it to a separate file"))
            }
            Event::Alias(anchor) => self.alias(anchor, span),
            Event::Scalar(text, style, anchor, tag) => self.scalar(&text, style, anchor, tag.as_deref(), span),
            Event::SequenceStart(anchor, tag) => self.start(span, anchor, tag.as_deref(), Items::List(Vec::new())),
            Event::MappingStart(anchor, tag) => {
                let items = Items::Map { entries: Vec::new(), key: None, merged: Vec::new() };
                self.start(span, anchor, tag.as_deref(), items)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.end(span);
                Ok(())
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn count(&mut self, span: Span) -> Step {
        self.values += 1;
        if self.values > MAX_VALUES {
            let message = format!("the file contains more than {MAX_VALUES} values (limit)");
            return Err(Diagnostic::error("too-many-values", message).at(span, "reading stopped here"));
        }
        Ok(())
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, anchor: usize, tag: Option<&Tag>, span: Span) -> Step {
        self.count(span)?;
        let as_text = self.is_text(tag, span);
        let mut value = Spanned::new(Value::Null, span);
        if style == ScalarStyle::Plain && !as_text {
            value.value = plain_scalar(text);
            value.text = (!matches!(value.value, Value::String(_))).then(|| text.to_owned());
        } else {
            value.value = Value::String(text.to_owned());
        }
        match self.open.last_mut().map(|open| &mut open.items) {
            Some(Items::Map { key: key @ None, .. }) if text == "<<" && style == ScalarStyle::Plain => {
                *key = Some(Name::Merge(span));
            }
            _ => self.complete(value, anchor),
        }
        Ok(())
    }

    /// Whether a tag makes the value text. Only `!!str` (and the bare `!`) matter; the schema determines other types.
    fn is_text(&mut self, tag: Option<&Tag>, span: Span) -> bool {
        let Some(tag) = tag else { return false };
        if tag.is_yaml_core_schema() {
            if matches!(tag.suffix.as_str(), "int" | "float" | "bool" | "null" | "seq" | "map") {
                return false;
            }
            if tag.suffix == "str" {
                return true;
            }
        }
        let fault =
            Diagnostic::error("unsupported-tag", "YAML tags other than those of the core schema are not supported");
        self.problems.push(fault.at(span, "tagged").help("remove the tag: the operator determines types"));
        true
    }

    fn start(&mut self, span: Span, anchor: usize, tag: Option<&Tag>, items: Items) -> Step {
        self.count(span)?;
        // For its report only: a tag on a list or map changes nothing.
        self.is_text(tag, span);
        if self.open.len() >= MAX_DEPTH {
            return Err(too_deep(span));
        }
        self.open.push(Open { span, anchor, items });
        Ok(())
    }

    fn end(&mut self, span: Span) {
        let Some(Open { span: start, anchor, items }) = self.open.pop() else { return };
        let value = match items {
            Items::List(items) => {
                let last = items.last().map(|item| item.span);
                Spanned::new(Value::List(items), enclose(start, last, span))
            }
            Items::Map { entries, merged, .. } => {
                let last = entries.last().map(|(_, value)| value.span);
                let entries = merge(distinct(entries, self.problems), merged);
                Spanned::new(Value::Map(entries), enclose(start, last, span))
            }
        };
        self.complete(value, anchor);
    }

    fn alias(&mut self, anchor: usize, span: Span) -> Step {
        self.count(span)?;
        let Some(anchored) = self.anchors.get(&anchor) else {
            let fault = Diagnostic::error("recursive-alias", "this alias refers to a value that contains it");
            return Err(fault.at(span, "refers to itself"));
        };
        // Before the value is copied: a few lines of aliases of aliases could fill the memory.
        if !self.budget.charge(anchored.weight) {
            let message = format!("aliases expand to more than {MAX_COPIED} values (limit)");
            return Err(Diagnostic::error("too-many-values", message).at(span, "reading stopped here"));
        }
        if self.open.len() + anchored.height > MAX_DEPTH {
            return Err(too_deep(span));
        }
        let mut value = anchored.value.clone();
        value.via = Some(span);
        self.complete(value, 0);
        Ok(())
    }

    fn complete(&mut self, value: Spanned, anchor: usize) {
        // 0: it has no anchor.
        if anchor > 0 {
            // Measured once, not for each alias.
            let (weight, height) = (weight(&value), height(&value));
            self.anchors.insert(anchor, Anchored { value: value.clone(), weight, height });
        }
        match self.open.last_mut().map(|open| &mut open.items) {
            None => self.root = Some(value),
            Some(Items::List(items)) => items.push(value),
            Some(Items::Map { entries, key, merged }) => match key.take() {
                None => *key = Some(Name::Key(as_key(&value, self.marks, self.problems))),
                Some(Name::Key(name)) => entries.push((name, value)),
                // `<<: *defaults`, `<<: [*a, *b]`
                Some(Name::Merge(span)) => {
                    let maps = match value.value {
                        Value::List(maps) => maps,
                        _ => vec![value],
                    };
                    if let Some(wrong) = maps.iter().find(|map| !matches!(map.value, Value::Map(_))) {
                        let message = format!("`<<` takes a map or a list of maps, not {}", wrong.kind());
                        let fault = Diagnostic::error("bad-merge", message).at(wrong.span, "");
                        self.problems.push(fault.at(span, "merged here"));
                    }
                    merged.extend(maps);
                }
            },
        }
    }
}

/// Returns the span from the start of a list or map to its end. Block style has no end mark, so the last value decides.
fn enclose(start: Span, last: Option<Span>, end: Span) -> Span {
    if end.start == end.end && last.is_some() { start.to(last.unwrap_or(start)) } else { start.to(end) }
}

fn as_key(value: &Spanned, marks: &Marks<'_>, problems: &mut Vec<Diagnostic>) -> Key {
    let span = value.span;
    if let Some(text) = value.scalar_text() {
        return Key { text, span };
    }
    let fault = Diagnostic::error("bad-key", format!("{} cannot be a key", value.kind()));
    let fault = fault.at(span, "expected a word");
    let quote = "quote a name that YAML reads as null: `\"null\"`";
    problems.push(if value.value == Value::Null { fault.help(quote) } else { fault });
    let written = marks.text.get(span.start - marks.start..span.end - marks.start).unwrap_or_default();
    Key { text: written.chars().take(80).collect(), span }
}

/// Adds merged entries: keys of the map itself win, then earlier maps.
fn merge(mut entries: Vec<(Key, Spanned)>, merged: Vec<Spanned>) -> Vec<(Key, Spanned)> {
    if merged.is_empty() {
        return entries;
    }
    let mut known: BTreeSet<String> = entries.iter().map(|(key, _)| key.text.clone()).collect();
    for map in merged {
        if let Value::Map(more) = map.value {
            entries.extend(more.into_iter().filter(|(key, _)| known.insert(key.text.clone())));
        }
    }
    entries
}

/// Reports duplicate keys (the first few) and keeps the first of each.
fn distinct(mut entries: Vec<(Key, Spanned)>, problems: &mut Vec<Diagnostic>) -> Vec<(Key, Spanned)> {
    const REPORTED: usize = 20;
    // Comparing all pairs of keys would be slow. The sort is stable: the first of equal keys stays first.
    let mut order: Vec<_> = (0..entries.len()).collect();
    order.sort_by(|a, b| entries[*a].0.text.cmp(&entries[*b].0.text));
    let same = order.chunk_by(|a, b| entries[*a].0.text == entries[*b].0.text);
    let twice: BTreeMap<_, _> = same.flat_map(|same| same[1..].iter().map(|again| (*again, same[0]))).collect();
    if twice.is_empty() {
        return entries;
    }
    for (again, first) in twice.iter().take(REPORTED) {
        let (again, first) = (&entries[*again].0, &entries[*first].0);
        let fault = Diagnostic::error("duplicate-key", format!("duplicate key `{}`", again.text));
        problems.push(fault.at(again.span, "again here").at(first.span, "first here").help("keep one of them"));
    }
    let mut position = 0..;
    entries.retain(|_| position.next().is_some_and(|position| !twice.contains_key(&position)));
    entries
}

/// Returns the value of a plain scalar by YAML 1.2's core schema (<https://yaml.org/spec/1.2.2/#103-core-schema>). `no`,
/// `1_000` and dates are strings; `007` is 7 unless a string is required later.
pub(super) fn plain_scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        _ => {}
    }
    if text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        // A whole number beyond `i64` becomes a float.
        if let Some(number) = integer(text).map(Value::Int).or_else(|| number(text).map(Value::Float)) {
            return number;
        }
    }
    Value::String(text.to_owned())
}

/// Parses an integer of the core schema (`12`, `-3`, `0x1f`, `0o17`) that fits `i64`.
fn integer(text: &str) -> Option<i64> {
    if let Some(digits) = text.strip_prefix("0x") {
        return unsigned(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return unsigned(digits, 8);
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) { None } else { text.parse().ok() }
}

fn unsigned(digits: &str, radix: u32) -> Option<i64> {
    // `from_str_radix` takes a sign; the core schema allows none here.
    if digits.starts_with(['+', '-']) { None } else { i64::from_str_radix(digits, radix).ok() }
}

/// Parses a number of the core schema (`1e-4`, `.5`, `-.inf`, `12`).
fn number(text: &str) -> Option<f64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(digits, ".inf" | ".Inf" | ".INF") {
        return Some(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    // Rust also parses `inf` and `nan`, which are words in YAML.
    let shaped = digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    if shaped && digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_schema() {
        for (text, value) in [
            ("", Value::Null),
            ("~", Value::Null),
            ("True", Value::Bool(true)),
            ("no", Value::String("no".into())),
            ("12", Value::Int(12)),
            ("+12", Value::Int(12)),
            ("007", Value::Int(7)),
            ("0o17", Value::Int(15)),
            ("0x1F", Value::Int(31)),
            ("0x-1", Value::String("0x-1".into())),
            ("1_000", Value::String("1_000".into())),
            ("1e-4", Value::Float(1e-4)),
            ("12e03", Value::Float(12000.0)),
            (".5", Value::Float(0.5)),
            ("1.", Value::Float(1.0)),
            (".", Value::String(".".into())),
            ("-", Value::String("-".into())),
            ("1-2", Value::String("1-2".into())),
            ("2026-01-01", Value::String("2026-01-01".into())),
            ("-.inf", Value::Float(f64::NEG_INFINITY)),
            ("infinity", Value::String("infinity".into())),
            ("99999999999999999999", Value::Float(1e20)),
        ] {
            assert_eq!(plain_scalar(text), value, "{text:?}");
        }
    }
}
