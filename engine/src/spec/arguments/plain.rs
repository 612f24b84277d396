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
        let text = value.scalar_text().unwrap_or_default();
        let same = |word: &&&Json| word.as_str().is_some_and(|word| word == text) || **word == &value.to_json();
        if let Some(word) = words.iter().find(same) {
            return (*word).clone();
        }
        let known: Vec<_> = words.iter().filter_map(|word| word.as_str()).collect();
        let listed: Vec<_> = words.iter().map(|word| quoted(word)).collect();
        let help = suggest::closest(&text, known).map(|near| format!("did you mean `{near}`?"));
        let help = help.unwrap_or_else(|| format!("one of {}", listed.join(", ")));
        let message = format!("{} cannot be `{text}`", self.name(place));
        self.report("bad-value", message, value.span, place, Some(help))
    }
}

type Read = fn(&Spanned) -> Option<Json>;

fn typed(value: &Spanned, schema: Schema<'_>) -> Option<Json> {
    let by_type: [(&str, Read); 4] =
        [("boolean", boolean), ("integer", integer), ("number", number), ("string", string)];
    by_type.iter().filter(|(name, _)| schema.allows(name)).find_map(|(name, read)| {
        let wants_whole = *name == "integer" && !schema.types().is_empty() && !schema.types().contains(&"integer");
        if wants_whole { None } else { read(value) }
    })
}

fn boolean(value: &Spanned) -> Option<Json> {
    match value.value {
        Value::Bool(flag) => Some(flag.into()),
        _ => None,
    }
}

/// Reads an integer, also written as `1e3` or `2.0`.
fn integer(value: &Spanned) -> Option<Json> {
    match value.value {
        Value::Int(number) => Some(number.into()),
        Value::Float(number) => {
            let large = value.text.as_deref().and_then(|text| text.parse::<u64>().ok());
            let whole = number.fract() == 0.0 && number.abs() < 9e15;
            large.map(Json::from).or_else(|| whole.then(|| (number as i64).into()))
        }
        _ => None,
    }
}

fn number(value: &Spanned) -> Option<Json> {
    match value.value {
        Value::Int(number) => Some(number.into()),
        Value::Float(number) => Number::from_f64(number).map(Json::Number),
        _ => None,
    }
}

fn string(value: &Spanned) -> Option<Json> {
    value.scalar_text().map(Json::String)
}

fn out_of_range(number: &Number, schema: Schema<'_>) -> Option<String> {
    let value = number.as_f64()?;
    let (format_least, format_most) = format_range(schema.text("format").unwrap_or_default());
    let least = schema.number("minimum").or(format_least);
    let most = schema.number("maximum").or(format_most);
    if let Some(bound) = least.filter(|bound| value < *bound) {
        return Some(format!("at least {bound}"));
    }
    if let Some(bound) = most.filter(|bound| value > *bound) {
        return Some(format!("at most {bound}"));
    }
    let above = schema.number("exclusiveMinimum").filter(|bound| value <= *bound);
    let below = schema.number("exclusiveMaximum").filter(|bound| value >= *bound);
    above.map(|bound| format!("more than {bound}")).or_else(|| below.map(|bound| format!("less than {bound}")))
}

/// Returns the range of schemars' integer formats. 64-bit numbers limit themselves.
fn format_range(format: &str) -> (Option<f64>, Option<f64>) {
    let range = |least: f64, most: f64| (Some(least), Some(most));
    match format {
        "int8" => range(f64::from(i8::MIN), f64::from(i8::MAX)),
        "int16" => range(f64::from(i16::MIN), f64::from(i16::MAX)),
        "int32" => range(f64::from(i32::MIN), f64::from(i32::MAX)),
        "uint8" => range(0.0, f64::from(u8::MAX)),
        "uint16" => range(0.0, f64::from(u16::MAX)),
        "uint32" => range(0.0, f64::from(u32::MAX)),
        "uint" | "uint64" => (Some(0.0), None),
        _ => (None, None),
    }
}

fn unfit(text: &str, schema: Schema<'_>) -> Option<String> {
    let length = text.chars().count() as f64;
    if let Some(least) = schema.number("minLength").filter(|least| length < *least) {
        return Some(if least == 1.0 {
            "a string that is not empty".to_owned()
        } else {
            format!("at least {least} characters long")
        });
    }
    if let Some(most) = schema.number("maxLength").filter(|most| length > *most) {
        return Some(format!("at most {most} characters long"));
    }
    let pattern = schema.text("pattern")?;
    let fits = Regex::new(pattern).map_or(true, |regex| regex.is_match(text));
    (!fits).then(|| format!("a string like `{pattern}`"))
}
