//! Origins of column values: a field, a JSON pointer, or a template of both.

use std::borrow::Cow;

use serde_json::Value;

use super::form::Form;
use super::template::{self, Piece, Slot, lookup, top_level};

/// Where a column's value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A top-level field.
    Field(String),
    /// A JSON pointer (RFC 6901), for example `/metadata/type` or `/answers/0`.
    Pointer(String),
    /// Text with `{field}` and `{/pointer}`; `{{` and `}}` are literal braces.
    Template(Vec<Piece>),
    /// A JSON template.
    Json(Box<Form>),
}

impl Origin {
    /// Parses the text of a `columns:` entry.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("the text is empty; name a column".to_owned());
        }
        if text.contains(['{', '}']) {
            let pieces = template::parse(text)?;
            let form = Form::parse(text, &pieces);
            return Ok(form.map_or(Self::Template(pieces), |form| Self::Json(Box::new(form))));
        }
        let text = text.to_owned();
        Ok(if text.starts_with('/') { Self::Pointer(text) } else { Self::Field(text) })
    }

    /// Returns the value in a row, or null if there is none.
    ///
    /// # Errors
    /// The name of a required template field that the row lacks while it has others.
    pub fn find<'v>(&self, row: &'v Value) -> Result<Cow<'v, Value>, String> {
        Ok(match self {
            Self::Field(path) | Self::Pointer(path) => Cow::Borrowed(lookup(row, path).unwrap_or(&Value::Null)),
            Self::Template(pieces) => Cow::Owned(template::fill(pieces, row)?.map_or(Value::Null, Value::String)),
            Self::Json(form) => Cow::Owned(form.fill(row)?.unwrap_or(Value::Null)),
        })
    }

    /// Whether it is a template.
    pub fn is_template(&self) -> bool {
        matches!(self, Self::Template(_) | Self::Json(_))
    }

    /// Returns the top-level fields it may read.
    pub fn fields(&self) -> Vec<&str> {
        match self {
            Self::Field(path) | Self::Pointer(path) => vec![top_level(path)],
            Self::Template(_) | Self::Json(_) => self.slots().into_iter().flat_map(Slot::fields).collect(),
        }
    }

    /// Returns the top-level fields that at least one record must have.
    pub fn required(&self) -> Vec<&str> {
        match self {
            Self::Field(path) | Self::Pointer(path) => vec![top_level(path)],
            Self::Template(_) | Self::Json(_) => self.slots().into_iter().filter_map(Slot::required).collect(),
        }
    }

    fn slots(&self) -> Vec<&Slot> {
        match self {
            Self::Field(_) | Self::Pointer(_) => Vec::new(),
            Self::Template(pieces) => template::slots(pieces).collect(),
            Self::Json(form) => form.slots(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn find(text: &str, row: &Value) -> Result<Value, String> {
        Origin::parse(text).unwrap().find(row).map(Cow::into_owned)
    }

    #[test]
    fn fields_pointers_and_templates() {
        let row = json!({"title": "T", "body": {"text": "B"}, "n": 3});
        let find = |text: &str| find(text, &row).unwrap();
        assert_eq!(find("title"), json!("T"));
        assert_eq!(find("/body/text"), json!("B"));
        assert_eq!(find("{title}: {/body/text} ({n}) {{x}}"), json!("T: B (3) {x}"));
        assert_eq!(find("{missing}"), Value::Null);
        assert_eq!(find("nothing"), Value::Null);
    }

    #[test]
    fn a_template_needs_all_its_fields_but_the_optional_ones() {
        let row = json!({"title": "T", "empty": null, "Why?": "W"});
        assert_eq!(find("{title}\n{body}", &row), Err("body".to_owned()));
        assert_eq!(find("{title}\n{empty}", &row), Err("empty".to_owned()));
        assert_eq!(find("{title}\n{body?}", &row), Ok(json!("T\n")));
        assert_eq!(find("{title} {Why?}", &row), Ok(json!("T W")), "a field whose name ends in `?`");
        assert_eq!(find("{body} {empty}", &row), Ok(Value::Null), "none of its fields");
        let origin = Origin::parse("{title} {/meta/a} {body?}").unwrap();
        assert_eq!(origin.required(), ["title", "meta"]);
        assert_eq!(origin.fields(), ["title", "meta", "body?", "body"]);
    }

    #[test]
    fn values_in_a_json_template_are_escaped() {
        let template = r#"[{{"document_id": "{doc}", "fact": "{said?}", "n": {n?}}}]"#;
        let row = json!({"doc": "D\"1\"", "said": "C:\\x\n{}", "n": "[1]"});
        assert_eq!(find(template, &row), Ok(json!([{"document_id": "D\"1\"", "fact": "C:\\x\n{}", "n": [1]}])));
        assert_eq!(find(template, &json!({"doc": "D"})), Ok(json!([{"document_id": "D"}])));
        assert_eq!(find(template, &json!({"said": "x"})), Err("doc".to_owned()));
        assert_eq!(find(template, &json!({})), Ok(Value::Null));
        let two = r#"[{{"title": "{a}"}}, {{"title": "{b?}"}}]"#;
        assert_eq!(find(two, &json!({"a": "A"})), Ok(json!([{"title": "A"}])), "empty objects are left out");
        let text = r#"{{"say": "\"{a}\" and {b}", "always": true}}"#;
        assert_eq!(find(text, &json!({"a": "\"", "b": 2})), Ok(json!({"say": "\"\"\" and 2", "always": true})));
    }

    #[test]
    fn text_that_only_begins_like_json_stays_text() {
        let row = json!({"tag": "a\"b", "title": "T", "ids": "1, 2"});
        assert_eq!(find("[{tag}] {title}", &row), Ok(json!("[a\"b] T")));
        assert_eq!(find("[{tag}] \"{title}\"", &row), Ok(json!("[a\"b] \"T\"")));
        assert_eq!(find("[{ids}]", &row), Ok(json!("[1, 2]")));
    }

    #[test]
    fn bad_templates_are_explained() {
        for text in ["", "{", "a}b", "{}", "{a"] {
            assert!(Origin::parse(text).is_err(), "{text}");
        }
    }
}
