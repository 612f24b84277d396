//! Where a column's value comes from: a field, a JSON pointer, or a template of both.

use std::borrow::Cow;

use serde_json::Value;

/// Where a column's value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A top-level field.
    Field(String),
    /// A JSON pointer (RFC 6901), for example `/metadata/type` or `/answers/0`.
    Pointer(String),
    /// Text with `{field}` and `{/pointer}` in it; `{{` and `}}` are braces.
    Template(Vec<Piece>),
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(String),
    Value(Origin),
}

impl Origin {
    /// Reads the text of a `columns:` entry.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("an empty text names no column".to_owned());
        }
        if text.contains(['{', '}']) {
            return template(text).map(Self::Template);
        }
        Ok(Self::plain(text))
    }

    fn plain(text: &str) -> Self {
        if text.starts_with('/') { Self::Pointer(text.to_owned()) } else { Self::Field(text.to_owned()) }
    }

    /// The value in a row; null when there is none.
    pub(crate) fn find<'v>(&self, row: &'v Value) -> Cow<'v, Value> {
        match self {
            Self::Field(name) => Cow::Borrowed(row.get(name).unwrap_or(&Value::Null)),
            Self::Pointer(pointer) => Cow::Borrowed(row.pointer(pointer).unwrap_or(&Value::Null)),
            Self::Template(pieces) => Cow::Owned(fill(pieces, row)),
        }
    }

    /// The top-level fields it reads.
    pub(crate) fn fields(&self) -> Vec<&str> {
        match self {
            Self::Field(name) => vec![name],
            Self::Pointer(pointer) => pointer.split('/').nth(1).into_iter().collect(),
            Self::Template(pieces) => pieces
                .iter()
                .flat_map(|piece| match piece {
                    Piece::Text(_) => Vec::new(),
                    Piece::Value(origin) => origin.fields(),
                })
                .collect(),
        }
    }
}

fn template(text: &str) -> Result<Vec<Piece>, String> {
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
        let end = rest.find('}').filter(|end| brace == "{" && *end > 0);
        let end = end.ok_or_else(|| {
            format!("`{text}` has a brace that does not enclose a column name; write `{{{{` for `{{`")
        })?;
        if !plain.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut plain)));
        }
        pieces.push(Piece::Value(Origin::plain(&rest[..end])));
        rest = &rest[end + 1..];
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

/// A template's text; null when none of its values is there.
fn fill(pieces: &[Piece], row: &Value) -> Value {
    let mut text = String::new();
    let mut found = false;
    for piece in pieces {
        match piece {
            Piece::Text(plain) => text.push_str(plain),
            Piece::Value(origin) => match origin.find(row).as_ref() {
                Value::Null => {}
                Value::String(value) => {
                    text.push_str(value);
                    found = true;
                }
                value => {
                    text.push_str(&value.to_string());
                    found = true;
                }
            },
        }
    }
    if found { Value::String(text) } else { Value::Null }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_pointers_and_templates() {
        let row = json!({"title": "T", "body": {"text": "B"}, "n": 3});
        let find = |text: &str| Origin::parse(text).unwrap().find(&row).into_owned();
        assert_eq!(find("title"), json!("T"));
        assert_eq!(find("/body/text"), json!("B"));
        assert_eq!(find("{title}: {/body/text} ({n}) {{x}}"), json!("T: B (3) {x}"));
        assert_eq!(find("{missing}"), Value::Null);
        assert_eq!(find("nothing"), Value::Null);
    }

    #[test]
    fn bad_templates_are_explained() {
        for text in ["", "{", "a}b", "{}", "{a"] {
            assert!(Origin::parse(text).is_err(), "{text}");
        }
    }
}
