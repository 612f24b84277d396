//! JSON with ordered keys, written like Python's `json.dumps(…, ensure_ascii=False)`.
//!
//! Trainers render tools and calls with that function, so every space counts.

use indexmap::IndexMap;
use serde::de::Error;
use serde_json::value::RawValue;

/// A JSON value. Objects keep the order of their keys; a repeated key keeps its first place and its last value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    /// The digits as Python writes them.
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(IndexMap<String, Json>),
}

impl Json {
    /// Parses JSON text. The error says what is wrong and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        // As raw text: a parsed number loses its digits.
        let value = serde_json::from_str::<&RawValue>(text).map_err(|error| error.to_string())?;
        Self::read(value).map_err(|_| "a number or text that JSON cannot hold".to_owned())
    }

    fn read(value: &RawValue) -> serde_json::Result<Self> {
        let text = value.get();
        Ok(match text.as_bytes() {
            [b'{', ..] => {
                let entries = serde_json::from_str::<IndexMap<String, &RawValue>>(text)?.into_iter();
                let read = entries.map(|(key, value)| Self::read(value).map(|value| (key, value)));
                Self::Object(read.collect::<Result<_, _>>()?)
            }
            [b'[', ..] => {
                let items = serde_json::from_str::<Vec<&RawValue>>(text)?.into_iter();
                Self::List(items.map(Self::read).collect::<Result<_, _>>()?)
            }
            [b'"', ..] => Self::Text(serde_json::from_str(text)?),
            b"null" => Self::Null,
            b"true" => Self::Bool(true),
            b"false" => Self::Bool(false),
            // Python reads it as a whole number, which has no sign.
            b"-0" => Self::Number("0".to_owned()),
            _ if text.contains(['.', 'e', 'E']) => match text.parse::<f64>() {
                Ok(value) if value.is_finite() => Self::Number(float(value)),
                // Python would read `1e400` as infinity: that is not JSON when it is written.
                _ => return Err(serde_json::Error::custom("the number is too large")),
            },
            _ => Self::Number(text.to_owned()),
        })
    }

    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// An object with these keys in this order.
    pub fn object<'a>(entries: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        Self::Object(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Returns the value of a key if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(entries) => entries.get(key),
            _ => None,
        }
    }

    /// Returns the text if this is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Writes one line of JSON with `, ` and `: ` as separators.
    pub fn write(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(number) => number.clone(),
            Self::Text(text) => quoted(text),
            Self::List(items) => format!("[{}]", items.iter().map(Self::write).collect::<Vec<_>>().join(", ")),
            Self::Object(entries) => {
                let entries = entries.iter().map(|(key, value)| format!("{}: {}", quoted(key), value.write()));
                format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// serde_json escapes the same characters as Python, in the same way.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A float as Python's `repr` writes it: the shortest digits (of two equally near, the even one), with an exponent
/// below 1e-4 and from 1e16.
fn float(value: f64) -> String {
    let sign = if value.is_sign_negative() { "-" } else { "" };
    let (digits, point) = shortest(value.abs());
    let count = digits.len() as i32;
    match point {
        _ if digits.is_empty() => format!("{sign}0.0"),
        17.. | ..=-4 => {
            let (first, rest) = digits.split_at(1);
            let dot = if rest.is_empty() { "" } else { "." };
            let direction = if point > 0 { '+' } else { '-' };
            format!("{sign}{first}{dot}{rest}e{direction}{:02}", (point - 1).abs())
        }
        ..=0 => format!("{sign}0.{}{digits}", "0".repeat(point.unsigned_abs() as usize)),
        _ if point >= count => format!("{sign}{digits}{}.0", "0".repeat((point - count) as usize)),
        _ => format!("{sign}{}.{}", &digits[..point as usize], &digits[point as usize..]),
    }
}

/// Returns the shortest digits that parse to the value, and the position of the decimal point in them.
fn shortest(value: f64) -> (String, i32) {
    // serde_json rounds ties to even as Python does; the standard library does not.
    let text = serde_json::Number::from_f64(value).map_or_else(String::new, |number| number.to_string());
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches('0');
    let leading = (all.len() - digits.len()) as i32;
    let exponent: i32 = exponent.parse().unwrap_or(0);
    (digits.trim_end_matches('0').to_owned(), whole.len() as i32 - leading + exponent)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_those_of_json_dumps() {
        // Each pair: text, and `json.dumps(json.loads(text), ensure_ascii=False)` of CPython 3.11.
        let pairs = [
            (r#"{"b":1,"a":[1,2,{}],"c":[]}"#, r#"{"b": 1, "a": [1, 2, {}], "c": []}"#),
            (r#" { "a" : "\u00e9\ud83d\ude00\/\u0007\u007f" } "#, "{\"a\": \"é😀/\\u0007\u{7f}\"}"),
            (
                "[1.0, 1e3, 1E-5, 1e16, 123456789012345680.0, 0.0001, -0.0, -0]",
                "[1.0, 1000.0, 1e-05, 1e+16, 1.2345678901234568e+17, 0.0001, -0.0, 0]",
            ),
            ("[100000000000000000000000, 1.5e300, true, null]", "[100000000000000000000000, 1.5e+300, true, null]"),
            (r#"{"a": 1, "b": 2, "a": 3}"#, r#"{"a": 3, "b": 2}"#),
            (r#""a\\\"b\n\t""#, r#""a\\\"b\n\t""#),
            ("[-2107157887324251.25, 5e-324, 1e-4, 12e-6]", "[-2107157887324251.2, 5e-324, 0.0001, 1.2e-05]"),
            (r#"{"": ["\\"]}"#, r#"{"": ["\\"]}"#),
        ];
        for (text, line) in pairs {
            assert_eq!(Json::parse(text).expect(text).write(), line);
        }
    }

    #[test]
    fn what_is_not_json_is_an_error() {
        let deep = "[".repeat(100_000);
        for wrong in ["", "{", "{'a': 1}", "[1,]", "nan", "1 2", "\"\\ud800\"", "01", "[1e400]", "-1e999", &deep] {
            assert!(Json::parse(wrong).is_err(), "{wrong:.20}");
        }
    }

    proptest! {
        #[test]
        fn reading_what_was_written_gives_the_same(text in ".*", number in any::<f64>(), key in ".*") {
            let number = if number.is_finite() { float(number) } else { "0".to_owned() };
            let value = Json::Object([(key, Json::List(vec![Json::Text(text), Json::Number(number)]))].into_iter().collect());
            prop_assert_eq!(Json::parse(&value.write()).expect("JSON"), value);
        }
    }
}
