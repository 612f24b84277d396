//! A YAML value with its place in the file.

use crate::diagnostic::Span;

/// A value of YAML 1.2's core types.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    String(String),
    /// A list.
    List(Vec<Spanned>),
    /// A map, in the order written.
    Map(Vec<(Key, Spanned)>),
    /// Stands where a `${…}` could not be resolved, which has been reported: nothing more is to be said about it.
    Broken,
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Its text.
    pub text: String,
    /// Where it stands.
    pub span: Span,
}

/// A value and where it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Spanned {
    /// The value.
    pub value: Value,
    /// Where it was written.
    pub span: Span,
    /// Source text of a plain scalar (`1e-4`, `007`), so that a type wanted later can read it anew.
    pub text: Option<String>,
    /// The `${…}` that brought it here, when it was written somewhere else.
    pub via: Option<Span>,
}

impl Spanned {
    /// A value at a place.
    #[must_use]
    pub fn new(value: Value, span: Span) -> Self {
        Self { value, span, text: None, via: None }
    }

    /// An empty map at a place.
    #[must_use]
    pub fn empty_map(span: Span) -> Self {
        Self::new(Value::Map(Vec::new()), span)
    }

    /// Was something in here wrong already?
    #[must_use]
    pub fn is_broken(&self) -> bool {
        match &self.value {
            Value::Broken => true,
            Value::List(items) => items.iter().any(Self::is_broken),
            Value::Map(entries) => entries.iter().any(|(_, value)| value.is_broken()),
            _ => false,
        }
    }

    /// The value under a key, if this is a map that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|(name, _)| name.text == key).map(|(_, value)| value)
    }

    /// The entries of a map; none for anything else.
    #[must_use]
    pub fn entries(&self) -> &[(Key, Self)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a list; none for anything else.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The text of a scalar, as written where that is known: `007` stays `007`. `None` for lists, maps and null.
    #[must_use]
    pub fn scalar_text(&self) -> Option<String> {
        match (&self.value, &self.text) {
            (Value::Null | Value::List(_) | Value::Map(_) | Value::Broken, _) => None,
            (Value::String(text), _) | (_, Some(text)) => Some(text.clone()),
            (Value::Bool(value), None) => Some(value.to_string()),
            (Value::Int(value), None) => Some(value.to_string()),
            (Value::Float(value), None) => Some(value.to_string()),
        }
    }

    /// What it is, for messages: `a list`, `a whole number`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null | Value::Broken => "nothing",
            Value::Bool(_) => "true or false",
            Value::Int(_) => "a whole number",
            Value::Float(number) if !number.is_finite() => "an infinite or undefined number",
            Value::Float(_) => "a number",
            Value::String(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// As JSON, typed by YAML's own rules. Numbers that JSON has not (`.inf`, `.nan`) become their source text.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null | Value::Broken => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Int(value) => (*value).into(),
            Value::Float(value) if value.is_finite() => (*value).into(),
            Value::Float(value) => self.text.clone().unwrap_or_else(|| value.to_string()).into(),
            Value::String(text) => text.clone().into(),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => entries.iter().map(|(key, value)| (key.text.clone(), value.to_json())).collect(),
        }
    }

    /// The value at a path of keys and list positions, or as much of the path as exists.
    #[must_use]
    pub fn nearest(&self, path: &[&str]) -> &Self {
        let mut here = self;
        for step in path {
            let next = match &here.value {
                Value::List(items) => step.parse().ok().and_then(|index: usize| items.get(index)),
                _ => here.get(step),
            };
            match next {
                Some(next) => here = next,
                None => break,
            }
        }
        here
    }
}

/// The place of a param by its dotted path (`policy.endpoint.base_url`, `files.0`), or of the nearest thing around it.
#[must_use]
pub fn locate(value: &Spanned, dotted_path: &str) -> Span {
    let steps: Vec<_> = dotted_path.split('.').filter(|step| !step.is_empty()).collect();
    value.nearest(&steps).span
}
