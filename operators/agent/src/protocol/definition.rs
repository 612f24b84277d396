//! Definition of the search tool for native tool calls.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Definition of the search tool, in place of searchmill's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct ToolDefinition {
    /// Name of the tool (default: `tool_name`).
    pub name: Option<String>,
    /// Description that the model reads.
    pub description: String,
    /// JSON Schema of the arguments: an object with a property for the query, of type `string`, or of type `array` for
    /// several queries in one call. Other arguments are shown to the model and have no effect (`with_meta` of
    /// DeepSearch-RL).
    pub parameters: Value,
    /// Property of `parameters` with the query or the list of queries.
    pub query: String,
}

impl Default for ToolDefinition {
    fn default() -> Self {
        let description = "Search the document collection. Returns the passages that fit the query best.".to_owned();
        let parameters = json!({
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
        });
        Self { name: None, description, parameters, query: "query".to_owned() }
    }
}

impl ToolDefinition {
    /// Returns what is wrong, with paths below the definition.
    pub fn check(&self) -> Vec<(String, String)> {
        if self.parameters["type"] != "object" {
            return vec![("parameters".to_owned(), "must be a JSON Schema of type `object`".to_owned())];
        }
        if matches!(self.parameters["properties"][&self.query]["type"].as_str(), Some("string" | "array")) {
            return Vec::new();
        }
        let message = format!("`parameters` needs a property `{}` of type `string` or `array`", self.query);
        vec![("query".to_owned(), message)]
    }

    /// Whether a call holds a list of queries.
    pub(super) fn takes_a_list(&self) -> bool {
        self.parameters["properties"][&self.query]["type"] == "array"
    }

    /// Arguments of a call for these queries.
    pub(super) fn arguments(&self, queries: &[String]) -> String {
        let value = if self.takes_a_list() { json!(queries) } else { json!(queries.first()) };
        Value::Object(Map::from_iter([(self.query.clone(), value)])).to_string()
    }

    /// What a call must look like.
    pub(super) fn expected(&self) -> String {
        let value = if self.takes_a_list() { "[\"what to look for\"]" } else { "\"what to look for\"" };
        format!("write {{\"{}\": {value}}}", self.query)
    }
}

#[cfg(test)]
mod tests {
    use searchmill_schemas::{Message, Role, ToolCall};

    use super::*;
    use crate::protocol::{ProtocolParams, ProtocolSettings};

    fn definition(value: Value) -> ToolDefinition {
        serde_json::from_value(value).expect("a definition")
    }

    #[test]
    fn a_tool_of_another_system_is_offered_and_read() {
        let list = json!({"description": "Searches.", "query": "query_list", "parameters": {"type": "object",
            "properties": {"query_list": {"type": "array", "items": {"type": "string"}}}, "required": ["query_list"]}});
        let list = definition(list);
        assert!(list.check().is_empty());
        let settings =
            ProtocolSettings { tool: Some("search"), definition: Some(&list), ..ProtocolSettings::default() };
        let protocol = ProtocolParams::ToolCall.open(&settings);
        assert!(protocol.tools().contains("query_list"));
        let mut message = Message::text(Role::Assistant, "");
        let call = |arguments: &str| ToolCall { id: "c".into(), name: "search".into(), arguments: arguments.into() };
        message.tool_calls = vec![call(r#"{"query_list": ["a", "b"]}"#)];
        let actions = protocol.parse(&message);
        assert_eq!(actions.iter().map(|action| action.id.as_str()).collect::<Vec<_>>(), ["c", "c"]);
        let shown = protocol.render(actions.into_iter().map(|action| (action, Ok(Vec::new()))).collect());
        assert_eq!(shown.len(), 1, "one message answers one call");
        assert_eq!(shown[0].content, "No passages were found.\n---\nNo passages were found.");
        message.tool_calls = vec![call(r#"{"query": "a"}"#)];
        let told = protocol.parse(&message).remove(0).arguments.expect_err("a mistake");
        assert!(told.contains("needs a list of texts `query_list`"), "{told}");
        assert_eq!(list.arguments(&["a".to_owned(), "b".to_owned()]), r#"{"query_list":["a","b"]}"#);
    }

    #[test]
    fn a_schema_without_the_query_is_an_issue() {
        let paths = |value| definition(value).check().into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        assert!(paths(json!({})).is_empty());
        assert_eq!(paths(json!({"query": "q"})), ["query"]);
        assert_eq!(paths(json!({"parameters": {"type": "array"}})), ["parameters"]);
    }
}
