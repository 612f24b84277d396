//! Protocol `tool_call`: searches are native tool calls of the chat API, passages are returned as plain text, and the
//! answer is between `<answer>` and `</answer>` in the model's last message.

use searchmill_retrieval::Found;
use searchmill_schemas::{Message, Observation, Role, ToolCall};
use searchmill_text::unambiguous;
use serde_json::{Value, json};

use super::contract::{Action, ChatFormat, INSUFFICIENT, Protocol, ProtocolSettings, QUESTION, Speech, joined};
use super::definition::ToolDefinition;
use super::offer::{OfferedCall, ToolOffer};
use super::tags::Tags;
use crate::tool::ToolResult;

/// Prompts and tool definitions of this protocol.
#[derive(Clone, Debug)]
pub(super) struct ToolCallProtocol {
    /// Name of the search tool; `None` for the closed-book baseline.
    tool: Option<String>,
    definition: ToolDefinition,
    /// Tools beside the search tool.
    offers: Vec<ToolOffer>,
    shows_ids: bool,
    system_prompt: String,
    user_prompt: String,
    /// Tool definitions as a JSON list.
    tools: String,
}

impl ToolCallProtocol {
    pub(super) fn new(settings: &ProtocolSettings<'_>) -> Self {
        let definition = settings.definition.cloned().unwrap_or_default();
        let system_prompt = match (settings.system_prompt, settings.tool) {
            (Some(prompt), _) => prompt.to_owned(),
            (None, tool) if !settings.offers.is_empty() => tools_prompt(tool, settings.offers, settings.max_searches),
            (None, Some(tool)) => search_prompt(tool, settings.max_searches),
            (None, None) => CLOSED_BOOK_PROMPT.to_owned(),
        };
        Self {
            tool: settings.tool.map(str::to_owned),
            system_prompt,
            user_prompt: settings.user_prompt.unwrap_or(QUESTION).to_owned(),
            tools: tools(settings.tool.map(|tool| (tool, &definition)), settings.offers),
            offers: settings.offers.to_vec(),
            shows_ids: settings.shows_ids,
            definition,
        }
    }

    /// Returns the queries of a tool call, or an error for the model.
    fn queries(&self, call: &ToolCall) -> Result<Vec<String>, String> {
        let Some(name) = self.tool.as_ref().filter(|name| call.name == **name) else {
            return Err(self.no_such_tool(&call.name));
        };
        let (argument, expected) = (&self.definition.query, self.definition.expected());
        let arguments = unambiguous::parse(&call.arguments)
            .map_err(|error| format!("the arguments of `{name}` are not valid JSON ({error}); {expected}"))?;
        let list = self.definition.takes_a_list();
        let queries = match arguments.get(argument) {
            Some(Value::String(query)) => Some(vec![query.trim().to_owned()]),
            Some(Value::Array(items)) if list => {
                items.iter().map(|item| Some(item.as_str()?.trim().to_owned())).collect()
            }
            _ => None,
        };
        match queries {
            None if list => Err(format!("`{name}` needs a list of texts `{argument}`; {expected}")),
            None => Err(format!("`{name}` needs a text argument `{argument}`; {expected}")),
            Some(queries) if queries.is_empty() || queries.iter().any(String::is_empty) => {
                Err(format!("the `{argument}` of `{name}` is empty; {expected}"))
            }
            Some(queries) => Ok(queries),
        }
    }

    fn no_such_tool(&self, name: &str) -> String {
        let mut names = Vec::from_iter(self.tool.as_deref());
        names.extend(self.offers.iter().map(|offer| offer.name.as_str()));
        match names.as_slice() {
            [] => format!("there is no tool `{name}`: no tools are available"),
            [only] => format!("there is no tool `{name}`; the only tool is `{only}`"),
            _ => format!("there is no tool `{name}`; the tools are `{}`", names.join("`, `")),
        }
    }

    /// Returns the actions of a call: one for each query, or one for another tool.
    fn actions(&self, call: &ToolCall) -> Vec<Action> {
        match self.offers.iter().find(|offer| offer.name == call.name) {
            Some(offer) => vec![Action { id: call.id.clone(), tool: call.name.clone(), arguments: offer.call(call) }],
            None => Action::searches(&call.id, &call.name, self.queries(call)),
        }
    }

    /// The message that shows the result of one action.
    fn response(&self, action: Action, result: ToolResult) -> Message {
        let mut message = Message::text(Role::Tool, "");
        let offered = action.arguments.as_ref().is_ok_and(|arguments| OfferedCall::of(arguments).is_some());
        message.tool_call_id = Some(action.id);
        match result {
            Ok(found) => {
                message.content = if offered { texts(&found) } else { passages(&found, self.shows_ids) };
                message.observations = found.into_iter().map(observation).collect();
            }
            Err(error) => {
                message.content = format!("Error: {error}.");
                message.error = Some(error);
            }
        }
        message
    }

    /// Name and arguments of a call that searches for these queries: with the search tool, or the first other tool
    /// that takes a query.
    fn searching(&self, queries: &[String]) -> (String, String) {
        if let Some(tool) = &self.tool {
            return (tool.clone(), self.definition.arguments(queries));
        }
        let query = queries.first().map_or("", String::as_str);
        let offered = self.offers.iter().find_map(|offer| Some((offer.name.clone(), offer.asking(query)?.to_string())));
        offered.unwrap_or_default()
    }
}

impl ChatFormat for ToolCallProtocol {
    fn tools(&self) -> &str {
        &self.tools
    }
}

impl Protocol for ToolCallProtocol {
    #[expect(clippy::unnecessary_literal_bound, reason = "other protocols return their own text")]
    fn name(&self) -> &str {
        "tool_call"
    }

    fn opening(&self, question: &str) -> Vec<Message> {
        let asked = self.user_prompt.replace(QUESTION, question);
        vec![Message::text(Role::System, &self.system_prompt), Message::text(Role::User, asked)]
    }

    fn parse(&self, message: &Message) -> Vec<Action> {
        message.tool_calls.iter().flat_map(|call| self.actions(call)).collect()
    }

    /// One message for each call; the results of a list of queries are separated by a line `---`.
    fn render(&self, answered: Vec<(Action, ToolResult)>) -> Vec<Message> {
        let mut messages: Vec<Message> = Vec::new();
        for (action, result) in answered {
            let shown = self.response(action, result);
            match messages.last_mut() {
                Some(last) if last.tool_call_id == shown.tool_call_id && self.definition.takes_a_list() => {
                    last.content.push_str("\n---\n");
                    last.content.push_str(&shown.content);
                    last.observations.extend(shown.observations);
                    last.error = last.error.take().or(shown.error);
                }
                _ => messages.push(shown),
            }
        }
        messages
    }

    fn request_answer(&self, _question: &str) -> Option<Message> {
        Some(Message::text(Role::User, ANSWER_NOW))
    }

    fn answer<'t>(&self, text: &'t str) -> &'t str {
        Tags::new("<answer>", "</answer>").last(text)
    }

    fn write(&self, speech: &Speech<'_>) -> Message {
        match speech {
            // Never asked for.
            Speech::Choice(_) => Message::text(Role::Assistant, ""),
            Speech::Answer { thought, answer, .. } => {
                let text = joined(thought, &format!("<answer>{answer}</answer>"));
                Message { finish_reason: Some("stop".to_owned()), ..Message::text(Role::Assistant, text) }
            }
            Speech::Search { thought, queries, place, .. } => {
                let mut message = Message::text(Role::Assistant, thought);
                let lists = self.tool.is_some() && self.definition.takes_a_list();
                let each = if lists { queries.len().max(1) } else { 1 };
                for (number, queries) in queries.chunks(each).enumerate() {
                    let (name, arguments) = self.searching(queries);
                    message.tool_calls.push(ToolCall { id: format!("call_{place}_{number}"), name, arguments });
                }
                message.finish_reason = Some("tool_calls".to_owned());
                message
            }
        }
    }
}

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

/// The prompt of a rollout with more tools than a search tool.
fn tools_prompt(search: Option<&str>, offers: &[ToolOffer], max_calls: Option<u32>) -> String {
    let mut names = Vec::from_iter(search);
    names.extend(offers.iter().map(|offer| offer.name.as_str()));
    let limit = max_calls.map_or_else(String::new, |most| format!(" You may call tools at most {most} times."));
    format!(
        "You answer questions by searching and reading with these tools: `{}`.{limit}\n\n\
         - Work out what has to be known first and look for it with a short, specific query. A question that joins \
         several facts needs several searches.\n\
         - After each result, say in a sentence or two what it establishes and what is still open. Rely on what you \
         have read and not on memory: check names, dates and numbers against the text.\n\
         - As long as something is open, search again in other words or open what looks promising. A tool may fail: \
         try it once more, or another one. A failure does not mean that nothing exists.\n\
         - Once your reading supports an answer, stop and finish with <answer>…</answer>. Between the tags write the \
         answer alone, as short as possible: a name, a date, a number, yes or no.\n\
         - Write <answer>{INSUFFICIENT}</answer> only when several different searches did not find what is needed.",
        names.join("`, `")
    )
}

/// Message before the model's last call.
const ANSWER_NOW: &str =
    "No further searches are possible. Give your final answer now, between <answer> and </answer>.";

/// Definitions of the tools, as a JSON list.
fn tools(search: Option<(&str, &ToolDefinition)>, offers: &[ToolOffer]) -> String {
    let mut definitions = Vec::new();
    if let Some((name, ToolDefinition { description, parameters, .. })) = search {
        let function = json!({"name": name, "description": description, "parameters": parameters});
        definitions.push(json!({"type": "function", "function": function}));
    }
    definitions.extend(offers.iter().map(ToolOffer::definition));
    Value::Array(definitions).to_string()
}

pub(super) fn observation(found: Found) -> Observation {
    Observation { chunk_id: found.chunk_id, document_id: found.document_id, title: found.title, score: found.score }
}

/// The texts of a tool as it gave them, a blank line between two.
fn texts(found: &[Found]) -> String {
    let texts: Vec<&str> = found.iter().map(|one| one.contents.as_str()).filter(|text| !text.is_empty()).collect();
    if texts.is_empty() { "No results were found.".to_owned() } else { texts.join("\n\n") }
}

/// Formats passages for the model: `[1] Title`, the text below, a blank line between passages.
pub fn passages(found: &[Found], shows_ids: bool) -> String {
    if found.is_empty() {
        return "No passages were found.".to_owned();
    }
    let mut numbered = Vec::with_capacity(found.len());
    for (index, passage) in found.iter().enumerate() {
        let id = if shows_ids { format!("(id {}) ", passage.chunk_id) } else { String::new() };
        numbered.push(format!("[{}] {id}{}", index + 1, passage.contents.trim()));
    }
    numbered.join("\n\n")
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
        let twice = told("search", "{\"query\": \"a\", \"query\": \"b\"}");
        assert!(twice.contains("not valid JSON (the field `query` is there twice"), "{twice}");
        let closed = ToolCallProtocol::new(&ProtocolSettings::default());
        assert!(asked(&closed, "search", "{}").arguments.expect_err("a mistake").contains("no tools are available"));
    }

    #[test]
    fn errors_and_empty_results_read_differently() {
        let protocol = searching("search");
        let action = Action { id: "c1".to_owned(), tool: "search".to_owned(), arguments: Ok(Value::Null) };
        let render = |result| protocol.render(vec![(action.clone(), result)]).remove(0);
        let error = render(Err("the search failed: disk".to_owned()));
        assert_eq!((error.content.as_str(), error.error.is_some()), ("Error: the search failed: disk.", true));
        let empty = render(Ok(Vec::new()));
        assert_eq!((empty.content.as_str(), empty.error), ("No passages were found.", None));
        let two = render(Ok(vec![found("Rome\nA city."), found("No title here")]));
        assert_eq!(two.content, "[1] Rome\nA city.\n\n[2] No title here");
        assert_eq!((two.observations.len(), two.observations[0].score), (2, 1.5));
        assert_eq!(two.tool_call_id.as_deref(), Some("c1"));
    }

    #[test]
    fn the_prompt_names_the_tool_and_its_limit() {
        let settings =
            ProtocolSettings { tool: Some("retrieve"), max_searches: Some(5), ..ProtocolSettings::default() };
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
