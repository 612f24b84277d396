//! YAML values with their locations.

use crate::diagnostic::Span;

/// Stands before `=` in an override that lies over the param, as a file of params does: options merge, others are chosen.
pub(crate) const OVER: char = '~';

/// A value of YAML 1.2's core types.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing.
    #[default]
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
    /// Replaces a `${…}` that could not be resolved. The error was reported, so nothing more is reported.
    Broken,
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Its text.
    pub text: String,
    /// Location of the key.
    pub span: Span,
}

/// A value with its location.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spanned {
    /// The value.
    pub value: Value,
    /// Location of the value.
    pub span: Span,
    /// Source text of a plain scalar (`1e-4`, `007`), for conversion to a type required later.
    pub text: Option<String>,
    /// The `${…}` that inserted the value, if it was written elsewhere.
    pub via: Option<Span>,
}

impl Spanned {
    /// A value at a location.
    pub fn new(value: Value, span: Span) -> Self {
        Self { value, span, text: None, via: None }
    }

    /// An empty map at a location.
    pub fn empty_map(span: Span) -> Self {
        Self::new(Value::Map(Vec::new()), span)
    }

    /// Returns the value of a key if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|(name, _)| name.text == key).map(|(_, value)| value)
    }

    /// Returns the name in `{bert: {model: …}}`. A map whose only entry is a map selects one of several options. Params have
    /// no schema, so only this form shows it.
    pub(crate) fn choice(&self) -> Option<&str> {
        match self.entries() {
            [(name, options)] if matches!(options.value, Value::Map(_)) => Some(&name.text),
            _ => None,
        }
    }

    /// Returns the entries of a map; none for other values.
    pub fn entries(&self) -> &[(Key, Self)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the items of a list; none for other values.
    pub fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// Returns the items of a list; any other value is a list of itself.
    pub(super) fn as_list(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => std::slice::from_ref(self),
        }
    }

    /// Returns the items of a list, or the values of a map.
    pub fn children(&self) -> impl Iterator<Item = &Self> {
        self.items().iter().chain(self.entries().iter().map(|(_, value)| value))
    }

    /// Returns the text of a scalar, as written if known: `007` stays `007`. `None` for lists, maps and null.
    pub fn scalar_text(&self) -> Option<String> {
        match (&self.value, &self.text) {
            (Value::Null | Value::List(_) | Value::Map(_) | Value::Broken, _) => None,
            (Value::String(text), _) | (_, Some(text)) => Some(text.clone()),
            (Value::Bool(value), None) => Some(value.to_string()),
            (Value::Int(value), None) => Some(value.to_string()),
            (Value::Float(value), None) => Some(value.to_string()),
        }
    }

    /// Describes the value in messages: `a list`, `a whole number`.
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

    /// Converts to JSON, typed by YAML's rules. Numbers that JSON lacks (`.inf`, `.nan`) become their source text.
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

    /// Returns the value of a key, or at a position of a list.
    pub(super) fn child(&self, step: &str) -> Option<&Self> {
        match &self.value {
            Value::List(items) => items.get(step.parse::<usize>().ok()?),
            _ => self.get(step),
        }
    }
}

/// Returns the location of a param by its dotted path (`policy.endpoint.base_url`, `files.0`), or of its nearest
/// existing parent, and the `${…}` that inserted it, if it was written elsewhere.
pub(crate) fn locate(value: &Spanned, dotted_path: &str) -> (Span, Option<Span>) {
    let mut here = value;
    let mut via = here.via;
    for step in dotted_path.split('.').filter(|step| !step.is_empty()) {
        let Some(next) = here.child(step) else { break };
        here = next;
        // The innermost insertion is the nearest to the param.
        via = here.via.or(via);
    }
    (here.span, via.filter(|via| *via != here.span))
}
