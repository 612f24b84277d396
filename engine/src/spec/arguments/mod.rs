//! Types an operator's params by its JSON Schema: `1e-4` becomes a number where the schema requires one, `007` and `no`
//! stay strings where it requires a string.

mod choice;
mod schema;
#[cfg(test)]
mod tests;

use regex::Regex;
use serde_json::{Map, Number, Value as Json};

use super::value::{Key, Spanned, Value};
use super::{suggest, syntax};
use crate::diagnostic::{Diagnostic, Span};
use schema::{Schema, quoted};

/// Reads params by the operator's JSON Schema (as schemars 1 writes it).
///
/// # Errors
/// All errors, with locations. Empty if every error was reported before (an unresolved `${…}`).
pub fn arguments(value: &Spanned, schema: &Json, operator: &str) -> Result<Json, Vec<Diagnostic>> {
    let mut reader = Reader { operator, problems: Vec::new(), broken: false };
    let top = Place { path: String::new(), name: value.span, via: value.via };
    let typed = reader.read(value, Schema::root(schema), &top);
    if reader.broken || !reader.problems.is_empty() { Err(reader.problems) } else { Ok(typed) }
}

/// The location of a value, for messages.
#[derive(Clone)]
struct Place {
    /// Dotted path of the param; empty at the top.
    path: String,
    /// The key, or the value itself if it has none.
    name: Span,
    /// The outermost `${…}` that inserted the value.
    via: Option<Span>,
}

impl Place {
    fn below(&self, key: &str, name: Span, value: &Spanned) -> Self {
        let path = if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        Self { path, name, via: self.via.or(value.via) }
    }
}

struct Reader<'o> {
    operator: &'o str,
    problems: Vec<Diagnostic>,
    /// Whether a value was found whose error was reported before.
    broken: bool,
}

impl Reader<'_> {
    fn read(&mut self, value: &Spanned, schema: Schema<'_>, place: &Place) -> Json {
        // Reported where it was resolved; what depends on its type is unknown.
        if value.value == Value::Broken {
            self.broken = true;
            return Json::Null;
        }
        if schema.takes_anything() {
            self.check_no_secret(value, place);
            return value.to_json();
        }
        // Before the alternatives: a secret is a string like others, and its value is not shown in errors.
        if schema.is_secret() {
            return self.secret(value, place);
        }
        if let Some(branches) = schema.branches() {
            return self.choose(value, schema, &branches, place);
        }
        match &value.value {
            Value::Map(entries) if schema.allows("object") => self.object(value, entries, schema, place),
            Value::List(items) if schema.allows("array") => self.list(value, items, schema, place),
            Value::Map(_) | Value::List(_) => self.mismatch(value, schema, place),
            Value::Null if schema.allows("null") => Json::Null,
            Value::Null => {
                let written = value.text.as_deref().unwrap_or_default();
                let found = if written.is_empty() { "nothing" } else { "null" };
                let message = format!("{} must be {}, not {found}", self.name(place), schema.describe());
                let is_word = !written.is_empty() && schema.allows("string");
                let help = is_word.then(|| format!("for the word, write `\"{written}\"`"));
                // Nothing after the colon has no text to point at.
                let at = if value.span.start == value.span.end { place.name } else { value.span };
                self.report("wrong-type", message, at, place, help)
            }
            _ => {
                // One of fixed words is compared with them anyway.
                if schema.words().is_none() && schema.allows("string") {
                    self.check_no_secret(value, place);
                }
                self.plain(value, schema, place)
            }
        }
    }

    fn object(&mut self, value: &Spanned, entries: &[(Key, Spanned)], schema: Schema<'_>, place: &Place) -> Json {
        let mut object = Map::new();
        for (key, entry) in entries {
            let below = place.below(&key.text, key.span, entry);
            match schema.property(&key.text) {
                Some(property) => drop(object.insert(key.text.clone(), self.read(entry, property, &below))),
                None => self.unknown(key, schema, &below),
            }
        }
        for name in schema.required() {
            if value.get(name).is_none() {
                self.missing(name, schema, place);
            }
        }
        self.check_size(value, schema, entries.len(), "Properties", "keys", place);
        Json::Object(object)
    }

    fn list(&mut self, value: &Spanned, items: &[Spanned], schema: Schema<'_>, place: &Place) -> Json {
        self.check_size(value, schema, items.len(), "Items", "items", place);
        let mut typed = Vec::with_capacity(items.len());
        for (position, item) in items.iter().enumerate() {
            let below = place.below(&position.to_string(), item.span, item);
            if let Some(schema) = schema.item(position) {
                typed.push(self.read(item, schema, &below));
            } else {
                self.check_no_secret(item, &below);
                typed.push(item.to_json());
            }
        }
        Json::Array(typed)
    }

    fn check_size(&mut self, value: &Spanned, schema: Schema<'_>, size: usize, of: &str, unit: &str, place: &Place) {
        let wanted = match (schema.number(&format!("min{of}")), schema.number(&format!("max{of}"))) {
            (Some(least), _) if (size as f64) < least => format!("at least {least} {unit}"),
            (_, Some(most)) if size as f64 > most => format!("at most {most} {unit}"),
            _ => return,
        };
        let message = format!("{} must have {wanted}, not {size}", self.name(place));
        self.report("bad-value", message, value.span, place, None);
    }

    /// Reads a scalar other than null.
    fn plain(&mut self, value: &Spanned, schema: Schema<'_>, place: &Place) -> Json {
        if let Some(words) = schema.words() {
            return self.word(value, &words, place);
        }
        let Some(typed) = typed(value, schema) else {
            return self.mismatch(value, schema, place);
        };
        let wrong = match &typed {
            Json::Number(number) => out_of_range(number, schema),
            Json::String(text) => unfit(text, schema),
            _ => None,
        };
        if let Some(wanted) = wrong {
            let shown = value.scalar_text().unwrap_or_default();
            let message = format!("{} must be {wanted}, not `{shown}`", self.name(place));
            self.report("bad-value", message, value.span, place, None);
        }
        typed
    }

    /// Reads one of several fixed words.
    fn word(&mut self, value: &Spanned, words: &[&Json], place: &Place) -> Json {
        let (text, typed) = (value.scalar_text().unwrap_or_default(), value.to_json());
        for word in words {
            // A word is compared as written (`no`), any other constant by its value.
            if word.as_str() == Some(&text) || **word == typed {
                return (*word).clone();
            }
        }
        let known = words.iter().filter_map(|word| word.as_str());
        let help = match suggest::closest(&text, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("one of {}", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(", ")),
        };
        let message = format!("{} cannot be `{text}`", self.name(place));
        self.report("bad-value", message, value.span, place, Some(help))
    }

    fn secret(&mut self, value: &Spanned, place: &Place) -> Json {
        match value.scalar_text() {
            Some(text) if is_secret_reference(&text) => Json::from(text),
            _ => {
                // The message does not show the value: it may be the secret.
                let message = format!("a secret written out where a reference belongs: {}", self.name(place));
                let help = "write `${secret:NAME}` and set the environment variable NAME".to_owned();
                self.report("secret-literal", message, value.span, place, Some(help))
            }
        }
    }

    /// Reports a secret where none is allowed: the operator would get the reference as text.
    fn check_no_secret(&mut self, value: &Spanned, place: &Place) {
        if value.scalar_text().is_some_and(|text| is_secret_reference(&text)) {
            let message = format!("{} does not accept secrets: it would get the reference as text", self.name(place));
            let help = "only params of the type `secret` read one; a program gets a variable of the environment by its \
                        name (`environment: [NAME]`)";
            self.report("secret-not-read", message, value.span, place, Some(help.to_owned()));
        }
        for (number, item) in value.items().iter().enumerate() {
            self.check_no_secret(item, &place.below(&number.to_string(), item.span, item));
        }
        for (key, item) in value.entries() {
            self.check_no_secret(item, &place.below(&key.text, key.span, item));
        }
    }

    fn unknown(&mut self, key: &Key, schema: Schema<'_>, place: &Place) {
        let names = schema.property_names();
        let help = suggest::advice(&key.text, &names);
        let message = format!("`{}` has no param `{}`", self.operator, place.path);
        self.report("unknown-key", message, key.span, place, help);
    }

    fn missing(&mut self, name: &str, schema: Schema<'_>, place: &Place) {
        let path = if place.path.is_empty() { name.to_owned() } else { format!("{}.{name}", place.path) };
        let mut help = None;
        if let Some(property) = schema.property(name)
            && let Some(about) = property.about()
        {
            let choices = property.choices().join(" or ");
            let write = if choices.is_empty() { String::new() } else { format!(" Write {choices}") };
            help = Some(format!("`{name}`: {about}{write}"));
        }
        self.report("missing-key", format!("`{}` needs the param `{path}`", self.operator), place.name, place, help);
    }

    fn mismatch(&mut self, value: &Spanned, schema: Schema<'_>, place: &Place) -> Json {
        let text = value.scalar_text();
        // How to write what was probably meant.
        let help = match (&value.value, text.as_deref()) {
            (Value::String(_), Some(text @ ("yes" | "on" | "y" | "Yes" | "On"))) if schema.allows("boolean") => {
                Some(format!("write `true` for `{text}`"))
            }
            (Value::String(_), Some(text @ ("no" | "off" | "n" | "No" | "Off"))) if schema.allows("boolean") => {
                Some(format!("write `false` for `{text}`"))
            }
            (Value::String(_), Some(text)) if !matches!(syntax::plain_scalar(text), Value::String(_) | Value::Null) => {
                Some(format!("write `{text}` without quotes"))
            }
            (_, Some(text)) if schema.allows("array") => Some(format!("write a list: `[{text}]`")),
            _ => None,
        };
        let message = format!("{} must be {}, not {}", self.name(place), schema.describe(), value.kind());
        self.report("wrong-type", message, value.span, place, help)
    }

    /// Returns a param's name in messages: `` `size` of `chunk` ``.
    fn name(&self, place: &Place) -> String {
        if place.path.is_empty() {
            format!("`with` of `{}`", self.operator)
        } else {
            format!("`{}` of `{}`", place.path, self.operator)
        }
    }

    /// Reports an error; returns the value to go on with.
    fn report(&mut self, code: &'static str, message: String, at: Span, place: &Place, help: Option<String>) -> Json {
        // A second label at the same place would repeat the first.
        let via = place.via.filter(|via| *via != at);
        let mut fault = Diagnostic::error(code, message).at(at, "").used_at(via);
        fault.help = help;
        self.problems.push(fault);
        Json::Null
    }
}

/// Types a scalar. A whole number may be written as `1e3` or `2.0`.
fn typed(value: &Spanned, schema: Schema<'_>) -> Option<Json> {
    let types = schema.types();
    // A schema of numbers allows whole ones, but its values stay numbers: `2.0` is not `2`.
    let is_whole = schema.allows("integer") && (types.is_empty() || types.contains(&"integer"));
    // In this order: a number is also a text, and a whole number also a number.
    match value.value {
        Value::Bool(flag) if schema.allows("boolean") => return Some(flag.into()),
        Value::Int(number) if is_whole || schema.allows("number") => return Some(number.into()),
        Value::Float(number) => {
            // Beyond `i64`, YAML has floats: the text of a seed of 64 bits is exact.
            if is_whole && let Some(Ok(large)) = value.text.as_deref().map(str::parse::<u64>) {
                return Some(large.into());
            }
            // From 2^53 on, floats have no place for every whole number.
            if is_whole && number.fract() == 0.0 && number.abs() < 9e15 {
                return Some((number as i64).into());
            }
            if schema.allows("number") && number.is_finite() {
                return Some(number.into());
            }
        }
        _ => {}
    }
    if schema.allows("string") { value.scalar_text().map(Json::String) } else { None }
}

fn out_of_range(number: &Number, schema: Schema<'_>) -> Option<String> {
    let value = number.as_f64()?;
    let (format_least, format_most) = format_range(schema.text("format").unwrap_or_default());
    let least = schema.number("minimum").or(format_least);
    let most = schema.number("maximum").or(format_most);
    let (above, below) = (schema.number("exclusiveMinimum"), schema.number("exclusiveMaximum"));
    match (least, most, above, below) {
        (Some(least), ..) if value < least => Some(format!("at least {least}")),
        (_, Some(most), ..) if value > most => Some(format!("at most {most}")),
        (_, _, Some(bound), _) if value <= bound => Some(format!("more than {bound}")),
        (.., Some(bound)) if value >= bound => Some(format!("less than {bound}")),
        _ => None,
    }
}

/// Returns the range of schemars' integer formats. 64-bit numbers limit themselves.
fn format_range(format: &str) -> (Option<f64>, Option<f64>) {
    let (least, most) = match format {
        "int8" => (f64::from(i8::MIN), f64::from(i8::MAX)),
        "int16" => (f64::from(i16::MIN), f64::from(i16::MAX)),
        "int32" => (f64::from(i32::MIN), f64::from(i32::MAX)),
        "uint8" => (0.0, f64::from(u8::MAX)),
        "uint16" => (0.0, f64::from(u16::MAX)),
        "uint32" => (0.0, f64::from(u32::MAX)),
        "uint" | "uint64" => return (Some(0.0), None),
        _ => return (None, None),
    };
    (Some(least), Some(most))
}

fn unfit(text: &str, schema: Schema<'_>) -> Option<String> {
    let length = text.chars().count() as f64;
    match (schema.number("minLength"), schema.number("maxLength")) {
        (Some(1.0), _) if length < 1.0 => return Some("a string that is not empty".to_owned()),
        (Some(least), _) if length < least => return Some(format!("at least {least} characters long")),
        (_, Some(most)) if length > most => return Some(format!("at most {most} characters long")),
        _ => {}
    }
    let pattern = schema.text("pattern")?;
    match Regex::new(pattern) {
        Ok(regex) if !regex.is_match(text) => Some(format!("a string like `{pattern}`")),
        _ => None,
    }
}

/// Whether a text is exactly `${secret:NAME}`.
fn is_secret_reference(text: &str) -> bool {
    let name = text.strip_prefix("${secret:").and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| !name.is_empty() && name.chars().all(|ch| ch.is_ascii_alphanumeric() || ch == '_'))
}
