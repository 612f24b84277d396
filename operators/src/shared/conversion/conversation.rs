//! A rollout in the form that training formats need: messages whose tool calls have parsed arguments.

use searchmill_models::inference::parse_tools;
use searchmill_schemas::{Message as Recorded, Role, ToolCall, Trajectory};
use searchmill_text::json::Json;
use searchmill_text::unambiguous;

use crate::shared::unfit::Unfit;

/// Messages of a rollout and the tools it was offered.
pub(crate) struct Conversation {
    /// Tool definitions, in order.
    pub(crate) tools: Vec<Json>,
    pub(crate) messages: Vec<Message>,
    /// Whether tool messages continue the model's turn.
    pub(crate) is_one_text: bool,
}

/// One message.
#[derive(PartialEq)]
pub(crate) enum Message {
    System(String),
    User(String),
    Assistant(Spoken),
    Tool(Told),
}

/// Output of the model in one turn.
#[derive(PartialEq)]
pub(crate) struct Spoken {
    pub(crate) content: String,
    pub(crate) reasoning: Option<String>,
    pub(crate) calls: Vec<Call>,
}

/// A tool call with its arguments parsed.
#[derive(PartialEq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// A JSON object.
    pub(crate) arguments: Json,
}

/// Result of a tool call.
#[derive(PartialEq)]
pub(crate) struct Told {
    pub(crate) content: String,
    pub(crate) call_id: Option<String>,
    /// Tool name, if the matching call is known.
    pub(crate) name: Option<String>,
}

impl Conversation {
    /// Converts a rollout; fails if it is unfit for training.
    pub(crate) fn new(trajectory: &Trajectory) -> Result<Self, Unfit> {
        let tools = parse_tools(&trajectory.tools)
            .map_err(|message| Unfit { message, detail: Some(trajectory.tools.clone()) })?;
        Ok(Self { tools, messages: messages(&trajectory.conversation())?, is_one_text: trajectory.is_one_text() })
    }

    /// Returns the asides of a rollout in which the model replied.
    pub(crate) fn asides(trajectory: &Trajectory) -> Vec<Self> {
        let mut asides = Vec::new();
        for aside in trajectory.asides() {
            // An aside with an empty reply is left out: nothing is to be learnt from it.
            if let Ok(messages) = messages(&aside) {
                asides.push(Self { tools: Vec::new(), messages, is_one_text: false });
            }
        }
        asides
    }
}

/// Fails for a rollout that a model should not learn as a whole: one that was cut, or that ended without an answer.
pub(crate) fn require_finished(trajectory: &Trajectory) -> Result<(), Unfit> {
    if trajectory.messages.iter().any(|message| message.is_model() && message.is_cut()) {
        return Err(Unfit::new("the limit of tokens (`max_tokens`) cut a message of the model"));
    }
    match trajectory.finish_reason.as_str() {
        reason if UNANSWERED.contains(&reason) => {
            Err(Unfit::new(format!("the rollout has no answer (finish reason `{reason}`)")))
        }
        _ => Ok(()),
    }
}

/// Finish reasons of rollouts without an answer.
const UNANSWERED: [&str; 6] =
    ["length", "no_answer", "max_turns", "max_searches", "max_total_tokens", "invalid_action"];

fn messages(recorded: &[Recorded]) -> Result<Vec<Message>, Unfit> {
    let mut messages = Vec::with_capacity(recorded.len());
    for said in recorded {
        messages.push(message(said, &messages)?);
    }
    match messages.last() {
        Some(Message::Assistant(last)) if last.content.trim().is_empty() && last.calls.is_empty() => {
            Err(Unfit::new("the last turn of the model is empty"))
        }
        Some(Message::Assistant(_)) => Ok(messages),
        _ => Err(Unfit::new("the last turn is not the model's")),
    }
}

impl Spoken {
    /// The text; with `thinking`, preceded by the reasoning in `<think>` tags.
    pub(crate) fn text(&self, thinking: bool) -> String {
        match self.thought(thinking) {
            Some(thought) => thought + self.content.trim_start_matches('\n'),
            None => self.content.clone(),
        }
    }

    /// The reasoning in `<think>` tags, as it stands before the text.
    pub(crate) fn thought(&self, thinking: bool) -> Option<String> {
        let reasoning = self.reasoning(thinking)?.trim_matches('\n');
        Some(format!("<think>\n{reasoning}\n</think>\n\n"))
    }

    /// The reasoning, if present and `thinking` is set.
    pub(crate) fn reasoning(&self, thinking: bool) -> Option<&str> {
        self.reasoning.as_deref().filter(|reasoning| thinking && !reasoning.trim().is_empty())
    }
}

fn message(message: &Recorded, before: &[Message]) -> Result<Message, Unfit> {
    let content = message.content.clone();
    match message.role.as_str() {
        name if name == Role::System.name() => Ok(Message::System(content)),
        name if name == Role::User.name() => Ok(Message::User(content)),
        name if name == Role::Tool.name() => Ok(Message::Tool(told(message, before)?)),
        name if name == Role::Assistant.name() => {
            let calls = message.tool_calls.iter().map(call).collect::<Result<Vec<_>, _>>()?;
            for (index, call) in calls.iter().enumerate() {
                // A result could belong to two calls.
                if !call.id.is_empty() && calls[..index].iter().any(|other| other.id == call.id) {
                    return Err(Unfit::new(format!("two calls of one message have the id `{}`", call.id)));
                }
            }
            Ok(Message::Assistant(Spoken { content, reasoning: message.reasoning.clone(), calls }))
        }
        other => Err(Unfit::new(format!("a message has the unknown role `{other}`"))),
    }
}

fn told(message: &Recorded, before: &[Message]) -> Result<Told, Unfit> {
    let asked = before.iter().rev().find_map(|message| match message {
        Message::Assistant(spoken) => Some(&spoken.calls),
        _ => None,
    });
    let answered = asked.and_then(|calls| match &message.tool_call_id {
        Some(id) => calls.iter().find(|call| &call.id == id),
        None => calls.first(),
    });
    // A rollout that is one text has results without calls.
    if let (Some(id), None) = (&message.tool_call_id, answered)
        && asked.is_some_and(|calls| !calls.is_empty())
    {
        return Err(Unfit::new(format!("a result is for the call `{id}`, which the message before it does not make")));
    }
    Ok(Told {
        content: message.content.clone(),
        call_id: message.tool_call_id.clone(),
        name: answered.map(|call| call.name.clone()),
    })
}

/// Parses a call; its arguments must be an object.
fn call(call: &ToolCall) -> Result<Call, Unfit> {
    if call.name.trim().is_empty() {
        return Err(Unfit { message: "a call has no name".to_owned(), detail: Some(call.arguments.clone()) });
    }
    let reason = match Json::parse(call.written()) {
        Ok(arguments @ Json::Object(_)) => match unambiguous::parse(call.written()) {
            Ok(_) => return Ok(Call { id: call.id.clone(), name: call.name.clone(), arguments }),
            // Of two values of a field, only one would be left: the model wrote both.
            Err(error) => error.to_string(),
        },
        Ok(_) => "something else was found".to_owned(),
        Err(error) => error,
    };
    let message = format!("the arguments of the call to `{}` are not a JSON object: {reason}", call.name);
    Err(Unfit { message, detail: Some(call.arguments.clone()) })
}
