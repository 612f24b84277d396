//! Protocol `tool_call`: searches are native tool calls of the chat API, passages are returned as plain text, and the
//! answer is between `<answer>` and `</answer>` in the model's last message.

use searchmill_retrieval::Found;
use searchmill_schemas::{Message, Observation, Role, ToolCall};
use searchmill_text::thoughts;
use serde_json::{Value, json};

use super::contract::{Action, INSUFFICIENT, Protocol, ProtocolSettings};
use crate::tool::ToolResult;

const DESCRIPTION: &str = "Search the document collection. Returns the passages that fit the query best.";

/// Prompts and tool definitions of this protocol.
#[derive(Clone, Debug)]
pub(super) struct ToolCallProtocol {
    /// Name of the search tool; `None` for the closed-book baseline.
    tool: Option<String>,
    system_prompt: String,
    /// Tool definitions as a JSON list.
    tools: String,
}

impl ToolCallProtocol {
    pub(super) fn new(settings: &ProtocolSettings<'_>) -> Self {
        let own_prompt = || match settings.tool {
            Some(tool) => search_prompt(tool, settings.max_searches),
            None => CLOSED_BOOK_PROMPT.to_owned(),
        };
        Self {
            tool: settings.tool.map(str::to_owned),
            system_prompt: settings.system_prompt.map_or_else(own_prompt, str::to_owned),
            tools: settings.tool.map_or_else(|| "[]".to_owned(), |tool| json!([definition(tool)]).to_string()),
        }
    }

    /// Returns the query of a tool call, or an error for the model.
    fn query(&self, call: &ToolCall) -> Result<String, String> {
        let Some(name) = &self.tool else {
            return Err(format!("there is no tool `{}`: no tools are available", call.name));
        };
        if call.name != *name {
            return Err(format!("there is no tool `{}`; the only tool is `{name}`", call.name));
        }
        let arguments: Value = serde_json::from_str(&call.arguments)
            .map_err(|error| format!("the arguments of `{name}` are not valid JSON ({error}); {EXPECTED}"))?;
        match arguments.get("query").and_then(Value::as_str).map(str::trim) {
            Some("") => Err(format!("the `query` of `{name}` is empty; {EXPECTED}")),
            Some(query) => Ok(query.to_owned()),
            None => Err(format!("`{name}` needs a text argument `query`; {EXPECTED}")),
        }
    }
}

impl Protocol for ToolCallProtocol {
    fn name(&self) -> &'static str {
        "tool_call"
    }

    fn opening(&self, question: &str) -> Vec<Message> {
        vec![Message::text(Role::System, &self.system_prompt), Message::text(Role::User, question)]
    }

    fn tools(&self) -> &str {
        &self.tools
    }

    fn parse(&self, message: &Message) -> Vec<Action> {
        let action = |call: &ToolCall| Action {
            id: call.id.clone(),
            tool: call.name.clone(),
            arguments: self.query(call).map(|query| json!({"query": query})),
        };
        message.tool_calls.iter().map(action).collect()
    }

    fn render(&self, action: &Action, result: ToolResult) -> Message {
        let mut message = Message::text(Role::Tool, "");
        message.tool_call_id = Some(action.id.clone());
        match result {
            Ok(found) => {
                message.content = passages(&found);
                message.observations = found.into_iter().map(observation).collect();
            }
            Err(error) => {
                message.content = format!("Error: {error}.");
                message.error = Some(error);
            }
        }
        message
    }

    fn request_answer(&self) -> Message {
        Message::text(Role::User, ANSWER_NOW)
    }

    fn answer<'t>(&self, text: &'t str) -> &'t str {
        extract_answer(text)
    }
}

const EXPECTED: &str = "write {\"query\": \"what to look for\"}";

const CLOSED_BOOK_PROMPT: &str = "Answer the question from what you know. Think it through briefly, then finish with \
<answer>…</answer>. Between the tags write the answer alone, as short as possible: a name, a date, a number, yes or \
no. If you do not know, write <answer>Insufficient Information</answer>.";

fn search_prompt(tool: &str, max_searches: Option<u32>) -> String {
    let limit = max_searches.map_or_else(String::new, |most| format!(" You may search at most {most} times."));
    format!(
        "You answer questions by searching a document collection with the `{tool}` tool.{limit}\n\n\
         - Work out what has to be known first and search for it with a short, specific query. A question that joins \
         several facts needs several searches.\n\
         - After each search, say in a sentence or two what the passages establish and what is still open. Rely on the \
         passages and not on memory: check names, dates and numbers against their text.\n\
         - As long as something is open, search again in other words: a name you have just learnt, a synonym, a \
         narrower or a broader query.\n\
         - Once the passages support an answer, stop searching and finish with <answer>…</answer>. Between the tags \
         write the answer alone, as short as possible: a name, a date, a number, yes or no.\n\
         - Write <answer>{INSUFFICIENT}</answer> only when several different searches did not find what is needed."
    )
}

/// Message before the model's last call.
const ANSWER_NOW: &str =
    "No further searches are possible. Give your final answer now, between <answer> and </answer>.";

fn definition(name: &str) -> Value {
    json!({"type": "function", "function": {
        "name": name,
        "description": DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
        },
    }})
}

fn observation(found: Found) -> Observation {
    Observation { chunk_id: found.chunk_id, document_id: found.document_id, title: found.title, score: found.score }
}

/// Formats passages for the model: `[1] Title`, the text below, a blank line between passages.
fn passages(found: &[Found]) -> String {
    if found.is_empty() {
        return "No passages were found.".to_owned();
    }
    let numbered = found.iter().enumerate().map(|(i, passage)| format!("[{}] {}", i + 1, passage.contents.trim()));
    numbered.collect::<Vec<_>>().join("\n\n")
}

/// Returns the text between the last `<answer>` and the last `</answer>`, trimmed; empty without such a pair. Text in
/// thoughts (`<think>`, closed or not) does not count. (DeepSearch-RL's rule, extended by trimming and thoughts.)
fn extract_answer(text: &str) -> &str {
    const OPEN: &str = "<answer>";
    let last = |said: &str| {
        let start = said.rfind(OPEN)? + OPEN.len();
        Some(start..said.rfind("</answer>").unwrap_or_default())
    };
    let said = thoughts::split(text).said;
    let found = said.into_iter().rev().find_map(|said| Some((said, last(said)?)));
    found.and_then(|(said, span)| said.get(span)).unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: "c1".to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
    }

    fn found(contents: &str) -> Found {
        Found {
            chunk_id: "d#0".to_owned(),
            document_id: "d".to_owned(),
            title: None,
            contents: contents.to_owned(),
            score: 1.5,
            sources: Vec::new(),
        }
    }

    #[test]
    fn the_answer_stands_between_the_last_tags() {
        assert_eq!(extract_answer("so <answer> Paris\n</answer>."), "Paris");
        assert_eq!(extract_answer("<answer>A</answer> no, <answer>B</answer>"), "B");
        assert_eq!(extract_answer("</answer> and <answer>B"), "");
        assert_eq!(extract_answer("<answer>B"), "");
        assert_eq!(extract_answer("no tags"), "");
        assert_eq!(extract_answer("<answer></answer>"), "");
        assert_eq!(extract_answer("<answer>東京</answer>"), "東京");
    }

    #[test]
    fn thoughts_answer_nothing() {
        assert_eq!(extract_answer("<think>maybe <answer>X</answer>"), "");
        assert_eq!(extract_answer("<think>maybe <answer>X</answer></think> no"), "");
        assert_eq!(extract_answer("maybe <answer>X</answer></think>"), "", "opened by the template");
        assert_eq!(extract_answer("<think><answer>X</answer></think><answer>Y</answer>"), "Y");
        assert_eq!(extract_answer("<answer>Y</answer><think>or <answer>X</answer>"), "Y");
        assert_eq!(extract_answer("<answer>Y</answer><think>good</think> That is all."), "Y");
        assert_eq!(extract_answer("<answer>Y<think>really?</think></answer>"), "", "not in one piece");
    }

    fn searching(tool: &str) -> ToolCallProtocol {
        ToolCallProtocol::new(&ProtocolSettings { tool: Some(tool), ..ProtocolSettings::default() })
    }

    #[test]
    fn mistakes_in_calls_are_named() {
        let asked = |protocol: &ToolCallProtocol, name, arguments| {
            let mut message = Message::text(Role::Assistant, "");
            message.tool_calls.push(call(name, arguments));
            protocol.parse(&message).remove(0)
        };
        let protocol = searching("search");
        let right = asked(&protocol, "search", r#"{"query": " Rome "}"#);
        assert_eq!(
            (right.id.as_str(), right.tool.as_str(), right.arguments),
            ("c1", "search", Ok(json!({"query": "Rome"})))
        );
        let told = |name, arguments| asked(&protocol, name, arguments).arguments.expect_err("a mistake");
        assert!(told("lookup", "{}").contains("the only tool is `search`"));
        assert!(told("search", "{\"query\": ").contains("not valid JSON"));
        assert!(told("search", "{\"q\": 1}").contains("needs a text argument `query`"));
        assert!(told("search", "{\"query\": [\"a\"]}").contains("needs a text argument `query`"));
        assert!(told("search", "{\"query\": \" \"}").contains("is empty"));
        let closed = ToolCallProtocol::new(&ProtocolSettings::default());
        assert!(asked(&closed, "search", "{}").arguments.expect_err("a mistake").contains("no tools are available"));
    }

    #[test]
    fn errors_and_empty_results_read_differently() {
        let protocol = searching("search");
        let action = Action { id: "c1".to_owned(), tool: "search".to_owned(), arguments: Ok(Value::Null) };
        let error = protocol.render(&action, Err("the search failed: disk".to_owned()));
        assert_eq!((error.content.as_str(), error.error.is_some()), ("Error: the search failed: disk.", true));
        let empty = protocol.render(&action, Ok(Vec::new()));
        assert_eq!((empty.content.as_str(), empty.error), ("No passages were found.", None));
        let two = protocol.render(&action, Ok(vec![found("Rome\nA city."), found("No title here")]));
        assert_eq!(two.content, "[1] Rome\nA city.\n\n[2] No title here");
        assert_eq!((two.observations.len(), two.observations[0].score), (2, 1.5));
        assert_eq!(two.tool_call_id.as_deref(), Some("c1"));
    }

    #[test]
    fn the_prompt_names_the_tool_and_its_limit() {
        let settings = ProtocolSettings { tool: Some("retrieve"), system_prompt: None, max_searches: Some(5) };
        let protocol = ToolCallProtocol::new(&settings);
        let opening = protocol.opening("Q");
        assert!(opening[0].content.contains("`retrieve` tool. You may search at most 5 times."));
        assert_eq!((opening[1].role.as_str(), opening[1].content.as_str(), opening.len()), ("user", "Q", 2));
        let tools: Value = serde_json::from_str(protocol.tools()).expect("JSON");
        assert_eq!(tools[0]["function"]["name"], "retrieve");
        let own = ToolCallProtocol::new(&ProtocolSettings { system_prompt: Some("Mine."), ..settings });
        assert_eq!(own.opening("Q")[0].content, "Mine.");
    }
}
