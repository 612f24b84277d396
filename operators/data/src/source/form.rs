//! JSON templates: inserts values as JSON, whatever characters they contain.

use serde_json::{Map, Value};

use super::template::{Piece, Slot, fill_strictly, slots};

/// Placeholders for template fields while the template is parsed as JSON. Both are private-use characters of Unicode.
const QUOTED: char = '\u{E000}';
const BARE: char = '\u{E001}';

/// A JSON value that contains fields of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// The same for every record.
    Constant(Value),
    /// A string that contains fields.
    Text(Vec<Piece>),
    /// A field outside quotes.
    Value(Slot),
    List(Vec<Form>),
    Object(Vec<(String, Form)>),
}

impl Form {
    /// Parses a template that starts with `[` or `{{`, contains a quote, and is JSON apart from its fields. Other
    /// templates are plain text.
    pub fn parse(text: &str, pieces: &[Piece]) -> Option<Self> {
        let text = text.trim_start();
        let looks_like_json = (text.starts_with('[') || text.starts_with("{{")) && text.contains('"');
        // A text that has the placeholders itself could not be told from a field.
        if !looks_like_json || text.contains([QUOTED, BARE]) {
            return None;
        }
        let slots: Vec<&Slot> = slots(pieces).collect();
        let skeleton = serde_json::from_str(&skeleton(pieces)).ok()?;
        Self::of(skeleton, &slots)
    }

    fn of(value: Value, slots: &[&Slot]) -> Option<Self> {
        Some(match value {
            Value::String(text) => match text.strip_prefix(BARE) {
                Some(number) => Self::Value(slot(number, slots)?),
                None if text.contains(QUOTED) => Self::Text(pieces(&text, slots)?),
                None => Self::Constant(Value::String(text)),
            },
            Value::Array(items) => {
                Self::List(items.into_iter().map(|item| Self::of(item, slots)).collect::<Option<_>>()?)
            }
            Value::Object(fields) => {
                let mut forms = Vec::with_capacity(fields.len());
                for (name, value) in fields {
                    // The names of an object are the same for every record.
                    if name.contains([QUOTED, BARE]) {
                        return None;
                    }
                    forms.push((name, Self::of(value, slots)?));
                }
                Self::Object(forms)
            }
            other => Self::Constant(other),
        })
    }

    /// Returns the value for a record, or `None` if the record has none of the fields. Missing optional fields are
    /// omitted, as are lists and objects that become empty.
    ///
    /// # Errors
    /// The name of a required field that is missing while others are present.
    pub fn fill(&self, record: &Value) -> Result<Option<Value>, String> {
        if self.is_missing(record) { Ok(None) } else { self.fill_strictly(record) }
    }

    fn fill_strictly(&self, record: &Value) -> Result<Option<Value>, String> {
        let filled = match self {
            Self::Constant(value) => value.clone(),
            Self::Text(pieces) => Value::String(fill_strictly(pieces, record)?),
            Self::Value(slot) => match slot.find(record) {
                // Outside quotes. Cells of CSV files hold numbers, lists and objects as text.
                Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
                Some(value) => value.clone(),
                None => return slot.missing(),
            },
            Self::List(items) => {
                let items = items.iter().filter_map(|item| item.fill_strictly(record).transpose());
                Value::Array(items.collect::<Result<_, _>>()?)
            }
            Self::Object(fields) => {
                let mut object = Map::new();
                for (name, form) in fields {
                    if let Some(value) = form.fill_strictly(record)? {
                        object.insert(name.clone(), value);
                    }
                }
                Value::Object(object)
            }
        };
        Ok(if self.is_missing(record) { None } else { Some(filled) })
    }

    /// Whether it has fields and the record has none of them.
    fn is_missing(&self, record: &Value) -> bool {
        let slots = self.slots();
        !slots.is_empty() && slots.iter().all(|slot| slot.find(record).is_none())
    }

    /// Returns its fields.
    pub fn slots(&self) -> Vec<&Slot> {
        match self {
            Self::Constant(_) => Vec::new(),
            Self::Text(pieces) => slots(pieces).collect(),
            Self::Value(slot) => vec![slot],
            Self::List(items) => items.iter().flat_map(Self::slots).collect(),
            Self::Object(fields) => fields.iter().flat_map(|(_, form)| form.slots()).collect(),
        }
    }
}

/// Returns the template as JSON: each field becomes a numbered placeholder, quoted if the field is outside quotes.
fn skeleton(pieces: &[Piece]) -> String {
    let mut text = String::new();
    let (mut quoted, mut escaped, mut number) = (false, false, 0);
    for piece in pieces {
        match piece {
            Piece::Text(plain) => {
                for ch in plain.chars() {
                    quoted ^= ch == '"' && !escaped;
                    escaped = ch == '\\' && quoted && !escaped;
                }
                text.push_str(plain);
            }
            Piece::Value(_) => {
                let mark = if quoted { format!("{QUOTED}{number}{QUOTED}") } else { format!("\"{BARE}{number}\"") };
                text.push_str(&mark);
                number += 1;
            }
        }
    }
    text
}

/// Splits a skeleton string into pieces: every second part between placeholders is a field's number.
fn pieces(text: &str, slots: &[&Slot]) -> Option<Vec<Piece>> {
    let mut pieces = Vec::new();
    for (position, part) in text.split(QUOTED).enumerate() {
        if part.is_empty() {
            continue;
        }
        let is_text = position % 2 == 0;
        pieces.push(if is_text { Piece::Text(part.to_owned()) } else { Piece::Value(slot(part, slots)?) });
    }
    Some(pieces)
}

fn slot(number: &str, slots: &[&Slot]) -> Option<Slot> {
    slots.get(number.parse::<usize>().ok()?).map(|slot| (*slot).clone())
}
