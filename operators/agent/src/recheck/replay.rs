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
    pub(super) position: usize,
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
        while let (Command::Ask(_), Some(position)) = (&self.command, self.next_said()) {
            self.said.push((position, self.episode.messages().len()));
            self.command = self.episode.step(Event::Said(self.rollout.messages[position].clone()));
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
        let messages = &self.rollout.messages;
        let until = self.next_said().unwrap_or(messages.len());
        let mut answers = messages[self.after_said()..until].iter();
        match answers.find(|message| message.tool_call_id.as_deref() == Some(id)) {
            Some(answer) => recorded_result(answer),
            None => Err("the record has no answer".to_owned()),
        }
    }

    /// Returns the result that the record has for one of the calls that the episode waits for.
    pub(super) fn recorded_call(&self, call: usize) -> ToolResult {
        let (Some((number, action)), Some((position, _))) = (self.episode.called(call), self.said.last()) else {
            return Err("there is no call".to_owned());
        };
        let messages = &self.rollout.messages;
        let actions = self.protocol.parse(&messages[*position]);
        // Text protocols show all results in one text, native calls each by its id.
        if let Some(results) = self.protocol.read_back(&actions, shown_after(messages, *position))
            && let Some(result) = results.into_iter().nth(number)
        {
            return result;
        }
        self.recorded(&action.id)
    }

    /// Position in the record after the latest replayed message.
    fn after_said(&self) -> usize {
        self.said.last().map_or(0, |(position, _)| position + 1)
    }

    /// Position of the model's next message in the record.
    fn next_said(&self) -> Option<usize> {
        (self.after_said()..self.rollout.messages.len()).find(|position| self.rollout.messages[*position].is_model())
    }

    /// Reports an extra or missing model message: what, as recorded, as derived.
    pub(super) fn end(&self) -> Option<(String, String, String)> {
        let said = "a message of the model";
        let (position, recorded, derived) = match (&self.command, self.next_said()) {
            (Command::End, Some(position)) => (position, said, "the rollout had ended"),
            (Command::Ask(_), None) => (self.rollout.messages.len(), "none", said),
            _ => return None,
        };
        Some((format!("message {position}"), recorded.to_owned(), derived.to_owned()))
    }

    /// Pairs all messages other than the model's from record and episode, in the sections between model messages.
    pub(super) fn pairs(&self) -> Vec<Pair<'_>> {
        let (record, episode) = (&self.rollout.messages, self.episode.messages());
        let ends = (self.next_said().unwrap_or(record.len()), episode.len());
        let (mut pairs, mut start) = (Vec::new(), (0, 0));
        // The model's message before the section; none before the first one.
        let mut said: Option<&Message> = None;
        for end in self.said.iter().copied().chain([ends]) {
            let actions = said.map(|message| self.protocol.parse(message)).unwrap_or_default();
            // By kind: a message that is missing or too much shifts only those of its own kind.
            for is_tool in [true, false] {
                let recorded = of(record, start.0..end.0, is_tool);
                let derived = of(episode, start.1..end.1, is_tool);
                for index in 0..recorded.len().max(derived.len()) {
                    pairs.push(Pair {
                        position: recorded.get(index).map_or(start.0 + index, |(position, _)| *position),
                        is_tool,
                        opens: said.is_none(),
                        recorded: recorded.get(index).map(|(_, message)| *message),
                        derived: derived.get(index).map(|(_, message)| *message),
                        action: if is_tool { actions.get(index).cloned() } else { None },
                    });
                }
            }
            start = (end.0 + 1, end.1 + 1);
            said = record.get(end.0);
        }
        pairs
    }
}

/// Returns the messages in a range that are tool messages (or not), with their positions.
fn of(messages: &[Message], range: std::ops::Range<usize>, is_tool: bool) -> Vec<(usize, &Message)> {
    let numbered = range.clone().zip(&messages[range]);
    numbered.filter(|(_, message)| (message.role == Role::Tool.name()) == is_tool).collect()
}

impl Pair<'_> {
    /// Description of the message.
    pub(super) fn name(&self) -> String {
        match self.derived {
            Some(message) if self.opens && message.role == "system" => "system prompt".to_owned(),
            Some(message) if self.opens && message.role == "user" => "question told to the model".to_owned(),
            _ => format!("message {}", self.position),
        }
    }
}
