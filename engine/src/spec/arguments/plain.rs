//! Types a single scalar by the schema.

use regex::Regex;
use serde_json::{Number, Value as Json};

use super::schema::{Schema, quoted};
use super::{Place, Reader};
use crate::spec::suggest;
use crate::spec::value::{Spanned, Value};

impl Reader<'_> {
    /// Reads a scalar other than null.
    pub(super) fn plain(&mut self, value: &Spanned, schema: Schema<'_>, place: &Place) -> Json {
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
    pub(super) fn word(&mut self, value: &Spanned, words: &[&Json], place: &Place) -> Json {
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
