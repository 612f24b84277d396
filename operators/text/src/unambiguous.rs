//! JSON in which no object has a field twice: the two could contradict each other, and parsers differ in which one counts.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A JSON value in which no object has a field twice.
#[derive(Clone, Debug, PartialEq)]
pub struct Unambiguous(pub Value);

/// Parses JSON in which no object has a field twice.
///
/// # Errors
/// If it is not JSON, or an object has a field twice.
pub fn parse(json: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(json).map(|Unambiguous(value)| value)
}

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor).map(Self)
    }
}

/// Builds an [`Unambiguous`] value.
pub struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::from(text))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((name, Unambiguous(value))) = entries.next_entry::<String, Unambiguous>()? {
            insert_once(&mut fields, name, value).map_err(A::Error::custom)?;
        }
        Ok(Value::Object(fields))
    }
}

/// Adds a field.
///
/// # Errors
/// If the object has one of this name.
pub fn insert_once(fields: &mut Map<String, Value>, name: String, value: Value) -> Result<(), String> {
    if fields.contains_key(&name) {
        return Err(field_twice(&name));
    }
    fields.insert(name, value);
    Ok(())
}

/// Returns the message for a field that an object has twice.
#[must_use]
pub fn field_twice(name: &str) -> String {
    format!("the field `{name}` is there twice")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_parsed_as_ever_unless_a_field_is_there_twice() {
        for json in [
            "null",
            "true",
            "-3",
            "18446744073709551615",
            "1.5e3",
            "\"a\\u00e9\\n\"",
            "[1, [], {}]",
            r#"{"b": {"a": 1}, "a": [{"a": 2}]}"#,
        ] {
            assert_eq!(parse(json).expect(json), serde_json::from_str::<Value>(json).expect(json), "{json}");
        }
        for json in ["", "{", "[1,]", "{'a': 1}", "\"\\ud800\"", "1e400", "1 2", &"[".repeat(100_000)] {
            assert!(parse(json).is_err(), "{json:.20}");
        }
        for twice in [r#"{"a": 1, "a": 1}"#, r#"[{"b": {"a": 1, "\u0061": 2}}]"#] {
            assert!(parse(twice).expect_err(twice).to_string().contains("the field `a` is there twice"), "{twice}");
        }
    }
}
