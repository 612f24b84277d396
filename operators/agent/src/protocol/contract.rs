//! Contract of a protocol.

use std::borrow::Cow;

use searchmill_schemas::{Message, Role, in_turns};
use serde_json::{Value, json};

use super::definition::ToolDefinition;
use super::offer::ToolOffer;
use crate::tool::ToolResult;

/// Place of the question in a prompt.
pub const QUESTION: &str = "{question}";

/// Answer if the passages do not support any other.
pub(crate) const INSUFFICIENT: &str = "Insufficient Information";

/// The part of a protocol that a model knows: how a conversation is sent to it. The defaults are those of a plain chat.
pub trait ChatFormat: Send + Sync {
    /// Definitions of the tools offered to the model, as a JSON list.
    #[expect(clippy::unnecessary_literal_bound, reason = "other protocols return their own text")]
    fn tools(&self) -> &str {
        "[]"
    }

    /// Whether the whole rollout is one text: tool messages continue the model's turn instead of starting a new one.
    fn is_one_text(&self) -> bool {
        false
    }

    /// Whether results are messages of the user, in a chat without tools.
    fn is_in_turns(&self) -> bool {
        false
    }

    /// Texts that end a message of the model, in addition to its end-of-turn token.
    fn stop(&self) -> &[String] {
        &[]
    }

    /// The stop text that is missing at the end of a message, judged by its tags. Most servers cut it off.
    fn missing_stop(&self, _text: &str) -> Option<&str> {
        None
    }
}

/// A chat in messages, without tools.
pub(crate) struct PlainChat;

impl ChatFormat for PlainChat {}

/// Defines how a model requests tools, sees their results, and marks its answer. A protocol does no I/O and parses
/// only text that the model wrote.
pub trait Protocol: ChatFormat {
    /// Name recorded in trajectories.
    fn name(&self) -> &str;

    /// Messages before the model's first message.
    fn opening(&self, question: &str) -> Vec<Message>;

    /// Whether the model can search. A protocol whose calls are plain text defines no tools and decides this itself.
    fn searches(&self) -> bool {
        self.tools() != "[]"
    }

    /// Returns the actions that a message of the model requests, in order.
    fn parse(&self, message: &Message) -> Vec<Action>;

    /// Returns the messages that show the model the results of the actions of one message.
    fn render(&self, answered: Vec<(Action, ToolResult)>) -> Vec<Message>;

    /// Returns a request to the model about the results of one message, if the protocol has one. The model answers it in
    /// an aside (see [`Message::is_aside`]), and only then the results are shown, by [`Self::render_chosen`]. Its last
    /// lines list the passages, one on each line, in the order of its observations.
    fn ask_about(&self, _answered: &[(Action, ToolResult)]) -> Option<Message> {
        None
    }

    /// Returns the messages that show the model the results after its reply to [`Self::ask_about`].
    fn render_chosen(&self, _reply: &str, answered: Vec<(Action, ToolResult)>) -> Vec<Message> {
        self.render(answered)
    }

    /// Returns the results behind the recorded messages that answered one message's actions: rendered again, they give
    /// the same text. `None` if the text does not say, and with native calls, whose records are read by their ids.
    fn read_back(&self, _actions: &[Action], _shown: &[Message]) -> Option<Vec<ToolResult>> {
        None
    }

    /// Texts around the results in a tool message, which stay if the results are cut.
    fn observation_tags(&self) -> (&str, &str) {
        ("", "")
    }

    /// Returns the message that asks for the final answer before the last turn, if the protocol has one.
    fn request_answer(&self, _question: &str) -> Option<Message> {
        None
    }

    /// Returns the request that follows a message in which the model ends its searches, if the protocol has one. The
    /// reply to it is the final answer.
    fn follow_up(&self, _question: &str, _message: &Message) -> Option<Message> {
        None
    }

    /// Returns the final answer in a text of the model; empty if there is none.
    fn answer<'t>(&self, text: &'t str) -> &'t str;

    /// How many searches one message can request.
    fn searches_at_once(&self) -> usize {
        usize::MAX
    }

    /// Writes what a teacher says, as the model of this protocol would.
    fn write(&self, speech: &Speech<'_>) -> Message;
}

/// Settings that a rollout passes to its protocol.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProtocolSettings<'a> {
    /// Name of the search tool; `None` offers no tool (closed book).
    pub tool: Option<&'a str>,
    /// Definition of the search tool, instead of the protocol's own.
    pub definition: Option<&'a ToolDefinition>,
    /// Tools beside the search tool.
    pub offers: &'a [ToolOffer],
    /// Whether passages show the ids of their chunks.
    pub shows_ids: bool,
    /// First message of every conversation, instead of the protocol's own.
    pub system_prompt: Option<&'a str>,
    /// Template of the question's message, instead of the protocol's own; contains `{question}`.
    pub user_prompt: Option<&'a str>,
    /// Search limit stated in the prompt.
    pub max_searches: Option<u32>,
    /// Whether the model continues plain text instead of a chat.
    pub plain: bool,
    /// Whether the model is told about a message with neither a search nor an answer, whatever the protocol does.
    pub tells_invalid: bool,
}

/// A tool call requested by a message of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// Id that the result refers to.
    pub id: String,
    /// Tool name as the model wrote it; empty if the message requests nothing that the protocol knows.
    pub tool: String,
    /// The arguments (a JSON object), or an error for the model if the call must not run. Those of a search have a
    /// `query`; others are read by [`OfferedCall::of`](super::offer::OfferedCall::of).
    pub arguments: Result<Value, String>,
}

impl Action {
    /// Returns the actions of a call: one for each query, or one with what is wrong.
    pub(super) fn searches(id: &str, tool: &str, queries: Result<Vec<String>, String>) -> Vec<Self> {
        let searches: Vec<Result<Value, String>> = match queries {
            Ok(queries) => queries.into_iter().map(|query| Ok(json!({"query": query}))).collect(),
            Err(error) => vec![Err(error)],
        };
        searches.into_iter().map(|arguments| Self { id: id.to_owned(), tool: tool.to_owned(), arguments }).collect()
    }

    /// Whether the message asks for a tool, rightly or not.
    pub fn is_call(&self) -> bool {
        !self.tool.is_empty()
    }
}

/// What the model reads before its next message.
pub struct Seen<'m> {
    pub messages: Cow<'m, [Message]>,
    /// Whether this is a conversation of its own, beside the one that grows.
    pub is_aside: bool,
}

impl<'m> Seen<'m> {
    /// What the model reads of these messages; `in_turns`: see [`ChatFormat::is_in_turns`].
    pub fn of(messages: &'m [Message], in_turns_of_chat: bool) -> Self {
        if !in_turns_of_chat {
            return Self { messages: Cow::Borrowed(messages), is_aside: false };
        }
        match messages.last().filter(|last| last.is_aside()) {
            Some(request) => Self { messages: Cow::Owned(vec![request.plain(Role::User)]), is_aside: true },
            None => Self { messages: Cow::Owned(in_turns(messages)), is_aside: false },
        }
    }
}

/// What a teacher says in one message.
#[derive(Clone, Debug)]
pub enum Speech<'a> {
    /// Searches for these queries.
    Search {
        /// What the results say; empty before the first search.
        remark: &'a str,
        /// Words before the searches, the remark included.
        thought: String,
        queries: &'a [String],
        /// Number of messages so far, for ids of calls.
        place: usize,
    },
    /// Answers.
    Answer {
        /// What the results say.
        remark: &'a str,
        /// Words before the answer, the remark included.
        thought: String,
        answer: &'a str,
        /// Whether the last message asks for the answer.
        requested: bool,
    },
    /// Chooses among the passages of a request, best first (numbers from 1).
    Choice(&'a [usize]),
}

/// Joins two sentences, either of which may be empty.
pub(crate) fn joined(first: &str, second: &str) -> String {
    if first.is_empty() || second.is_empty() { format!("{first}{second}") } else { format!("{first} {second}") }
}
