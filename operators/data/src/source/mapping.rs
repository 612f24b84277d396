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
    /// A text with several values, cut at a separator: a list of those that are not empty, without space around them.
    Split(Box<Origin>, String),
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

    /// Cuts texts of this origin at a separator.
    #[must_use]
    pub fn split_at(self, separator: &str) -> Self {
        Self::Split(Box::new(self), separator.to_owned())
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
            Self::Split(origin, separator) => split(origin.find(row)?, separator),
        })
    }

    /// Whether it is a template.
    pub fn is_template(&self) -> bool {
        match self {
            Self::Template(_) | Self::Json(_) => true,
            Self::Split(origin, _) => origin.is_template(),
            Self::Field(_) | Self::Pointer(_) => false,
        }
    }

    /// Returns the top-level fields it may read.
    pub fn fields(&self) -> Vec<&str> {
        match self {
            Self::Field(path) | Self::Pointer(path) => vec![top_level(path)],
            Self::Split(origin, _) => origin.fields(),
            Self::Template(_) | Self::Json(_) => self.slots().into_iter().flat_map(Slot::fields).collect(),
        }
    }

    /// Returns the top-level fields that at least one record must have.
    pub fn required(&self) -> Vec<&str> {
        match self {
            Self::Field(path) | Self::Pointer(path) => vec![top_level(path)],
            Self::Split(origin, _) => origin.required(),
            Self::Template(_) | Self::Json(_) => self.slots().into_iter().filter_map(Slot::required).collect(),
        }
    }

    fn slots(&self) -> Vec<&Slot> {
        match self {
            Self::Field(_) | Self::Pointer(_) => Vec::new(),
            Self::Template(pieces) => template::slots(pieces).collect(),
            Self::Json(form) => form.slots(),
            Self::Split(origin, _) => origin.slots(),
        }
    }
}

/// Cuts a text into a list; other values stay.
fn split<'v>(value: Cow<'v, Value>, separator: &str) -> Cow<'v, Value> {
    let Value::String(text) = value.as_ref() else { return value };
    let parts = text.split(separator).map(str::trim);
    Cow::Owned(parts.filter(|part| !part.is_empty()).collect())
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
    fn texts_are_cut_into_lists_and_other_values_stay() {
        let row =
            json!({"answers": " Rome | Roma||the capital", "one": "Rome", "none": "", "number": 12, "list": ["a|b"]});
        let find = |field: &str| Origin::parse(field).unwrap().split_at("|").find(&row).unwrap().into_owned();
        assert_eq!(find("answers"), json!(["Rome", "Roma", "the capital"]));
        assert_eq!((find("one"), find("none"), find("nothing")), (json!(["Rome"]), json!([]), Value::Null));
        assert_eq!((find("number"), find("list")), (json!(12), json!(["a|b"])));
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
