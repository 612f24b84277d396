//! What a model said beside its thoughts, and the JSON object in its answer: the one reader of models' JSON.

use searchmill_text::thoughts;
use searchmill_text::unambiguous::{Unambiguous, parse};
use serde_json::{Deserializer, Map, Value};

/// An answer as the model gave it.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    pub text: &'a str,
    /// Whether the limit of tokens cut it. A number or a list without brackets at its end may be a part of one.
    pub is_cut: bool,
}

/// Returns what a model said, without its thoughts.
pub fn said(answer: &str) -> String {
    thoughts::split(answer).said.concat().trim().to_owned()
}

/// Returns the object in an answer; thoughts, text and code fences around it do not matter.
///
/// # Errors
/// If there is none, more than one, or JSON that is not finished; for the model.
pub fn object_in(answer: &str) -> Result<Map<String, Value>, String> {
    // Texts in an object may name the tags of thoughts.
    if let Ok(Value::Object(object)) = parse(answer.trim()) {
        return Ok(object);
    }
    let said = said(answer);
    let (mut found, mut wrong) = (Vec::new(), None);
    let mut rest = said.as_str();
    while let Some(start) = rest.find(['{', '[']) {
        rest = &rest[start..];
        let mut values = Deserializer::from_str(rest).into_iter::<Unambiguous>();
        let read = values.next();
        let end = values.byte_offset();
        match read {
            Some(Ok(Unambiguous(value))) => {
                // The only value of a list counts like one without it.
                let only = match value {
                    Value::Array(mut items) if items.len() == 1 => items.pop(),
                    value => Some(value),
                };
                if let Some(Value::Object(object)) = only {
                    found.push(object);
                }
                rest = &rest[end..];
            }
            Some(Err(error)) if error.is_eof() => return Err("the answer ends within its JSON".to_owned()),
            // A brace of the text, or an object with a mistake.
            read => {
                let error = read.and_then(Result::err).filter(|_| rest.starts_with('{'));
                wrong = wrong.or(error.map(|error| error.to_string()));
                rest = &rest[1..];
            }
        }
    }
    // Models repeat their answer: the same object twice is one.
    found.dedup();
    match (found.pop(), wrong) {
        (Some(object), None) if found.is_empty() => Ok(object),
        (Some(_), None) => Err("the answer holds more than one JSON object".to_owned()),
        (_, Some(wrong)) => Err(format!("the answer holds no JSON object that can be used: {wrong}")),
        (None, None) => Err("the answer holds no JSON object".to_owned()),
    }
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
            "{\"a\": 2}</think>\n{\"a\": 1}",
            "<think>{\"a\": 2}</think>{\"a\": 1}<think>or {\"a\": 3",
            "{\"a\": 1}\n```json\n{\"a\": 1}\n```",
            "[{\"a\": 1}]",
            "As [1] and [2, 3] say: {\"a\": 1}",
        ] {
            assert_eq!(found(text).as_deref(), Ok(r#"{"a":1}"#), "{text}");
        }
        assert_eq!(
            found(r#"{"a": "a <think> b", "b": "</think>"}"#).as_deref(),
            Ok(r#"{"a":"a <think> b","b":"</think>"}"#)
        );
        for text in [
            "",
            "a",
            "[1]",
            "{",
            "}{",
            "{a}",
            "{\"a\": 1} {\"a\": 2}",
            "{\"a\": 1, \"a\": 2}",
            "{\"a\": {\"b\": 1, \"b\": 2}}",
        ] {
            assert!(found(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_not_finished_is_no_answer() {
        for text in [
            "<think>{\"score\": 9}",
            "<think>{\"score\": 9} is too much",
            "<think>a</think><think>{\"score\": 9}",
            "{\"score\": 9}</think>",
            "{\"score\": 9",
            "{\"by\": {\"score\": 9}",
            "[{\"score\": 9}",
            "[{\"score\": 9}, {\"score\": 8}]",
            "{\"score\": 9} or rather {\"sco",
            "```json\n{\"score\": 9, \"reason\": \"it is {\\\"score\\\": 8}",
            "{'score': 9, 'by': {\"score\": 8}}",
        ] {
            assert!(object_in(text).is_err(), "{text}");
        }
        assert!(object_in("{\"a\": 1").expect_err("cut").contains("ends within"));
    }
}
