//! Tool definitions as passed to chat templates.

use indexmap::IndexMap;
use searchmill_text::json::Json;

/// Parses a JSON list of tools, with their keys in the order in which servers pass them to chat templates.
///
/// # Errors
/// When the text is not a JSON list.
pub fn parse_tools(text: &str) -> Result<Vec<Json>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    match Json::parse(text) {
        Ok(Json::List(tools)) => Ok(tools.into_iter().map(served).collect()),
        Ok(_) => Err("the tool definitions are not a JSON list: something else was found".to_owned()),
        Err(error) => Err(format!("the tool definitions are not a JSON list: {error}")),
    }
}

/// Orders the keys of a tool definition as OpenAI-compatible servers pass it to the chat template, so that the training prompt
/// equals the served one. vLLM reads it as `type` and `function`, the latter as `name`, `description` and `parameters`;
/// the content of `parameters` is unchanged.
fn served(tool: Json) -> Json {
    match tool {
        Json::Object(entries) if entries.contains_key("function") => {
            let mut ordered = led_by(entries, &["type", "function"]);
            if let Some(Json::Object(function)) = ordered.get_mut("function") {
                *function = led_by(std::mem::take(function), &["name", "description", "parameters"]);
            }
            Json::Object(ordered)
        }
        Json::Object(entries) => Json::Object(led_by(entries, &["type", "name", "description", "parameters"])),
        other => other,
    }
}

/// Moves the entries with these keys to the front, if present.
fn led_by(mut entries: IndexMap<String, Json>, keys: &[&str]) -> IndexMap<String, Json> {
    let mut ordered: IndexMap<String, Json> = keys.iter().filter_map(|key| entries.shift_remove_entry(*key)).collect();
    ordered.extend(entries);
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_stand_as_servers_hand_them_to_the_template() {
        let sorted = r#"[{"function":{"description":"d","name":"f","parameters":{"b":1,"a":2},"strict":true},"type":"function"},
                         {"parameters":{},"name":"bare"}]"#;
        let written: Vec<String> = parse_tools(sorted).expect("tools").iter().map(Json::write).collect();
        assert_eq!(
            written,
            [
                r#"{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"b": 1, "a": 2}, "strict": true}}"#,
                r#"{"name": "bare", "parameters": {}}"#,
            ]
        );
        assert!(parse_tools(" ").expect("none").is_empty());
    }
}
