//! Tool definitions as a chat template is given them.

use indexmap::IndexMap;
use searchmill_text::json::Json;

/// The tools of a JSON list, their keys in the order in which servers hand them to chat templates.
///
/// # Errors
/// When it is no such list.
pub fn parse_tools(text: &str) -> Result<Vec<Json>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let unfit = |reason: &str| format!("the tool definitions are not a JSON list: {reason}");
    match Json::parse(text) {
        Ok(Json::List(tools)) => Ok(tools.into_iter().map(served).collect()),
        Ok(_) => Err(unfit("something else was found")),
        Err(error) => Err(unfit(&error)),
    }
}

/// A tool definition with its keys in the order in which OpenAI-compatible servers hand it to the chat template, whatever
/// order it was sent in (vLLM reads it into a model of `type` and `function`, that into one of `name`, `description` and
/// `parameters`; what is in `parameters` stays as it was). The trained prompt is then the served one.
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

/// The entries with these keys first, as far as they are there.
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
