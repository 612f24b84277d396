//! Protocol `searchlm`: the format of SearchLM (ExSearch; mangopy/SearchLM at 457513a, arXiv 2505.20128).
//!
//! A chat in turns without tools: the model writes `<QUERY>`, the user's next message shows passages after `<SEARCH>`, the
//! model writes `<FACT>` and its next `<QUERY>` or `<FINAL>`, and is then asked for the bare answer. Between query and
//! passages, the model chooses among the retrieved passages in a conversation of its own. The prompts are written anew by
//! the original's rules. Unlike the original, messages stay as the model wrote them, and tags count, not their place.

use schemars::JsonSchema;
use searchmill_retrieval::Found;
use searchmill_schemas::{Message, Role};
use searchmill_text::thoughts;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::contract::{Action, ChatFormat, Protocol, ProtocolSettings, QUESTION, Speech};
use super::passage::Passages;
use super::read_back::read_back;
use super::text::ERROR;
use super::tool_call::observation;
use crate::tool::ToolResult;

const QUERY: &str = "<QUERY>";
const SEARCH: &str = "<SEARCH>";
const FACT: &str = "<FACT>";
const FINAL: &str = "<FINAL>";
const TAGS: [&str; 4] = [QUERY, SEARCH, FACT, FINAL];

/// Options of the protocol `searchlm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct SearchLmParams {
    /// Whether the model chooses among the passages of a search (the original's branch `main`). Otherwise the first ones
    /// are shown (branch `v1`, with `most: 3`).
    pub ranking: bool,
    /// How the model's choice is read.
    pub identifiers: Identifiers,
    /// Maximum number of passages shown of a search (`null`: all that the model chose).
    pub most: Option<usize>,
}

impl Default for SearchLmParams {
    fn default() -> Self {
        Self { ranking: true, identifiers: Identifiers::default(), most: None }
    }
}

/// How identifiers in the model's choice are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Identifiers {
    /// `[2] > [1]`, as the passages are numbered: from 1. Numbers without brackets count if there is nothing else;
    /// others are ignored.
    #[default]
    Mended,
    /// As the original's code reads them: every run of digits, counted from 0, though the list counts from 1. `[1]` shows
    /// the second passage, and the last one cannot be chosen.
    Published,
}

impl Identifiers {
    /// Returns the numbers that a reply names, in order, each once.
    fn numbers(self, reply: &str) -> Vec<usize> {
        let (mut numbers, mut at) = (Vec::new(), 0);
        while let Some(before) = reply[at..].find(|c: char| c.is_ascii_digit()) {
            let start = at + before;
            let rest = &reply[start..];
            let run = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
            at = start + run.len();
            let is_bracketed = reply[..start].ends_with('[') && reply[at..].starts_with(']');
            let counts = self == Self::Published || is_bracketed || !reply.contains('[') && is_bare(reply);
            match run.parse() {
                Ok(number) if counts && !numbers.contains(&number) => numbers.push(number),
                _ => {}
            }
        }
        numbers
    }

    /// Returns what the reply names, and the indices of those passages among `count`.
    pub(super) fn chosen(self, reply: &str, count: usize) -> (Vec<usize>, Vec<usize>) {
        let said = thoughts::split(reply).said.concat();
        let numbers = self.numbers(&said);
        match self {
            Self::Published => {
                let indices = numbers.iter().copied().filter(|index| *index < count).collect();
                (numbers, indices)
            }
            Self::Mended => {
                let known: Vec<usize> = numbers.into_iter().filter(|number| (1..=count).contains(number)).collect();
                let indices = known.iter().map(|number| number - 1).collect();
                (known, indices)
            }
        }
    }
}

/// Whether a text consists of numbers alone.
fn is_bare(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_digit() || c.is_whitespace() || ">,;.".contains(c))
}

impl SearchLmParams {
    /// Returns what is wrong, with paths below the options.
    pub(super) fn check(&self) -> Vec<(String, String)> {
        if self.most == Some(0) {
            return vec![("most".to_owned(), "must be at least 1".to_owned())];
        }
        Vec::new()
    }
}

/// The protocol with the settings of a rollout.
pub(super) struct SearchLmProtocol {
    params: SearchLmParams,
    system: Option<String>,
    prompt: String,
    searching: bool,
    tells_invalid: bool,
    stop: [String; 1],
    passages: Passages,
}

impl SearchLmProtocol {
    pub(super) fn new(params: &SearchLmParams, settings: &ProtocolSettings<'_>) -> Self {
        let searching = settings.tool.is_some();
        let rules = if searching { RULES } else { CLOSED_BOOK };
        Self {
            params: params.clone(),
            system: settings.system_prompt.map(str::to_owned),
            prompt: match settings.user_prompt {
                Some(prompt) => prompt.to_owned(),
                None => format!("{rules}\n\nQuestion: {QUESTION}"),
            },
            searching,
            tells_invalid: settings.tells_invalid,
            // The environment writes this tag: a model that goes on after it makes up passages.
            stop: [SEARCH.to_owned()],
            passages: Passages { each: "Title: {title}. Content: {text}".to_owned(), ..Passages::default() },
        }
    }

    /// The message that shows passages after their identifiers.
    fn shown(&self, id: String, labels: &[usize], found: Vec<Found>, none: &str) -> Message {
        let texts = found.iter().map(|passage| self.line(passage)).collect::<Vec<_>>().join("\n");
        let texts = if found.is_empty() { none } else { texts.as_str() };
        let message = Message::text(Role::Tool, format!("{SEARCH} {labels:?} {texts}"));
        let observations = found.into_iter().map(observation).collect();
        Message { tool_call_id: Some(id), observations, ..message }
    }

    /// A passage on one line, so that no passage looks like two.
    fn line(&self, passage: &Found) -> String {
        flat(&self.passages.text(std::slice::from_ref(passage)))
    }

    /// The passages that a request or a tool message lists, one on each of its last lines.
    fn passages_of(&self, message: &Message) -> Option<Vec<Found>> {
        let count = message.observations.len();
        // Each passage is one line (`line`): the text before them may have any number.
        let mut lines: Vec<&str> = message.content.rsplit('\n').take(count).collect();
        lines.reverse();
        let is_request = message.role == Role::User.name();
        let mut found = Vec::new();
        for (index, line) in lines.into_iter().enumerate() {
            let line = match (is_request, index) {
                (true, _) => line.strip_prefix(&format!("[{}] ", index + 1))?,
                // The first line begins with the tag and the identifiers.
                (false, 0) => line.split_once("] ")?.1,
                (false, _) => line,
            };
            found.extend(read_back(&self.passages, line, &message.observations[index..=index])?);
        }
        Some(found)
    }

    fn rendered(&self, action: Action, result: ToolResult) -> Message {
        let error = match result {
            Ok(mut found) => {
                found.truncate(self.params.most.unwrap_or(usize::MAX));
                let labels: Vec<usize> = (1..=found.len()).collect();
                return self.shown(action.id, &labels, found, &self.passages.none);
            }
            Err(error) => error,
        };
        if !action.is_call() {
            return Message { error: Some("invalid action".to_owned()), ..Message::text(Role::Tool, error) };
        }
        let shown = Message::text(Role::Tool, format!("{SEARCH} {ERROR}{error}."));
        Message { tool_call_id: Some(action.id), error: Some(error), ..shown }
    }
}

/// A text on one line.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A text on one line without the tags of the protocol.
fn untagged(text: &str) -> String {
    // Read back, a tag in the text would begin another step.
    flat(&TAGS.iter().fold(text.to_owned(), |text, tag| text.replace(tag, "")))
}

/// What a message asks for.
#[derive(Debug, PartialEq)]
enum Step {
    Search(String),
    End,
    Nothing,
}

/// Returns what a message asks for: its last `<QUERY>` or `<FINAL>` decides. Thoughts, and what the model wrote as if it
/// were passages, do not count.
fn step(text: &str) -> Step {
    let said = thoughts::split(text).said.concat();
    let said = said.split(SEARCH).next().unwrap_or_default();
    match (said.rfind(QUERY), said.rfind(FINAL)) {
        (Some(query), end) if end.is_none_or(|end| end < query) => {
            let text = said[query + QUERY.len()..].split(FACT).next().unwrap_or_default();
            Step::Search(flat(text))
        }
        (_, Some(_)) => Step::End,
        _ => Step::Nothing,
    }
}

impl ChatFormat for SearchLmProtocol {
    fn is_in_turns(&self) -> bool {
        true
    }

    fn stop(&self) -> &[String] {
        &self.stop
    }
}

impl Protocol for SearchLmProtocol {
    #[expect(clippy::unnecessary_literal_bound, reason = "other protocols return their own text")]
    fn name(&self) -> &str {
        "searchlm"
    }

    fn opening(&self, question: &str) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::text(Role::System, text));
        system.chain([Message::text(Role::User, self.prompt.replace(QUESTION, question))]).collect()
    }

    fn searches(&self) -> bool {
        self.searching
    }

    fn parse(&self, message: &Message) -> Vec<Action> {
        // A text that was cut may lack the rest of its query.
        if !self.searching || message.is_cut() {
            return Vec::new();
        }
        let (id, tool, arguments) = match step(&message.content) {
            Step::Search(query) if query.is_empty() => ("search_0", "search", Err("the query is empty".to_owned())),
            Step::Search(query) => ("search_0", "search", Ok(json!({"query": query}))),
            Step::Nothing if self.tells_invalid => ("", "", Err(INVALID.to_owned())),
            Step::End | Step::Nothing => return Vec::new(),
        };
        vec![Action { id: id.to_owned(), tool: tool.to_owned(), arguments }]
    }

    fn render(&self, answered: Vec<(Action, ToolResult)>) -> Vec<Message> {
        answered.into_iter().map(|(action, result)| self.rendered(action, result)).collect()
    }

    fn ask_about(&self, answered: &[(Action, ToolResult)]) -> Option<Message> {
        let [(action, Ok(found))] = answered else { return None };
        let query = action.arguments.as_ref().ok()?["query"].as_str()?;
        if !self.params.ranking || found.is_empty() {
            return None;
        }
        let lines = found.iter().enumerate().map(|(index, passage)| format!("[{}] {}", index + 1, self.line(passage)));
        let lines = lines.collect::<Vec<_>>().join("\n");
        let request = Message::text(Role::User, format!("Search query: {query}\n\n{CHOOSE}\n\n{lines}"));
        let observations = found.iter().cloned().map(observation).collect();
        // The id on a message of the user marks it as an aside (`Message::is_aside`).
        Some(Message { tool_call_id: Some(action.id.clone()), observations, ..request })
    }

    fn render_chosen(&self, reply: &str, answered: Vec<(Action, ToolResult)>) -> Vec<Message> {
        let most = self.params.most.unwrap_or(usize::MAX);
        let mut shown = Vec::with_capacity(answered.len());
        for (action, result) in answered {
            shown.push(match result {
                Ok(found) => {
                    let (mut labels, mut indices) = self.params.identifiers.chosen(reply, found.len());
                    labels.truncate(most);
                    indices.truncate(most);
                    let chosen = indices.into_iter().filter_map(|index| found.get(index).cloned()).collect();
                    self.shown(action.id, &labels, chosen, "No passage was chosen.")
                }
                error => self.rendered(action, error),
            });
        }
        shown
    }

    /// Reads the request about the passages, which holds all of them, or the message that shows the first ones.
    fn read_back(&self, actions: &[Action], shown: &[Message]) -> Option<Vec<ToolResult>> {
        let ([action], [message, ..]) = (actions, shown) else { return None };
        let text = message.content.strip_prefix(SEARCH);
        let error = text.and_then(|text| text.trim_start().strip_prefix(ERROR)?.strip_suffix('.'));
        let result = match error.filter(|_| message.error.is_some()) {
            Some(error) => Err(error.to_owned()),
            None => Ok(self.passages_of(message)?),
        };
        let answered = vec![(action.clone(), result)];
        // A text that renders otherwise was not written by this protocol with these passages.
        let again = self.ask_about(&answered).or_else(|| self.render(answered.clone()).pop())?;
        let is_same = again.content == message.content && again.observations == message.observations;
        is_same.then(|| answered.into_iter().map(|(_, result)| result).collect())
    }

    fn request_answer(&self, question: &str) -> Option<Message> {
        Some(Message::text(Role::User, format!("{SEARCH} {ANSWER_NOW}: {question}")))
    }

    fn follow_up(&self, question: &str, message: &Message) -> Option<Message> {
        let ends = self.searching && step(&message.content) == Step::End;
        if ends { self.request_answer(question) } else { None }
    }

    fn answer<'t>(&self, text: &'t str) -> &'t str {
        let said = thoughts::split(text).said.into_iter().rev().map(str::trim).find(|said| !said.is_empty());
        let said = said.and_then(|said| said.split(SEARCH).next()).unwrap_or_default().trim();
        let said = said.strip_prefix(FINAL).unwrap_or(said).trim_start();
        // A message with tags is a step of the search, and no answer.
        if TAGS.iter().any(|tag| said.contains(tag)) { "" } else { said }
    }

    fn searches_at_once(&self) -> usize {
        1
    }

    fn write(&self, speech: &Speech<'_>) -> Message {
        let text = match speech {
            Speech::Search { remark, queries, .. } => {
                let query = queries.first().map(|query| untagged(query)).unwrap_or_default();
                format!("{}{QUERY} {query}", fact(remark))
            }
            Speech::Answer { answer, requested, .. } if *requested || !self.searching => untagged(answer),
            Speech::Answer { remark, .. } => format!("{}{FINAL}", fact(remark)),
            Speech::Choice([]) => "none".to_owned(),
            Speech::Choice(chosen) => chosen.iter().map(|n| format!("[{n}]")).collect::<Vec<_>>().join(" > "),
        };
        Message { finish_reason: Some("stop".to_owned()), ..Message::text(Role::Assistant, text) }
    }
}

/// The line that says what the passages established; empty without a remark.
fn fact(remark: &str) -> String {
    let fact = untagged(remark);
    if fact.is_empty() { fact } else { format!("{FACT} {fact}\n") }
}

const RULES: &str = "You are a search agent that answers a question by searching a collection of passages. Work in steps, \
one message for each step:\n\
- Begin with <QUERY> and a short question to search for, about the first fact that you need.\n\
- Passages that were found then follow after <SEARCH>. Read them carefully.\n\
- Write <FACT> and the answer to your query that they contain, and on the next line <QUERY> with the next question to \
search for.\n\
- Several facts may be needed. Once you have them all, write <FINAL> instead of another <QUERY>.\n\
You are then asked for the final answer. Give nothing but the answer, as short as possible.";

const CLOSED_BOOK: &str = "Answer the question from what you know. Give nothing but the answer, as short as possible.";

const CHOOSE: &str = "Passages found for this search query are listed below, each with a number in brackets. Choose those \
that are needed to answer the query. Reply with their numbers only, the most useful one first, in the form [2] > [1]. If \
no passage helps, reply with none.";

const ANSWER_NOW: &str = "The search has ended. Give the final answer to the question";

const INVALID: &str =
    "That message neither searched nor ended the search. Write <QUERY> and what to search for, or <FINAL>.";
