//! Conversations as other programs write them. The messages of OpenAI's chat API and its variants become messages of
//! trajectories: calls in `function`, as JSON text, flat or in the text of the model; contents that are null or a list of
//! parts; other names of roles.

use std::borrow::Cow;
use std::collections::VecDeque;

use searchmill_schemas::Role;
use serde_json::{Map, Value};

use super::strict;

/// What a list of calls should be.
const CALLS: &str = r#"expected a list of calls, each `{"id": …, "function": {"name": …, "arguments": …}}`"#;

const CALL_TAGS: [&str; 2] = ["<tool_call>", "</tool_call>"];
const RESULT_TAGS: [&str; 2] = ["<tool_response>", "</tool_response>"];

/// Remark on messages whose text holds calls.
pub(super) const CALLS_READ: &str =
    "calls in the text of the model (`<tool_call>{…}</tool_call>`) were read as tool calls";
/// Remark on messages whose text may hold calls.
pub(super) const CALLS_LEFT: &str = "warning: some messages have `<tool_call>` in their text without a call in JSON \
                                     (`{\"name\": …, \"arguments\": {…}}`): they were read as text";

/// Messages of a trajectory.
pub(super) struct Conversation {
    /// The messages, with the fields that messages of trajectories have.
    pub messages: Value,
    /// What should be told about their calls.
    pub remark: Option<&'static str>,
}

/// Reads a list of messages. `calls_in_text`: whether calls may stand in the text of the model.
///
/// # Errors
/// What is wrong, with its place.
pub(super) fn read(value: &Value, calls_in_text: bool) -> Result<Conversation, String> {
    let value = parsed("messages", value, "expected a list of messages")?;
    // Other values do not fit the column, which says so.
    let Value::Array(items) = value.as_ref() else {
        return Ok(Conversation { messages: value.into_owned(), remark: None });
    };
    let mut reader = Messages { calls_in_text, ..Messages::default() };
    for (at, item) in items.iter().enumerate() {
        reader.add(&format!("messages[{at}]"), item)?;
    }
    let messages = reader.done.into_iter().map(Value::Object).collect();
    Ok(Conversation { messages: Value::Array(messages), remark: reader.remark })
}

/// Returns a value that may be written as JSON text.
fn parsed<'v>(path: &str, value: &'v Value, expected: &str) -> Result<Cow<'v, Value>, String> {
    let Value::String(text) = value else { return Ok(Cow::Borrowed(value)) };
    match strict::value(text.as_bytes()) {
        Ok(value) => Ok(Cow::Owned(value)),
        Err(fault) => Err(format!("`{path}` is a text that is {}; {expected}", fault.message)),
    }
}

type Fields = Map<String, Value>;

#[derive(Default)]
struct Messages {
    done: Vec<Map<String, Value>>,
    /// Calls without a result.
    open: VecDeque<Open>,
    /// Number of made-up ids.
    named: usize,
    calls_in_text: bool,
    /// Whether the last message of the model had calls in its text.
    called_in_text: bool,
    remark: Option<&'static str>,
}

/// A call without a result.
struct Open {
    /// Place of its message.
    message: usize,
    /// Its place in the message.
    call: usize,
    /// Whether its id is made up.
    is_made_up: bool,
}

impl Messages {
    fn add(&mut self, path: &str, item: &Value) -> Result<(), String> {
        let Value::Object(mut fields) = parsed(path, item, "expected a message")?.into_owned() else {
            return Err(format!("`{path}` is not an object"));
        };
        // Fields of the API that a message does not use.
        fields.retain(|_, value| !value.is_null());
        // ShareGPT's names.
        let is_share = !fields.contains_key("role") && fields.contains_key("from");
        let Some(Value::String(name)) = fields.remove(if is_share { "from" } else { "role" }) else {
            return Err(format!("`{path}` has no `role`"));
        };
        let content = fields.remove(if is_share { "value" } else { "content" });
        let role = match name.as_str() {
            "system" | "developer" => Role::System,
            "user" | "human" => Role::User,
            "assistant" | "gpt" | "model" => return self.add_model(path, fields, content),
            "tool" | "function" | "observation" | "tool_response" | "ipython" => Role::Tool,
            "tool_call" | "function_call" => return self.add_call(path, content.as_ref()),
            _ => return Err(format!("`{path}.role` is `{name}`, not system, user, assistant or tool")),
        };
        self.add_other(path, role, fields, content)
    }

    /// Adds a message of the model.
    fn add_model(&mut self, path: &str, mut fields: Fields, content: Option<Value>) -> Result<(), String> {
        let mut calls = match fields.remove("tool_calls").or_else(|| fields.remove("function_call")) {
            Some(value) => calls(&format!("{path}.tool_calls"), &value)?,
            None => Vec::new(),
        };
        let (mut text, thought) = contents(path, content.as_ref())?;
        // Servers name it differently; a second name would be a field that no message has.
        let reasoning = fields.remove("reasoning_content").or_else(|| fields.remove("thinking"));
        let reasoning = fields.remove("reasoning").or(reasoning).or(thought.map(Value::String));
        if let Some(reasoning) = reasoning {
            fields.insert("reasoning".to_owned(), reasoning);
        }
        self.called_in_text = false;
        if self.calls_in_text && calls.is_empty() && text.contains(CALL_TAGS[0]) {
            if let Some((before, found)) = calls_of_text(&text) {
                (text, calls, self.called_in_text) = (before, found, true);
                self.remark = self.remark.or(Some(CALLS_READ));
            } else {
                self.remark = Some(CALLS_LEFT);
            }
        }
        // Results after this message belong to its calls.
        self.open.clear();
        self.push(Role::Assistant, fields, text);
        for call in calls {
            self.push_call(call);
        }
        Ok(())
    }

    /// Adds a call that is a message of its own, to the message of the model before it.
    fn add_call(&mut self, path: &str, content: Option<&Value>) -> Result<(), String> {
        let found = calls(path, content.unwrap_or(&Value::Null))?;
        if found.is_empty() {
            return Err(format!("`{path}` has no call; {CALLS}"));
        }
        let last_role = self.done.last().and_then(|message| message.get("role")?.as_str());
        if last_role != Some(Role::Assistant.name()) {
            self.open.clear();
            self.push(Role::Assistant, Map::new(), String::new());
        }
        for call in found {
            self.push_call(call);
        }
        Ok(())
    }

    /// Adds a message that the model did not write.
    fn add_other(&mut self, path: &str, role: Role, mut fields: Fields, content: Option<Value>) -> Result<(), String> {
        let Some(content) = content else { return Err(format!("`{path}.content` is missing")) };
        let (text, _) = contents(path, Some(&content))?;
        // Results of calls in the text are texts of the user.
        if role == Role::User
            && self.called_in_text
            && let Some((before, results)) = blocks(&text, RESULT_TAGS)
            && before.trim().is_empty()
        {
            for result in results {
                let result = result.strip_prefix('\n').unwrap_or(&result);
                let result = result.strip_suffix('\n').unwrap_or(result).to_owned();
                self.push_result(Map::new(), result);
            }
            return Ok(());
        }
        if role == Role::Tool {
            // The name of the tool is that of its call.
            fields.remove("name");
            self.push_result(fields, text);
        } else {
            self.push(role, fields, text);
        }
        Ok(())
    }

    fn push(&mut self, role: Role, mut fields: Map<String, Value>, content: String) {
        fields.insert("role".to_owned(), role.name().into());
        fields.insert("content".to_owned(), content.into());
        self.done.push(fields);
    }

    /// Adds a call to the last message.
    fn push_call(&mut self, mut call: Map<String, Value>) {
        let is_named = call.contains_key("id");
        if !is_named {
            call.insert("id".to_owned(), format!("call_{}", self.named).into());
            self.named += 1;
        }
        let message = self.done.len().saturating_sub(1);
        let Some(fields) = self.done.last_mut() else { return };
        let list = fields.entry("tool_calls").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.push(Value::Object(call));
            self.open.push_back(Open { message, call: list.len() - 1, is_made_up: !is_named });
        }
    }

    /// Adds a result. Without the id of its call it belongs to the first call that has none yet.
    fn push_result(&mut self, mut fields: Map<String, Value>, content: String) {
        let own_id = fields.get("tool_call_id").cloned();
        let known = self.open.iter().position(|open| own_id.is_none() || self.id_of(open) == own_id.as_ref());
        // A call without an id may be the one that the result names.
        let position = known.or_else(|| self.open.iter().position(|open| open.is_made_up));
        if let Some(position) = position
            && let Some(open) = self.open.remove(position)
        {
            if let Some(id) = own_id {
                if let Some(calls) = self.done[open.message].get_mut("tool_calls")
                    && let Some(Value::Object(call)) = calls.get_mut(open.call)
                {
                    call.insert("id".to_owned(), id);
                }
            } else if let Some(id) = self.id_of(&open) {
                fields.insert("tool_call_id".to_owned(), id.clone());
            }
        }
        self.push(Role::Tool, fields, content);
    }

    fn id_of(&self, open: &Open) -> Option<&Value> {
        self.done[open.message].get("tool_calls")?.get(open.call)?.get("id")
    }
}

/// Returns the text and the reasoning of a content.
fn contents(path: &str, content: Option<&Value>) -> Result<(String, Option<String>), String> {
    let parts = match content {
        None | Some(Value::Null) => return Ok((String::new(), None)),
        Some(Value::String(text)) => return Ok((text.clone(), None)),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Ok((other.to_string(), None)),
    };
    let (mut text, mut reasoning) = (String::new(), String::new());
    for (at, part) in parts.iter().enumerate() {
        if let Value::String(part) = part {
            text.push_str(part);
            continue;
        }
        match (part["type"].as_str(), part["text"].as_str()) {
            (None | Some("text" | "input_text" | "output_text"), Some(part)) => text.push_str(part),
            (Some("reasoning" | "thinking"), own_text) => {
                let thought = part["reasoning"].as_str().or(part["thinking"].as_str()).or(own_text);
                reasoning.push_str(thought.unwrap_or_default());
            }
            (kind, _) => {
                let kind = kind.unwrap_or("other");
                return Err(format!("`{path}.content[{at}]` is a part of type `{kind}`; only texts can be read"));
            }
        }
    }
    Ok((text, if reasoning.is_empty() { None } else { Some(reasoning) }))
}

/// Reads calls with `id`, `name` and `arguments`.
fn calls(path: &str, value: &Value) -> Result<Vec<Map<String, Value>>, String> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) if text.trim().is_empty() => Ok(Vec::new()),
        Value::String(_) => calls(path, parsed(path, value, CALLS)?.as_ref()),
        Value::Object(call) => Ok(vec![one_call(path, call)?]),
        Value::Array(items) => {
            let mut found = Vec::with_capacity(items.len());
            for (at, item) in items.iter().enumerate() {
                let path = format!("{path}[{at}]");
                match parsed(&path, item, CALLS)?.as_ref() {
                    Value::Object(call) => found.push(one_call(&path, call)?),
                    _ => return Err(format!("`{path}` is no call; {CALLS}")),
                }
            }
            Ok(found)
        }
        _ => Err(format!("`{path}` holds no calls; {CALLS}")),
    }
}

fn one_call(path: &str, call: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let function = call.get("function").and_then(Value::as_object).unwrap_or(call);
    // Some programs write the name alone into `function`.
    let name = match function.get("name").or(call.get("function")) {
        Some(Value::String(name)) if !name.is_empty() => name.as_str(),
        _ => return Err(format!("`{path}` has no `name`; {CALLS}")),
    };
    let arguments = ["arguments", "args", "parameters", "input"].into_iter().find_map(|field| function.get(field));
    let arguments = match arguments {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) => String::new(),
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(_) => return Err(format!("the arguments of `{path}` are neither an object nor its JSON text; {CALLS}")),
        None => return Err(format!("`{path}` has no `arguments`; {CALLS}")),
    };
    let mut read = Map::new();
    match ["id", "call_id", "tool_call_id"].into_iter().find_map(|field| call.get(field)) {
        Some(Value::String(id)) if !id.is_empty() => drop(read.insert("id".to_owned(), id.as_str().into())),
        Some(Value::Number(id)) => drop(read.insert("id".to_owned(), id.to_string().into())),
        _ => {}
    }
    read.insert("name".to_owned(), name.into());
    read.insert("arguments".to_owned(), arguments.into());
    Ok(read)
}

/// Returns the calls at the end of a text of the model, behind its thoughts, and the text before them.
fn calls_of_text(text: &str) -> Option<(String, Vec<Map<String, Value>>)> {
    let start = text.rfind("</think>").map_or(0, |end| end + "</think>".len());
    let (thoughts, answer) = text.split_at(start);
    // Thoughts without an end: what looks like a call may be one that the model only considered.
    if answer.contains("<think>") {
        return None;
    }
    let (before, blocks) = blocks(answer, CALL_TAGS)?;
    let mut found = Vec::new();
    for block in blocks {
        let Ok(Value::Object(call)) = strict::value(block.trim().as_bytes()) else { return None };
        if !matches!(call.get("arguments"), Some(Value::Object(_))) {
            return None;
        }
        found.push(one_call("", &call).ok()?);
    }
    Some((format!("{thoughts}{before}").trim_end().to_owned(), found))
}

/// Returns what stands between the tags, if the text ends with such blocks, and the text before them.
fn blocks<'a>(text: &'a str, [open, close]: [&str; 2]) -> Option<(&'a str, Vec<String>)> {
    let (before, mut rest) = text.split_at(text.find(open)?);
    let mut found = Vec::new();
    while !rest.trim().is_empty() {
        let (inside, after) = rest.trim_start().strip_prefix(open)?.split_once(close)?;
        found.push(inside.to_owned());
        rest = after;
    }
    Some((before, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(given: &Value) -> Result<Value, String> {
        read(given, true).map(|conversation| conversation.messages)
    }

    fn called(calls: &Value, content: &Value) -> Result<Value, String> {
        let result = json!({"role": "tool", "tool_call_id": "c1", "content": "found"});
        messages(&json!([{"role": "assistant", "content": content, "tool_calls": calls}, result]))
    }

    #[test]
    fn calls_of_every_form_are_the_same() {
        let arguments = r#"{"query":"x"}"#;
        let call = json!({"id": "c1", "type": "function", "function": {"name": "search", "arguments": arguments}});
        let object =
            json!({"id": "c1", "type": "function", "function": {"name": "search", "arguments": {"query": "x"}}});
        let flat = json!({"id": "c1", "name": "search", "arguments": arguments});
        let named = json!({"id": "c1", "function": "search", "arguments": {"query": "x"}});
        let unnamed = json!({"function": {"name": "search", "arguments": {"query": "x"}}});
        let expected = json!([
            {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "search", "arguments": arguments}]},
            {"role": "tool", "tool_call_id": "c1", "content": "found"}]);
        for form in [
            json!([call]),
            json!([object]),
            json!([flat]),
            json!([named]),
            json!([unnamed]),
            json!([call.to_string()]),
            json!(json!([call]).to_string()),
            call.clone(),
        ] {
            for content in [json!(""), json!(null), json!([]), json!([{"type": "text", "text": ""}])] {
                assert_eq!(called(&form, &content).unwrap(), expected, "{form}");
            }
        }
    }

    #[test]
    fn what_is_no_call_is_named_with_its_place() {
        let fault = |calls: Value| called(&calls, &json!("")).unwrap_err();
        assert!(fault(json!("[{")).starts_with("`messages[0].tool_calls` is a text that is not valid JSON"));
        assert!(fault(json!([{"id": "c1"}])).starts_with("`messages[0].tool_calls[0]` has no `name`; expected a list"));
        assert!(fault(json!([{"name": "search"}])).contains("`messages[0].tool_calls[0]` has no `arguments`"));
        assert!(fault(json!([{"name": "search", "arguments": [1]}])).contains("neither an object nor its JSON text"));
        assert!(fault(json!(["x"])).contains("tool_calls[0]"));
        let fault = |message: Value| messages(&json!([message])).unwrap_err();
        assert!(fault(json!({"role": "critic", "content": "x"})).contains("`messages[0].role` is `critic`"));
        assert!(fault(json!({"role": "user", "content": null})).contains("`messages[0].content` is missing"));
        assert!(fault(json!({"role": "user", "content": [{"type": "image_url"}]})).contains("of type `image_url`"));
    }

    #[test]
    fn results_without_ids_belong_to_the_calls_in_their_order() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {}}});
        let told = |content: &str| json!({"role": "tool", "name": "t", "content": content});
        let made = messages(&json!([
            {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]}, told("1"), told("2"),
            {"role": "assistant", "content": "", "tool_calls": [call("c")]}, told("3")]));
        let made = made.unwrap();
        let ids: Vec<&str> = [1, 2, 4].iter().map(|at| made[at]["tool_call_id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["call_0", "call_1", "call_2"]);
        assert_eq!(made[3]["tool_calls"][0]["id"], json!("call_2"));
    }

    #[test]
    fn parts_reasoning_and_other_names_of_roles() {
        let made = messages(&json!([
            {"from": "human", "value": "Who?"},
            {"role": "developer", "content": [{"type": "text", "text": "a"}, "b"]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "R"}, {"type": "text", "text": "A"}]},
            {"role": "tool_call", "content": "{\"name\": \"search\", \"arguments\": {\"query\": \"x\"}}"},
            {"role": "tool_response", "content": "found"},
            {"role": "assistant", "content": null, "reasoning_content": "S", "refusal": null}]));
        let made = made.unwrap();
        assert_eq!(made.as_array().unwrap().len(), 5, "the call belongs to the message before it");
        assert_eq!((&made[0]["role"], &made[1]["content"]), (&json!("user"), &json!("ab")));
        assert_eq!((&made[2]["reasoning"], &made[2]["content"]), (&json!("R"), &json!("A")));
        assert_eq!(made[2]["tool_calls"][0]["name"], json!("search"));
        assert_eq!(made[3]["tool_call_id"], made[2]["tool_calls"][0]["id"]);
        assert_eq!(made[4], json!({"role": "assistant", "content": "", "reasoning": "S"}));
    }

    #[test]
    fn calls_in_the_text_are_calls_if_they_are_json() {
        let said = |text: &str| {
            json!([{"role": "assistant", "content": text},
            {"role": "user", "content": "<tool_response>\nfound\n</tool_response>"}])
        };
        let call = "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"x\"}}\n</tool_call>";
        let made = read(&said(&format!("<think>a <tool_call> b</think>I look.\n{call}")), true).unwrap();
        assert_eq!(made.messages[0]["content"], json!("<think>a <tool_call> b</think>I look."));
        assert_eq!(made.messages[0]["tool_calls"][0]["arguments"], json!("{\"query\":\"x\"}"));
        assert_eq!((&made.messages[1]["role"], &made.messages[1]["content"]), (&json!("tool"), &json!("found")));
        assert_eq!(made.remark, Some(CALLS_READ));
        for left in
            ["<tool_call> x </tool_call>", "<tool_call>{\"name\"", &format!("{call} more"), &format!("<think>{call}")]
        {
            let made = read(&said(left), true).unwrap();
            assert_eq!((made.messages, made.remark), (said(left), Some(CALLS_LEFT)), "{left}");
        }
        assert_eq!(read(&said(call), false).unwrap().remark, None, "the protocol says what is a call");
    }
}
