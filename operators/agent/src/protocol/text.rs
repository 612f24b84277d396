//! Text protocols: the whole rollout is one text. The model writes a query between tags, the text of the results is
//! appended, and the model goes on. A protocol of this family is a [`TextFormat`]: tags and templates.

use schemars::JsonSchema;
use searchmill_schemas::{Message, Role};
use serde::{Deserialize, Serialize};

use super::contract::{Action, ChatFormat, Protocol, ProtocolSettings, QUESTION, Speech};
use super::passage::{Passages, filled};
use super::query::{QueryForm, SEPARATOR};
use super::read_back::read_back;
use super::tags::Tags;
use super::tool_call::observation;
use crate::tool::ToolResult;

/// A text protocol: its prompt, its tags, and the templates of what the environment appends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct TextFormat {
    /// Name recorded in trajectories.
    #[serde(default = "custom")]
    pub name: String,
    /// The prompt; `{question}` is replaced by the question. For `api: chat` it is the user's message, for
    /// `api: completions` the whole text before the model's.
    #[serde(default = "question")]
    pub prompt: String,
    /// System message before it, for `api: chat` alone.
    #[serde(default)]
    pub system: Option<String>,
    /// Text that begins the model's turn, such as `<think>`. The model continues it.
    #[serde(default)]
    pub prefill: String,
    /// Tags around a query, for example `["<search>", "</search>"]`.
    pub search: Tags,
    /// Form of the query between the tags.
    #[serde(default)]
    pub query: QueryForm,
    /// Tags around the results, with the white space that separates them from the model's text, for example
    /// `["\n\n<result>\n", "\n</result>\n\n"]`.
    pub result: Tags,
    /// Template of the results between these tags.
    #[serde(default)]
    pub passages: Passages,
    /// Tags around the final answer.
    #[serde(default = "answer")]
    pub answer: Tags,
    /// Whether the answer is the content of the last `\boxed{…}` between these tags.
    #[serde(default)]
    pub boxed: bool,
    /// Whether the closing tag of the answer ends the rollout. Otherwise the model ends it with its end-of-turn token.
    #[serde(default)]
    pub stop_at_answer: bool,
    /// Text appended after a message with neither a query nor an answer; the model then goes on. Without it, such a
    /// message ends the rollout.
    #[serde(default)]
    pub invalid: Option<String>,
    /// What the policy `evidence` writes around its thoughts and searches.
    #[serde(default)]
    pub teacher: TeacherFormat,
}

/// How the policy `evidence` writes in a text protocol. `{thought}` is replaced by its words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case", default)]
pub struct TeacherFormat {
    /// A message that searches: `{search}` is replaced by the tags with the query.
    pub search: String,
    /// A message that answers: `{answer}` is replaced by the tags with the answer.
    pub answer: String,
}

impl Default for TeacherFormat {
    fn default() -> Self {
        let (search, answer) = ("<think>{thought}</think>\n{search}", "<think>{thought}</think>\n{answer}");
        Self { search: search.to_owned(), answer: answer.to_owned() }
    }
}

fn custom() -> String {
    "custom".to_owned()
}

fn question() -> String {
    QUESTION.to_owned()
}

fn answer() -> Tags {
    Tags::new("<answer>", "</answer>")
}

impl TextFormat {
    /// A format with this prompt, these tags, and the defaults of a custom one.
    pub(super) fn new(name: &str, prompt: String, search: Tags, result: Tags) -> Self {
        Self {
            name: name.to_owned(),
            prompt,
            system: None,
            prefill: String::new(),
            search,
            query: QueryForm::default(),
            result,
            passages: Passages::default(),
            answer: answer(),
            boxed: false,
            stop_at_answer: false,
            invalid: None,
            teacher: TeacherFormat::default(),
        }
    }

    /// Returns what is wrong, with paths below the format.
    pub(super) fn check(&self) -> Vec<(String, String)> {
        let known = ["tool_call", "research", "r1-searcher", "search-r1", "tool-tags", "searchlm"];
        let mut rules = vec![
            (!self.name.trim().is_empty(), "name", "must not be empty"),
            (!known.contains(&self.name.as_str()), "name", "is the name of another protocol"),
            (self.prompt.contains(QUESTION), "prompt", "must contain `{question}`"),
        ];
        for (path, tags) in [("search", &self.search), ("answer", &self.answer)] {
            let is_pair = !tags.open.trim().is_empty() && !tags.close.trim().is_empty();
            rules.push((is_pair, path, "a tag is empty; write two, such as [\"<search>\", \"</search>\"]"));
            let differ = !is_pair || tags.open != tags.close;
            rules.push((differ, path, "the opening and the closing tag must differ"));
        }
        let unknown = self.passages.unknown_place().map(|name| {
            format!("there is no `{{{name}}}`; use {{rank}}, {{contents}}, {{title}}, {{text}}, {{id}}, {{score}}")
        });
        let is_distinct = !self.search.meets(&self.answer);
        let is_result = !self.result.meets(&self.search);
        rules.extend([
            (is_distinct, "search", "must differ from `answer`, and no tag may be a part of another"),
            (!self.result.open.trim().is_empty(), "result", "needs an opening tag, such as `<result>`"),
            (is_result, "result", "must differ from `search`: results would read as queries"),
            (unknown.is_none(), "passages.each", unknown.as_deref().unwrap_or_default()),
            (self.teacher.search.contains("{search}"), "teacher.search", "must contain `{search}`"),
            (self.teacher.answer.contains("{answer}"), "teacher.answer", "must contain `{answer}`"),
        ]);
        rules.retain(|(holds, ..)| !holds);
        rules.into_iter().map(|(_, path, message)| (path.to_owned(), message.to_owned())).collect()
    }
}

/// Beginning of the text that shows an error in place of passages.
pub(super) const ERROR: &str = "Error: ";

/// A text protocol with the settings of a rollout.
pub(super) struct TextProtocol {
    format: TextFormat,
    searching: bool,
    stop: Vec<String>,
}

impl TextProtocol {
    pub(super) fn new(mut format: TextFormat, settings: &ProtocolSettings<'_>) -> Self {
        let searching = settings.tool.is_some();
        if !searching {
            let rules = closed_book(&format);
            // A format with a system message has the rules there; the others, and plain text, before the question.
            (format.system, format.prompt) = match format.system {
                Some(_) if !settings.plain => (Some(rules), question()),
                _ => (None, format!("{rules}\n\nQuestion: {QUESTION}\n")),
            };
        }
        if let Some(prompt) = settings.user_prompt {
            prompt.clone_into(&mut format.prompt);
        }
        if let Some(prompt) = settings.system_prompt {
            format.system = Some(prompt.to_owned());
        }
        // Last: plain text has no place for a system message, wherever it comes from.
        if settings.plain {
            format.system = None;
        }
        if settings.tells_invalid {
            let (search, answer) = (&format.search, &format.answer);
            let query = format!("A query is between {} and {}", search.open, search.close);
            let answer = format!("the final answer between {} and {}", answer.open, answer.close);
            let remark = format!("\nThat was neither a search nor an answer. {query}, {answer}.\n");
            format.invalid.get_or_insert(remark);
        }
        let stop = [Some(&format.search.close), Some(&format.answer.close).filter(|_| format.stop_at_answer)];
        let stop = stop.into_iter().flatten().cloned().collect();
        Self { format, searching, stop }
    }

    /// Renders the results of one message's queries between the tags.
    fn results(&self, answered: Vec<(Action, ToolResult)>) -> Message {
        let mut message = Message::text(Role::Tool, "");
        message.tool_call_id = answered.first().map(|(action, _)| action.id.clone());
        let mut texts = Vec::new();
        for (_, result) in answered {
            match result {
                Ok(found) => {
                    texts.push(self.format.passages.text(&found));
                    message.observations.extend(found.into_iter().map(observation));
                }
                Err(error) => {
                    texts.push(format!("{ERROR}{error}."));
                    message.error = message.error.take().or(Some(error));
                }
            }
        }
        message.content = self.format.result.around(&texts.join(SEPARATOR));
        message
    }
}

/// Prompt of the baseline without a search.
fn closed_book(format: &TextFormat) -> String {
    let Tags { open, close } = &format.answer;
    let boxed = if format.boxed { " Write it as \\boxed{…} there." } else { "" };
    let thoughts = if format.prefill.is_empty() { " between <think> and </think>" } else { "" };
    format!(
        "Answer the question from what you know. Reason first{thoughts}, then give the final answer between {open} and \
         {close}, as short as possible.{boxed}"
    )
}

impl ChatFormat for TextProtocol {
    fn is_one_text(&self) -> bool {
        true
    }

    fn stop(&self) -> &[String] {
        &self.stop
    }

    fn missing_stop(&self, text: &str) -> Option<&str> {
        if self.format.search.is_open(text) {
            return Some(&self.format.search.close);
        }
        let answer = &self.format.answer;
        (self.format.stop_at_answer && answer.is_open(text)).then_some(answer.close.as_str())
    }
}

impl Protocol for TextProtocol {
    fn name(&self) -> &str {
        &self.format.name
    }

    fn opening(&self, question: &str) -> Vec<Message> {
        let mut messages = Vec::new();
        if let Some(system) = &self.format.system {
            messages.push(Message::text(Role::System, system));
        }
        messages.push(Message::text(Role::User, self.format.prompt.replace(QUESTION, question)));
        if !self.format.prefill.is_empty() {
            // With the role of the environment: the model continues this text, but did not write it.
            messages.push(Message::text(Role::Tool, &self.format.prefill));
        }
        messages
    }

    fn searches(&self) -> bool {
        self.searching
    }

    fn parse(&self, message: &Message) -> Vec<Action> {
        let text = message.content.as_str();
        // What the text completes first counts.
        match (self.format.search.first(text), self.format.answer.first(text), &self.format.invalid) {
            (Some((end, _)), Some((answered, _)), _) if answered < end => Vec::new(),
            (Some((_, query)), _, _) => Action::searches("search_0", "search", self.format.query.read(query)),
            // Where the limit ended it before a query or an answer could follow, no remark is due.
            (None, None, Some(remark)) if !message.is_cut() => {
                vec![Action { id: String::new(), tool: String::new(), arguments: Err(remark.clone()) }]
            }
            (None, _, _) => Vec::new(),
        }
    }

    fn render(&self, mut answered: Vec<(Action, ToolResult)>) -> Vec<Message> {
        if let [(action, result)] = answered.as_mut_slice()
            && !action.is_call()
        {
            let text = std::mem::replace(result, Ok(Vec::new())).err().unwrap_or_default();
            return vec![Message { error: Some("invalid action".to_owned()), ..Message::text(Role::Tool, text) }];
        }
        vec![self.results(answered)]
    }

    fn read_back(&self, actions: &[Action], shown: &[Message]) -> Option<Vec<ToolResult>> {
        let message = shown.first().filter(|message| message.role == Role::Tool.name())?;
        let (open, close) = self.observation_tags();
        let inner = message.content.strip_prefix(open)?.strip_suffix(close)?;
        // The passages of a single query may contain the separator themselves.
        let texts: Vec<&str> = if actions.len() == 1 { vec![inner] } else { inner.split(SEPARATOR).collect() };
        if texts.len() != actions.len() {
            return None;
        }
        let mut observations = message.observations.as_slice();
        let mut answered = Vec::new();
        for (action, text) in actions.iter().zip(texts) {
            let error = text.strip_prefix(ERROR).and_then(|text| text.strip_suffix('.'));
            let result = if let Some(error) = error.filter(|_| message.error.is_some()) {
                Err(error.to_owned())
            } else {
                let found = read_back(&self.format.passages, text, observations)?;
                observations = &observations[found.len()..];
                Ok(found)
            };
            answered.push((action.clone(), result));
        }
        // A text that renders otherwise was not written by this protocol with these passages.
        let again = self.results(answered.clone());
        let is_same = again.content == message.content && again.observations == message.observations;
        is_same.then(|| answered.into_iter().map(|(_, result)| result).collect())
    }

    fn observation_tags(&self) -> (&str, &str) {
        (&self.format.result.open, &self.format.result.close)
    }

    fn answer<'t>(&self, text: &'t str) -> &'t str {
        let answer = self.format.answer.last(text);
        if self.format.boxed { last_boxed(answer).unwrap_or(answer) } else { answer }
    }

    fn searches_at_once(&self) -> usize {
        if self.format.query == QueryForm::Call { usize::MAX } else { 1 }
    }

    fn write(&self, speech: &Speech<'_>) -> Message {
        let teacher = &self.format.teacher;
        let (template, thought, shown) = match speech {
            Speech::Search { thought, queries, .. } => {
                (&teacher.search, thought, self.format.search.around(&self.format.query.write(queries)))
            }
            Speech::Answer { thought, answer, .. } => {
                let boxed = format!(" The final answer is \\[ \\boxed{{{answer}}} \\] ");
                let answer = if self.format.boxed { boxed } else { format!(" {answer} ") };
                (&teacher.answer, thought, self.format.answer.around(&answer))
            }
            // Never asked for.
            Speech::Choice(_) => return Message::text(Role::Assistant, ""),
        };
        let thought = format!(" {} ", thought.trim());
        let text = filled(template, |name| match name {
            "thought" => Some(thought.as_str().into()),
            "search" | "answer" => Some(shown.as_str().into()),
            _ => None,
        });
        Message { finish_reason: Some("stop".to_owned()), ..Message::text(Role::Assistant, text) }
    }
}

/// Content of the last `\boxed{…}` with balanced braces, trimmed.
pub(super) fn last_boxed(text: &str) -> Option<&str> {
    braced(text.rsplit_once("\\boxed{")?.1).map(str::trim)
}

/// Returns the text up to the brace that closes one before it.
pub(crate) fn braced(inside: &str) -> Option<&str> {
    let mut open = 1_usize;
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(&inside[..at]);
        }
    }
    None
}
