//! Templates that are JSON: values are inserted as JSON, whatever characters they hold.

use serde_json::{Map, Value};

use super::template::{Piece, Slot, fill_strictly, slots};

/// Stand for a field of the template while it is parsed as JSON; Unicode keeps these characters for private use.
const QUOTED: char = '\u{E000}';
const BARE: char = '\u{E001}';

/// A JSON value with fields of a record in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// The same for every record.
    Constant(Value),
    /// A string with fields in it.
    Text(Vec<Piece>),
    /// A field outside quotes.
    Value(Slot),
    List(Vec<Form>),
    Object(Vec<(String, Form)>),
}

impl Form {
    /// A template that begins with `[` or `{{`, quotes something, and is JSON around its fields. Others are plain text.
    pub fn parse(text: &str, pieces: &[Piece]) -> Option<Self> {
        let text = text.trim_start();
        let looks_like_json = (text.starts_with('[') || text.starts_with("{{")) && text.contains('"');
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
                let of = |(name, value): (String, Value)| {
                    let name = Some(name).filter(|name| !name.contains([QUOTED, BARE]))?;
                    Some((name, Self::of(value, slots)?))
                };
                Self::Object(fields.into_iter().map(of).collect::<Option<_>>()?)
            }
            other => Self::Constant(other),
        })
    }

    /// The value for a record, `None` where the record has none of the fields. Optional fields that are missing are
    /// left out, as are lists and objects in which nothing is left.
    ///
    /// # Errors
    /// The name of a field that is missing while others are there.
    pub fn fill(&self, record: &Value) -> Result<Option<Value>, String> {
        if self.is_missing(record) { Ok(None) } else { self.fill_strictly(record) }
    }

    fn fill_strictly(&self, record: &Value) -> Result<Option<Value>, String> {
        let filled = match self {
            Self::Constant(value) => value.clone(),
            Self::Text(pieces) => Value::String(fill_strictly(pieces, record)?),
            Self::Value(slot) => match slot.find(record) {
                Some(value) => as_json(value),
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
        Ok((!self.is_missing(record)).then_some(filled))
    }

    /// Whether it names fields and the record has none of them.
    fn is_missing(&self, record: &Value) -> bool {
        let slots = self.slots();
        !slots.is_empty() && slots.iter().all(|slot| slot.find(record).is_none())
    }

    /// Its fields.
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

/// The template as JSON: each field is a mark with its number, in a string of its own where it is not quoted.
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

/// A string of the skeleton as pieces: every second part between the marks is a field's number.
fn pieces(text: &str, slots: &[&Slot]) -> Option<Vec<Piece>> {
    let parts = text.split(QUOTED).enumerate().filter(|(_, part)| !part.is_empty());
    let piece = |(place, part): (usize, &str)| match place % 2 {
        0 => Some(Piece::Text(part.to_owned())),
        _ => slot(part, slots).map(Piece::Value),
    };
    parts.map(piece).collect()
}

fn slot(number: &str, slots: &[&Slot]) -> Option<Slot> {
    slots.get(number.parse::<usize>().ok()?).map(|slot| (*slot).clone())
}

/// A value outside quotes: cells of CSV files hold numbers, lists and objects as text.
fn as_json(value: &Value) -> Value {
    let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
    parsed.unwrap_or_else(|| value.clone())
}
