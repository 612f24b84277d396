//! Finds the JSON object in a model's answer.

use serde_json::{Map, Value};

/// Returns the object in an answer; a thought before it, text and code fences around it do not matter.
///
/// # Errors
/// If there is none, for the model.
pub(super) fn object_in(answer: &str) -> Result<Map<String, Value>, String> {
    let answer = answer.rsplit_once("</think>").map_or(answer, |(_, answer)| answer).trim();
    if let Ok(object) = serde_json::from_str(answer) {
        return Ok(object);
    }
    let place = answer.find('{').zip(answer.rfind('}'));
    let object = place.and_then(|(start, end)| answer.get(start..=end)).ok_or("the answer holds no JSON object")?;
    serde_json::from_str(object).map_err(|error| format!("the answer holds no JSON object: {error}"))
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
        for text in ["", "a", "[1]", "{", "}{", "{a}", "{\"a\": 1} {\"a\": 2}"] {
            assert!(found(text).is_err(), "{text}");
        }
    }
}
