//! Form of the query between the tags of a text protocol.

use schemars::JsonSchema;
use searchmill_text::unambiguous;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// How the text between the search tags is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueryForm {
    /// The text is the query.
    #[default]
    Text,
    /// Keywords: quotation marks are dropped, white space is collapsed (R1-Searcher).
    Keywords,
    /// A JSON call `{"name": …, "arguments": {"query_list": […]}}`, or with `query`. Text that is not JSON is a query
    /// itself.
    Call,
}

/// What separates the results of several queries (verl's search tool).
pub(super) const SEPARATOR: &str = "\n---\n";

impl QueryForm {
    /// Returns the queries, or an error for the model.
    pub(super) fn read(self, text: &str) -> Result<Vec<String>, String> {
        let text = text.trim();
        let queries = match self {
            Self::Text => vec![text.to_owned()],
            Self::Keywords => vec![keywords(text)],
            Self::Call => match serde_json::from_str::<Value>(text) {
                // Read again: a call that is ambiguous is an error, and not a query by itself.
                Ok(Value::Object(_)) => listed(&unambiguous::parse(text).map_err(|error| error.to_string())?)?,
                _ => vec![text.to_owned()],
            },
        };
        if queries.is_empty() || queries.iter().any(|query| query.trim().is_empty()) {
            return Err("the query is empty".to_owned());
        }
        Ok(queries)
    }

    /// Writes queries between the tags.
    pub(super) fn write(self, queries: &[String]) -> String {
        let first = queries.first().map_or("", |query| query.as_str());
        match self {
            Self::Text => format!(" {first} "),
            Self::Keywords => format!(" {}", keywords(first)),
            Self::Call => format!("\n{}\n", json!({"name": "search", "arguments": {"query_list": queries}})),
        }
    }
}

/// A query without quotation marks, its words separated by single spaces.
fn keywords(text: &str) -> String {
    text.replace('"', "").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Queries of a JSON call.
fn listed(call: &Value) -> Result<Vec<String>, String> {
    const FORM: &str = "the call needs {\"arguments\": {\"query_list\": [\"what to look for\"]}}";
    // Models know both names of the arguments, or leave the object around them out.
    let arguments = call.get("arguments").or(call.get("parameters")).unwrap_or(call);
    let items = match arguments.get("query_list").or(arguments.get("query")) {
        Some(Value::Array(items)) => items.as_slice(),
        Some(query) => std::slice::from_ref(query),
        None => return Err(FORM.to_owned()),
    };
    let queries: Option<Vec<String>> = items.iter().map(|item| Some(item.as_str()?.trim().to_owned())).collect();
    Ok(queries.ok_or(FORM)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_in_every_form() {
        let read = |form: QueryForm, text| form.read(text).map(|queries| queries.join("|"));
        assert_eq!(read(QueryForm::Text, " who \n"), Ok("who".to_owned()));
        assert_eq!(read(QueryForm::Keywords, " \"a  b\"\tc "), Ok("a b c".to_owned()));
        let call = r#"{"name": "search", "arguments": {"query_list": ["a", " b "]}}"#;
        assert_eq!(read(QueryForm::Call, call), Ok("a|b".to_owned()));
        assert_eq!(read(QueryForm::Call, r#"{"arguments": {"query": "a"}}"#), Ok("a".to_owned()));
        assert!(read(QueryForm::Call, r#"{"query": "a", "query": "b"}"#).is_err_and(|error| error.contains("twice")));
        assert_eq!(read(QueryForm::Call, "plain words"), Ok("plain words".to_owned()));
        assert!(read(QueryForm::Call, r#"{"arguments": {"q": "a"}}"#).is_err_and(|error| error.contains("query_list")));
        for form in [QueryForm::Text, QueryForm::Keywords, QueryForm::Call] {
            assert_eq!(read(form, "  "), Err("the query is empty".to_owned()));
            let queries = ["a b".to_owned()];
            assert_eq!(form.read(&form.write(&queries)), Ok(queries.to_vec()));
        }
    }
}
