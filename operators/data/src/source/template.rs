//! Text templates with `{field}` and `{/pointer}`: parses them and fills them from a record.

use serde_json::Value;

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Literal text.
    Text(String),
    /// A value of the record.
    Value(Slot),
}

/// `{field}`, or `{field?}` for an optional field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    written: String,
    /// The name before `?`. A field whose own name ends in `?` takes precedence.
    optional: Option<String>,
}

impl Slot {
    /// Returns the value in a record, if any.
    pub fn find<'v>(&self, record: &'v Value) -> Option<&'v Value> {
        lookup(record, &self.written).or_else(|| lookup(record, self.optional.as_deref()?))
    }

    /// Returns `None` for an optional field.
    ///
    /// # Errors
    /// The name of a required field.
    pub fn missing<T>(&self) -> Result<Option<T>, String> {
        if self.optional.is_some() { Ok(None) } else { Err(self.written.clone()) }
    }

    /// Returns the top-level field if it is required.
    pub fn required(&self) -> Option<&str> {
        if self.optional.is_none() { Some(top_level(&self.written)) } else { None }
    }

    /// Returns all top-level fields it may read.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.written.as_str()).chain(self.optional.as_deref()).map(top_level)
    }
}

/// Returns the value of a field or JSON pointer. Null counts as missing.
pub(crate) fn lookup<'v>(record: &'v Value, path: &str) -> Option<&'v Value> {
    let found = if path.starts_with('/') { record.pointer(path) } else { record.get(path) };
    found.filter(|value| !value.is_null())
}

/// Returns the top-level field of a field or JSON pointer.
pub(crate) fn top_level(path: &str) -> &str {
    path.strip_prefix('/').map_or(path, |pointer| pointer.split('/').next().unwrap_or_default())
}

/// Splits a template into its parts.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        plain.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            plain.push_str(brace);
            rest = after;
            continue;
        }
        let (name, after) = match rest.split_once('}') {
            Some((name, after)) if brace == "{" && !name.is_empty() => (name, after),
            _ => {
                return Err(format!("`{text}` has a brace that does not enclose a column name; write `{{{{` for `{{`"));
            }
        };
        if !plain.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut plain)));
        }
        let optional = name.strip_suffix('?').filter(|name| !name.is_empty()).map(str::to_owned);
        pieces.push(Piece::Value(Slot { written: name.to_owned(), optional }));
        rest = after;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

/// Returns the fields of a template.
pub(crate) fn slots(pieces: &[Piece]) -> impl Iterator<Item = &Slot> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Text(_) => None,
        Piece::Value(slot) => Some(slot),
    })
}

/// Returns the text for a record, or `None` if the record has none of the fields.
///
/// # Errors
/// The name of a required field that is missing while others are present: text would be lost silently.
pub(crate) fn fill(pieces: &[Piece], record: &Value) -> Result<Option<String>, String> {
    if slots(pieces).all(|slot| slot.find(record).is_none()) {
        return Ok(None);
    }
    Ok(Some(fill_strictly(pieces, record)?))
}

/// Returns the text for a record.
///
/// # Errors
/// The name of a required field without a value.
pub(crate) fn fill_strictly(pieces: &[Piece], record: &Value) -> Result<String, String> {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(plain) => text.push_str(plain),
            Piece::Value(slot) => match slot.find(record) {
                Some(Value::String(value)) => text.push_str(value),
                Some(value) => text.push_str(&value.to_string()),
                // An optional field leaves no text.
                None => {
                    slot.missing::<()>()?;
                }
            },
        }
    }
    Ok(text)
}
