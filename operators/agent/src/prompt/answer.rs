//! What a model said beside its thoughts, and the JSON object in its answer.

use searchmill_text::thoughts;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// The fields of an object. A field that is there twice is an error: the two could contradict each other.
struct Fields(Map<String, Value>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Map::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format!("the field `{name}` is there twice")));
            }
            fields.insert(name, value);
        }
        Ok(Fields(fields))
    }
}

/// Returns what a model said, without its thoughts.
pub(crate) fn said(answer: &str) -> String {
    thoughts::split(answer).said.concat().trim().to_owned()
}

/// Returns the object in an answer; a thought before it, text and code fences around it do not matter.
///
/// # Errors
/// If there is none, for the model.
pub(crate) fn object_in(answer: &str) -> Result<Map<String, Value>, String> {
    let answer = answer.rsplit_once("</think>").map_or(answer, |(_, answer)| answer).trim();
    if let Ok(Fields(object)) = serde_json::from_str(answer) {
        return Ok(object);
    }
    let place = answer.find('{').zip(answer.rfind('}'));
    let object = place.and_then(|(start, end)| answer.get(start..=end)).ok_or("the answer holds no JSON object")?;
    let read = serde_json::from_str::<Fields>(object).map(|Fields(object)| object);
    read.map_err(|error| format!("the answer holds no JSON object that can be used: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_with_what_models_write_around_them() {
        let found = |text: &str| object_in(text).map(|object| Value::Object(object).to_string());
        for text in [
            r#"{"a":1}"#,
            " {\"a\": 1}\n",
            "```json\n{\"a\": 1}\n```",
            "Here: {\"a\": 1}. Done",
            "<think>{\"a\": 2}</think>{\"a\": 1}",
        ] {
            assert_eq!(found(text).unwrap(), r#"{"a":1}"#, "{text}");
        }
        for text in ["", "a", "[1]", "{", "}{", "{a}", "{\"a\": 1} {\"a\": 2}", "{\"a\": 1, \"a\": 2}"] {
            assert!(found(text).is_err(), "{text}");
        }
    }
}
