//! Replay of a recorded rollout: the model's messages come from the record, all others from the rules.

use std::sync::Arc;

use searchmill_schemas::{Message, Role, Trajectory};
use serde_json::Value;

use crate::episode::{Command, Episode, Event, Rules};
use crate::outside::{recorded_result, shown_after};
use crate::protocol::{Action, Protocol};
use crate::tool::ToolResult;

/// A rollout and the state of its episode.
pub(super) struct Replay<'a> {
    pub(super) rollout: &'a Trajectory,
    pub(super) episode: Episode,
    protocol: Arc<dyn Protocol>,
    command: Command,
    /// Positions of the replayed model messages: in the record, in the episode.
    said: Vec<(usize, usize)>,
}

/// A message of another role than the model: as recorded, as derived.
pub(super) struct Pair<'a> {
    /// Position in the record.
    pub(super) place: usize,
    pub(super) is_tool: bool,
    /// Whether it precedes the model's first message.
    opens: bool,
    pub(super) recorded: Option<&'a Message>,
    pub(super) derived: Option<&'a Message>,
    /// The action that a tool message answers.
    pub(super) action: Option<Action>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(rules: Arc<Rules>, rollout: &'a Trajectory) -> Self {
        let protocol = Arc::clone(&rules.protocol);
        let mut episode = Episode::new(rules, &rollout.question);
        let command = episode.step(Event::Started);
        Self { rollout, episode, protocol, command, said: Vec::new() }
    }

    /// Replays until the episode waits for calls and returns their arguments; empty once the record or the episode
    /// ends.
    pub(super) fn calls(&mut self) -> &[Value] {
        while let (Command::Ask(_), Some(place)) = (&self.command, self.next_said()) {
            self.said.push((place, self.episode.messages().len()));
            self.command = self.episode.step(Event::Said(self.rollout.messages[place].clone()));
        }
        match &self.command {
            Command::Call(calls) => calls,
            _ => &[],
        }
    }

    pub(super) fn returned(&mut self, results: Vec<ToolResult>) {
        self.command = self.episode.step(Event::Returned(results));
    }

    /// Returns the result that the record has for a call of the latest replayed message.
    pub(super) fn recorded(&self, id: &str) -> ToolResult {
        let from = self.said.last().map_or(0, |(place, _)| place + 1);
        let until = self.next_said().unwrap_or(self.rollout.messages.len());
        let mut answers = self.rollout.messages[from..until].iter();
        let answer = answers.find(|message| message.tool_call_id.as_deref() == Some(id));
        answer.map_or_else(|| Err("the record has no answer".to_owned()), recorded_result)
    }

    /// Returns the result that the record has for one of the calls that the episode waits for.
    pub(super) fn recorded_call(&self, call: usize) -> ToolResult {
        let Some((number, action)) = self.episode.called(call) else { return Err("there is no call".to_owned()) };
        let Some((place, _)) = self.said.last() else { return Err("there is no call".to_owned()) };
        let messages = &self.rollout.messages;
        let results = self.protocol.read_back(&self.protocol.parse(&messages[*place]), shown_after(messages, *place));
        let result = results.and_then(|results| results.into_iter().nth(number));
        result.unwrap_or_else(|| self.recorded(&action.id))
    }

    /// Position of the model's next message in the record.
    fn next_said(&self) -> Option<usize> {
        let from = self.said.last().map_or(0, |(place, _)| place + 1);
        (from..self.rollout.messages.len()).find(|place| self.rollout.messages[*place].is_model())
    }

    /// Reports an extra or missing model message: what, as recorded, as derived.
    pub(super) fn end(&self) -> Option<(String, String, String)> {
        let (said, told) = ("a message of the model".to_owned(), |place| format!("message {place}"));
        match (&self.command, self.next_said()) {
            (Command::End, Some(place)) => Some((told(place), said, "the rollout had ended".to_owned())),
            (Command::Ask(_), None) => Some((told(self.rollout.messages.len()), "none".to_owned(), said)),
            _ => None,
        }
    }

    /// Pairs all messages other than the model's from record and episode, in the sections between model messages.
    pub(super) fn pairs(&self) -> Vec<Pair<'_>> {
        let (record, episode) = (&self.rollout.messages, self.episode.messages());
        let ends = (self.next_said().unwrap_or(record.len()), episode.len());
        let (mut pairs, mut start) = (Vec::new(), (0, 0));
        for (number, end) in self.said.iter().copied().chain([ends]).enumerate() {
            let said = number.checked_sub(1).map(|before| &record[self.said[before].0]);
            let actions = said.map(|message| self.protocol.parse(message)).unwrap_or_default();
            for is_tool in [true, false] {
                let recorded = of(record, start.0..end.0, is_tool);
                let derived = of(episode, start.1..end.1, is_tool);
                pairs.extend((0..recorded.len().max(derived.len())).map(|at| Pair {
                    place: recorded.get(at).map_or(start.0 + at, |(place, _)| *place),
                    is_tool,
                    opens: said.is_none(),
                    recorded: recorded.get(at).map(|(_, message)| *message),
                    derived: derived.get(at).map(|(_, message)| *message),
                    action: actions.get(at).filter(|_| is_tool).cloned(),
                }));
            }
            start = (end.0 + 1, end.1 + 1);
        }
        pairs
    }
}

/// Returns the messages in a range that are tool messages (or not), with their positions.
fn of(messages: &[Message], range: std::ops::Range<usize>, is_tool: bool) -> Vec<(usize, &Message)> {
    let fits = |(_, message): &(usize, &Message)| (message.role == Role::Tool.name()) == is_tool;
    range.clone().zip(&messages[range]).filter(fits).collect()
}

impl Pair<'_> {
    /// Description of the message.
    pub(super) fn name(&self) -> String {
        let role = self.derived.filter(|_| self.opens).map(|message| message.role.as_str());
        match role {
            Some("system") => "system prompt".to_owned(),
            Some("user") => "question told to the model".to_owned(),
            _ => format!("message {}", self.place),
        }
    }
}
