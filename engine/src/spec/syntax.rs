//! Parses YAML to values with locations, from the events of saphyr-parser. Iterative, limited in depth and size.

use std::collections::{BTreeMap, BTreeSet};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Tag};

use super::budget::{Budget, MAX_COPIED, MAX_DEPTH, MAX_VALUES, height, weight};
use super::scalar;
use super::syntax_fault::{self, too_deep};
use super::value::{Key, Spanned, Value};
use crate::diagnostic::{Diagnostic, FileId, SourceMap, Span};

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
            value.value = scalar::resolve(text);
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
