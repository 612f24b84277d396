//! Tools beside the search tool, as the model sees them.

use searchmill_schemas::ToolCall;
use searchmill_text::unambiguous;
use serde_json::{Value, json};

/// A tool beside the search tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOffer {
    /// Name, unique in a conversation.
    pub name: String,
    /// Description that the model reads.
    pub description: String,
    /// JSON Schema of the arguments, an object.
    pub parameters: Value,
}

/// A call of such a tool.
#[derive(Clone, Copy, Debug)]
pub struct OfferedCall<'a> {
    /// Id that the model gave the call.
    pub id: &'a str,
    /// Name of the tool.
    pub tool: &'a str,
    /// Its arguments, a JSON object.
    pub arguments: &'a Value,
}

impl<'a> OfferedCall<'a> {
    /// Returns the call behind an action's arguments; `None` for a search.
    pub fn of(arguments: &'a Value) -> Option<Self> {
        let (id, tool) = (arguments.get("id")?.as_str()?, arguments.get("tool")?.as_str()?);
        Some(Self { id, tool, arguments: arguments.get("arguments")? })
    }
}

impl ToolOffer {
    /// Reads a recorded tool definition.
    pub fn read(tool: &Value) -> Option<Self> {
        let function = tool.get("function")?;
        let (name, description) = (function.get("name")?.as_str()?, function.get("description")?.as_str()?);
        let parameters = function.get("parameters")?.clone();
        Some(Self { name: name.to_owned(), description: description.to_owned(), parameters })
    }

    /// Definition for the chat API.
    pub(super) fn definition(&self) -> Value {
        let Self { name, description, parameters } = self;
        json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
    }

    /// Reads the arguments of a call: the form that [`OfferedCall::of`] reads, or an error for the model.
    pub(super) fn call(&self, call: &ToolCall) -> Result<Value, String> {
        let arguments = unambiguous::parse(call.written())
            .map_err(|error| format!("the arguments of `{}` are not valid JSON ({error})", self.name))?;
        if !arguments.is_object() {
            return Err(format!("the arguments of `{}` must be a JSON object", self.name));
        }
        self.check(&arguments).map_err(|error| format!("{error} of the tool `{}`", self.name))?;
        // By the id and the tool, `OfferedCall::of` tells them from the arguments of a search.
        Ok(json!({"id": call.id, "tool": self.name, "arguments": arguments}))
    }

    /// Checks that required arguments are there, and that the types of all fit.
    fn check(&self, arguments: &Value) -> Result<(), String> {
        if let Some(name) = self.required().find(|name| arguments.get(name).is_none()) {
            return Err(format!("`{name}` is missing: it is a required argument"));
        }
        let properties = self.parameters.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten() {
            if let Some(value) = arguments.get(name) {
                fits(value, property).map_err(|expected| format!("`{name}` must be {expected}, as an argument"))?;
            }
        }
        // Unless the schema says so, further arguments are allowed (JSON Schema's default).
        let is_closed = self.parameters.get("additionalProperties") == Some(&Value::Bool(false));
        if is_closed && let Some(arguments) = arguments.as_object() {
            for name in arguments.keys() {
                if !properties.is_some_and(|properties| properties.contains_key(name)) {
                    return Err(format!("`{name}` is no argument"));
                }
            }
        }
        Ok(())
    }

    /// Names of the required arguments.
    fn required(&self) -> impl Iterator<Item = &str> {
        let required = self.parameters.get("required").and_then(Value::as_array);
        required.into_iter().flatten().filter_map(Value::as_str)
    }

    /// The argument that takes a query: `query`, `q`, or the only required text.
    fn query_argument(&self) -> Option<&str> {
        let properties = self.parameters.get("properties")?.as_object()?;
        let mut texts = Vec::new();
        // The names that search tools commonly use, before any other.
        for name in ["query", "q"].into_iter().chain(self.required()) {
            let Some(property) = properties.get(name) else { continue };
            if property["type"] != "string" {
                continue;
            }
            if matches!(name, "query" | "q") {
                return Some(name);
            }
            texts.push(name);
        }
        if let [only] = texts.as_slice() { Some(only) } else { None }
    }

    /// Whether the tool searches: it takes a query.
    pub fn takes_query(&self) -> bool {
        self.query_argument().is_some()
    }

    /// Returns the arguments of a search with this tool, if it takes a query.
    pub(crate) fn asking(&self, query: &str) -> Option<Value> {
        let argument = self.query_argument()?;
        Some(json!({argument: query}))
    }
}

/// Whether a value has the type, or is one of the values, that a JSON Schema names. Other keywords are the server's.
fn fits(value: &Value, schema: &Value) -> Result<(), String> {
    if let Some(values) = schema.get("enum").and_then(Value::as_array)
        && !values.contains(value)
    {
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        return Err(format!("one of {}", values.join(", ")));
    }
    let kinds: Vec<&str> = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return Ok(()),
    };
    if kinds.iter().any(|kind| is_of(value, kind)) {
        return Ok(());
    }
    Err(format!("of the type {}", kinds.join(" or ")))
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        // JSON Schema counts 1.0 as an integer.
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        // A type that JSON Schema does not have is left to the server.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> ToolOffer {
        let parameters = json!({"type": "object", "properties": {"url": {"type": "string"},
            "page": {"type": ["integer", "null"]}, "kind": {"enum": ["html", "text"]}}, "required": ["url"],
            "additionalProperties": false});
        ToolOffer { name: "fetch".to_owned(), description: "Fetches.".to_owned(), parameters }
    }

    #[test]
    fn arguments_are_checked_against_the_schema() {
        let read = |arguments: &str| {
            let call = ToolCall { id: "c".to_owned(), name: "fetch".to_owned(), arguments: arguments.to_owned() };
            offer().call(&call)
        };
        let call = read(r#"{"url": "u", "page": 2}"#).expect("a call");
        let call = OfferedCall::of(&call).expect("a call");
        assert_eq!((call.id, call.tool, call.arguments["page"].as_i64()), ("c", "fetch", Some(2)));
        for (arguments, told) in [
            ("{\"url\": ", "not valid JSON"),
            (r#"{"url": "u", "url": "v"}"#, "the field `url` is there twice"),
            ("[]", "must be a JSON object"),
            ("", "`url` is missing"),
            (r#"{"url": 3}"#, "`url` must be of the type string"),
            (r#"{"url": "u", "page": 1.5}"#, "`page` must be of the type integer or null"),
            (r#"{"url": "u", "kind": "pdf"}"#, "`kind` must be one of \"html\", \"text\""),
            (r#"{"url": "u", "more": 1}"#, "`more` is no argument of the tool `fetch`"),
        ] {
            let error = read(arguments).expect_err("a mistake");
            assert!(error.contains(told), "{arguments}: {error}");
        }
    }

    #[test]
    fn a_definition_is_read_back_and_a_search_of_the_model_is_no_offered_call() {
        assert_eq!(ToolOffer::read(&offer().definition()), Some(offer()));
        assert_eq!(offer().asking("Rome").expect("arguments").to_string(), r#"{"url":"Rome"}"#);
        assert!(OfferedCall::of(&json!({"query": "tool"})).is_none());
    }
}
