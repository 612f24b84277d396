//! Rules of an episode, without I/O: what the model is offered, which of its calls run, when it ends and why.

use std::sync::Arc;

use searchmill_schemas::{CutObservation, Message, Question, Trajectory};
use serde_json::Value;

use super::observation_limit::ObservationLimit;
use super::protocol::{Action, Protocol};
use super::tool::ToolResult;

#[cfg(test)]
mod tests;

/// Settings shared by all episodes of a node.
pub struct Rules {
    pub protocol: Arc<dyn Protocol>,
    pub limits: Limits,
    /// Limit of each tool message.
    pub observations: Option<Arc<ObservationLimit>>,
}

/// Limits of an episode.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of model calls.
    pub max_turns: u32,
    /// Maximum number of searches that run.
    pub max_searches: Option<u32>,
    /// Whether the last turn asks for a final answer without tools.
    pub ask_for_answer: bool,
    /// Maximum number of tokens after the prompt, tool responses included.
    pub max_total_tokens: Option<u64>,
    /// Whether an invalid action ends the episode.
    pub ends_at_invalid: bool,
}

/// What the model may use in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Tools.
    Tools,
    /// No tools: the model can only answer.
    Nothing,
}

/// An event outside the episode.
#[derive(Debug)]
pub enum Event {
    /// The episode starts.
    Started,
    /// The model sent its message.
    Said(Message),
    /// The calls returned: one result per call, in the order of the calls.
    Returned(Vec<ToolResult>),
}

/// Next step for the driver of an episode.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Ask the model for its next message; followed by [`Event::Said`].
    Ask(Offer),
    /// Run tool calls with these arguments in parallel; followed by [`Event::Returned`].
    Call(Vec<Value>),
    /// The episode is over.
    End,
}

/// One question and its conversation up to the answer. Starts with [`Event::Started`]; each command names the event
/// that follows it.
pub struct Episode {
    rules: Arc<Rules>,
    question: String,
    messages: Vec<Message>,
    turns: u32,
    searches: u32,
    search_refused: bool,
    tool_calls: usize,
    /// The limit that makes the current turn the last one.
    limit: Option<&'static str>,
    /// Actions of the current turn that wait for results, in order, including those that do not run.
    open: Vec<Action>,
    /// Results that are shown once the model has replied to a request about them.
    choosing: Option<Vec<(Action, ToolResult)>>,
    /// Whether the model has ended its searches: its next message is the answer.
    closing: bool,
    /// Tool messages that were cut.
    cuts: Vec<CutObservation>,
    /// Why a tool message could not be cut.
    fault: Option<String>,
}

impl Episode {
    pub fn new(rules: Arc<Rules>, question: &str) -> Self {
        Self {
            messages: rules.protocol.opening(question),
            rules,
            question: question.to_owned(),
            turns: 0,
            searches: 0,
            search_refused: false,
            tool_calls: 0,
            limit: None,
            open: Vec::new(),
            choosing: None,
            closing: false,
            cuts: Vec::new(),
            fault: None,
        }
    }

    /// All messages so far. Messages are only appended.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The action behind one of the calls that the episode waits for, in their order, and its place among the actions of
    /// the message.
    pub fn called(&self, call: usize) -> Option<(usize, &Action)> {
        // The driver numbers only the calls that it was given: refused ones are not among them.
        self.open.iter().enumerate().filter(|(_, action)| action.arguments.is_ok()).nth(call)
    }

    /// Tool messages that were cut; `None` without a limit.
    pub fn cuts(&self) -> Option<&[CutObservation]> {
        self.rules.observations.as_ref().map(|_| self.cuts.as_slice())
    }

    /// Why the episode cannot go on: a tool message could not be tokenised.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Processes an event and returns the next command.
    pub fn step(&mut self, event: Event) -> Command {
        match event {
            Event::Started => self.ask(),
            Event::Said(message) => match self.choosing.take() {
                Some(answered) => self.choose(message, answered),
                None => self.receive(message),
            },
            Event::Returned(results) => self.show(results),
        }
    }

    /// Starts the next turn; before the last one, asks the model for its answer.
    fn ask(&mut self) -> Command {
        // The tokens of a turn are known only after it: a rollout may exceed the limit by one turn.
        if self.rules.limits.max_total_tokens.is_some_and(|most| self.tokens_after_the_prompt() >= most) {
            self.limit = Some("max_total_tokens");
            return Command::End;
        }
        // `follow_up` has asked for the answer already: `request_answer` must not ask a second time.
        if self.closing {
            return Command::Ask(Offer::Nothing);
        }
        let limits = &self.rules.limits;
        // A model that searches on after a refusal would be refused in every turn until `max_turns`.
        self.limit = if self.search_refused && limits.ask_for_answer {
            Some("max_searches")
        } else {
            (self.turns + 1 >= limits.max_turns).then_some("max_turns")
        };
        if !self.rules.protocol.searches() {
            return Command::Ask(Offer::Nothing);
        }
        // Without `ask_for_answer` the last turn is offered tools, too; a call in it ends the rollout (see `receive`).
        if self.limit.is_none() || !limits.ask_for_answer {
            return Command::Ask(Offer::Tools);
        }
        // Before the first turn there is nothing that could have been found.
        if self.turns > 0 {
            self.messages.extend(self.rules.protocol.request_answer(&self.question));
        }
        Command::Ask(Offer::Nothing)
    }

    /// Tokens after the prompt, as the policy counted them; those of the newest tool responses are not counted yet.
    fn tokens_after_the_prompt(&self) -> u64 {
        let mut turns = self.said();
        let Some(last) = turns.next() else { return 0 };
        // Turns come latest first: the last one of the iterator is the first turn, whose prompt is the opening alone.
        let Some(prompt) = turns.last().unwrap_or(last).prompt_tokens else { return 0 };
        let tokens = last.prompt_tokens.unwrap_or(0).saturating_add(last.completion_tokens.unwrap_or(0));
        u64::try_from(tokens.saturating_sub(prompt)).unwrap_or(0)
    }

    /// Processes the model's message. Only text written by the model is parsed.
    fn receive(&mut self, message: Message) -> Command {
        self.turns += 1;
        // The reply to the request for the answer is the answer, whatever tags it holds.
        let is_read = message.is_model() && !self.closing;
        let actions = if is_read { self.rules.protocol.parse(&message) } else { Vec::new() };
        let ends = is_read && actions.is_empty() && self.limit.is_none();
        let request = if ends { self.rules.protocol.follow_up(&self.question, &message) } else { None };
        self.messages.push(message);
        if let Some(request) = request {
            self.messages.push(request);
            self.closing = true;
            return self.ask();
        }
        // Before the limits: a call that was written counts, whether or not it runs.
        self.tool_calls += actions.iter().filter(|action| action.is_call()).count();
        if actions.is_empty() || self.limit.is_some() {
            // Without tools the first message is the answer, and no limit ended the rollout.
            let stopped = self.rules.protocol.searches() || !actions.is_empty();
            self.limit = self.limit.filter(|_| stopped);
            return Command::End;
        }
        if self.rules.limits.ends_at_invalid && actions.iter().any(|action| action.arguments.is_err()) {
            self.limit = Some("invalid_action");
            return Command::End;
        }
        self.open = actions.into_iter().map(|action| self.admitted(action)).collect();
        let calls: Vec<Value> = self.open.iter().filter_map(|action| action.arguments.as_ref().ok().cloned()).collect();
        // All actions were refused: the model reads why, and may go on.
        if calls.is_empty() {
            return self.step(Event::Returned(Vec::new()));
        }
        Command::Call(calls)
    }

    /// Returns the action, with an error if it must not run. An invalid call does not count as a search.
    fn admitted(&mut self, action: Action) -> Action {
        match self.rules.limits.max_searches {
            _ if action.arguments.is_err() => action,
            Some(most) if self.searches >= most => {
                self.search_refused = true;
                Action { arguments: Err(searches_used_up(most)), ..action }
            }
            _ => {
                self.searches += 1;
                action
            }
        }
    }

    /// Adds the results of the model's actions to the conversation, in their order, unless the protocol asks the model
    /// about them first.
    fn show(&mut self, results: Vec<ToolResult>) -> Command {
        let mut results = results.into_iter();
        let mut answered = Vec::with_capacity(self.open.len());
        for action in std::mem::take(&mut self.open) {
            let result = match &action.arguments {
                Ok(_) => results.next().unwrap_or(Err("the call gave no result".to_owned())),
                Err(reason) => Err(reason.clone()),
            };
            answered.push((action, result));
        }
        let protocol = self.rules.protocol.as_ref();
        if let Some(request) = protocol.ask_about(&answered) {
            self.messages.push(request);
            self.choosing = Some(answered);
            return Command::Ask(Offer::Nothing);
        }
        let shown = match &self.rules.observations {
            None => Ok((protocol.render(answered), Vec::new())),
            Some(limit) => limit.render(protocol, answered, self.messages.len()),
        };
        match shown {
            Ok((messages, cuts)) => {
                self.messages.extend(messages);
                self.cuts.extend(cuts);
            }
            Err(fault) => self.fault = Some(format!("a search result cannot be tokenised: {fault}")),
        }
        self.ask()
    }

    /// Adds the model's reply to a request about results, which is no turn, and the results.
    fn choose(&mut self, mut reply: Message, answered: Vec<(Action, ToolResult)>) -> Command {
        // Only what the model wrote is parsed.
        let text = if reply.is_model() { reply.content.as_str() } else { "" };
        let shown = self.rules.protocol.render_chosen(text, answered);
        // The id of the call marks the reply as part of the aside.
        reply.tool_call_id = self.messages.last().and_then(|request| request.tool_call_id.clone());
        self.messages.push(reply);
        self.messages.extend(shown);
        self.ask()
    }

    /// The model's messages of the conversation, latest first.
    fn said(&self) -> impl Iterator<Item = &Message> {
        self.messages.iter().rev().filter(|message| message.is_model() && !message.is_aside())
    }

    /// Reason why the episode ended.
    fn finish_reason(&self, prediction: &str) -> &'static str {
        match self.limit {
            // An answer counts as one, also if a limit made this turn the last or cut its text.
            _ if !prediction.is_empty() => "answered",
            // The episode ended here, whatever ended the model's last message.
            Some(limit @ ("max_total_tokens" | "invalid_action")) => limit,
            _ if self.said().next().is_some_and(Message::is_cut) => "length",
            Some(limit) => limit,
            None => "no_answer",
        }
    }

    /// Tokens of all calls, and of the last turn.
    fn tokens(&self, of: fn(&Message) -> Option<i64>) -> (i64, i64) {
        // Replies of asides were paid for, too; the last turn is one of the conversation.
        let calls = self.messages.iter().filter(|message| message.is_model());
        let all = calls.map(|message| of(message).unwrap_or(0).max(0)).sum();
        (all, self.said().next().and_then(of).unwrap_or(0))
    }

    /// Builds the record of the episode; `policy` and `model` gave the answers.
    pub fn trajectory(self, question: Question, sample: u32, policy: &str, model: Option<String>) -> Trajectory {
        let answer = self.said().next().map_or_else(String::new, |message| message.content.clone());
        let prediction = self.rules.protocol.answer(&answer).to_owned();
        let (prompt_tokens, last_prompt_tokens) = self.tokens(|message| message.prompt_tokens);
        let (completion_tokens, last_completion_tokens) = self.tokens(|message| message.completion_tokens);
        Trajectory {
            id: format!("{}@{sample}", question.id),
            question_id: question.id,
            sample_index: i32::try_from(sample).unwrap_or(i32::MAX),
            question: question.question,
            golden_answers: question.golden_answers,
            question_type: question.question_type,
            evidence: question.evidence,
            policy: policy.to_owned(),
            model,
            protocol: self.rules.protocol.name().to_owned(),
            tools: self.rules.protocol.tools().to_owned(),
            finish_reason: self.finish_reason(&prediction).to_owned(),
            answer,
            prediction,
            turns: self.turns as i32,
            tool_calls: self.tool_calls as i32,
            prompt_tokens,
            completion_tokens,
            last_prompt_tokens,
            last_completion_tokens,
            messages: self.messages,
            metadata: question.metadata,
        }
    }
}

/// Error text for a search beyond the limit.
pub fn searches_used_up(most: u32) -> String {
    format!("all {most} searches are used up, this one was not run; answer from what has been found")
}
