//! Answers of services from recorded rollouts: a replay without the services.

use std::collections::BTreeMap;

use searchmill_engine::fingerprint::{Digest, hash_bytes};
use searchmill_engine::operator::{OperatorError, RowsInput};
use searchmill_schemas::{Message, Role, Trajectory, from_batch};
use serde_json::{Value, json};

use crate::protocol::{OfferedCall, Protocol, ToolOffer};
use crate::tool::{Called, SEARCH, ToolResult, failure_of, passage, query};

/// The calls of recorded rollouts, and the tools that their models were offered.
pub struct Recorded {
    /// Answers by the conversation before them and the call's id: a call that failed once and then succeeded does so
    /// again.
    exact: BTreeMap<(Digest, String), ToolResult>,
    /// Answers by tool and arguments, for other conversations.
    answers: BTreeMap<(String, String), ToolResult>,
    offers: Vec<ToolOffer>,
}

/// A call in a recorded conversation, and the message that answered it.
pub struct RecordedCall<'m> {
    /// Name of the tool.
    pub tool: &'m str,
    /// The arguments.
    pub arguments: Value,
    /// The answer.
    pub answer: &'m Message,
    /// Id of the call.
    id: &'m str,
    /// The conversation up to the message with the call.
    before: &'m [Message],
}

/// Returns the answered calls of a conversation, in order. Arguments that are not JSON were never run.
pub fn calls(messages: &[Message]) -> impl Iterator<Item = RecordedCall<'_>> {
    messages.iter().enumerate().flat_map(move |(position, message)| {
        let answers = shown_after(messages, position).iter().filter(|answer| answer.role == Role::Tool.name());
        message.tool_calls.iter().filter(|_| message.is_model()).filter_map(move |call| {
            let answer = answers.clone().find(|answer| answer.tool_call_id.as_deref() == Some(&call.id))?;
            let arguments = serde_json::from_str(call.written()).ok()?;
            Some(RecordedCall { tool: &call.name, arguments, answer, id: &call.id, before: &messages[..=position] })
        })
    })
}

/// A search in a recorded conversation whose searches are text.
pub struct RecordedSearch<'m> {
    /// The query.
    pub query: String,
    /// What the model was shown; `None` if the text does not say.
    pub result: Option<ToolResult>,
    /// The conversation up to the message with the search.
    before: &'m [Message],
}

/// Returns the answered searches of a conversation in a protocol whose searches are text, in order.
pub fn searches<'m>(protocol: &dyn Protocol, messages: &'m [Message]) -> Vec<RecordedSearch<'m>> {
    let mut found = Vec::new();
    for (position, message) in messages.iter().enumerate() {
        // Without results behind it, a message searched nothing: it is the answer, or was refused.
        let shown = shown_after(messages, position);
        if !message.is_model() || message.is_aside() || shown.iter().all(|message| message.tool_call_id.is_none()) {
            continue;
        }
        let actions = protocol.parse(message);
        let results = protocol.read_back(&actions, shown);
        for (number, action) in actions.iter().enumerate() {
            let Ok(arguments) = &action.arguments else { continue };
            let result = results.as_ref().and_then(|results| results.get(number).cloned());
            found.push(RecordedSearch { query: query(arguments).to_owned(), result, before: &messages[..=position] });
        }
    }
    found
}

/// The messages between a message of the model and its next one.
pub(crate) fn shown_after(messages: &[Message], position: usize) -> &[Message] {
    let rest = &messages[position + 1..];
    &rest[..rest.iter().position(Message::is_model).unwrap_or(rest.len())]
}

impl RecordedSearch<'_> {
    /// Why the service failed to answer; `None` for an answer, and for an error of a rule such as a limit.
    pub fn failure(&self) -> Option<&str> {
        let error = self.result.as_ref()?.as_ref().err()?;
        error.strip_prefix(failure_of(SEARCH, "").as_str())
    }

    /// Whether the service answered, or failed to.
    pub fn is_of_service(&self) -> bool {
        self.result.as_ref().is_none_or(Result::is_ok) || self.failure().is_some()
    }
}

/// The result behind a recorded answer. The first passage has the whole text.
pub(crate) fn result(answer: &Message) -> ToolResult {
    if let Some(error) = &answer.error {
        return Err(error.clone());
    }
    let mut text = answer.content.clone();
    Ok(answer.observations.iter().map(|seen| passage(seen, std::mem::take(&mut text))).collect())
}

impl RecordedCall<'_> {
    /// Why a tool failed to answer; `None` for an answer, and for an error of a rule such as a limit.
    pub fn failure(&self) -> Option<&str> {
        self.answer.error.as_deref()?.strip_prefix(failure_of(self.tool, "").as_str())
    }

    /// Whether a tool answered, or failed to.
    pub fn is_of_service(&self) -> bool {
        self.answer.error.is_none() || self.failure().is_some()
    }
}

/// The digest of a conversation: who said what, and called what.
fn digest(messages: &[Message]) -> Digest {
    // Token counts, scores and the like differ between runs of one conversation: they do not identify it.
    let said = messages.iter().map(|message| (&message.role, &message.content, &message.tool_calls));
    hash_bytes(json!(said.collect::<Vec<_>>()).to_string().as_bytes())
}

impl Recorded {
    /// Reads the input `recorded`. `protocol`: that of the rollouts, if its searches are text.
    ///
    /// # Errors
    /// If it cannot be read, or its searches are of another protocol.
    pub fn open(input: &RowsInput, protocol: Option<&dyn Protocol>) -> Result<Self, OperatorError> {
        let mut recorded = Self { exact: BTreeMap::new(), answers: BTreeMap::new(), offers: Vec::new() };
        for batch in input.batches() {
            for rollout in from_batch::<Trajectory>(&batch?)? {
                match protocol {
                    Some(protocol) => recorded.read_searches(protocol, &rollout)?,
                    None => recorded.read_calls(&rollout),
                }
            }
        }
        Ok(recorded)
    }

    fn read_calls(&mut self, rollout: &Trajectory) {
        if self.offers.is_empty() {
            self.offers = offered(&rollout.tools);
        }
        for call in calls(&rollout.messages).filter(RecordedCall::is_of_service) {
            let key = (call.tool.to_owned(), call.arguments.to_string());
            self.add((digest(call.before), call.id.to_owned()), key, result(call.answer));
        }
    }

    fn read_searches(&mut self, protocol: &dyn Protocol, rollout: &Trajectory) -> Result<(), OperatorError> {
        if rollout.protocol != protocol.name() {
            let (own, other) = (protocol.name(), &rollout.protocol);
            let message = format!("the recorded rollout `{}` is of the protocol `{other}`, not `{own}`", rollout.id);
            let help = "searches are read from the text that showed them: record with the same protocol";
            return Err(OperatorError::pipeline(message).with_help(help));
        }
        for search in searches(protocol, &rollout.messages).into_iter().filter(RecordedSearch::is_of_service) {
            // Passages that cannot be told apart would be shown in another way.
            let Some(result) = search.result else { continue };
            let key = (SEARCH.to_owned(), json!({"query": search.query}).to_string());
            self.add((digest(search.before), search.query), key, result);
        }
        Ok(())
    }

    fn add(&mut self, exact: (Digest, String), key: (String, String), result: ToolResult) {
        let answer = self.answers.entry(key).or_insert_with(|| result.clone());
        // An answer says more than a failure of the same call.
        if answer.is_err() && result.is_ok() {
            answer.clone_from(&result);
        }
        self.exact.entry(exact).or_insert(result);
    }

    /// The tools that the models of the recorded rollouts were offered.
    pub fn offers(&self) -> &[ToolOffer] {
        &self.offers
    }

    /// Returns the recorded answer to a search of this conversation, in a protocol whose searches are text.
    pub(super) fn search(&self, query: &str, messages: &[Message]) -> Called {
        let arguments = json!({"query": query});
        self.call(OfferedCall { id: query, tool: SEARCH, arguments: &arguments }, messages)
    }

    /// Returns the recorded answer to a call of this conversation.
    pub(super) fn call(&self, call: OfferedCall<'_>, messages: &[Message]) -> Called {
        let exact = self.exact.get(&(digest(messages), call.id.to_owned()));
        let key = (call.tool.to_owned(), call.arguments.to_string());
        // A call that this conversation did not record is answered by the same call of another one.
        let result = match exact.or(self.answers.get(&key)) {
            Some(result) => result.clone(),
            None => Err(failure_of(call.tool, "this call was not recorded, and the tool is offline")),
        };
        Called { failed: result.is_err(), ..Called::from(result) }
    }
}

/// Reads the tool definitions of a record.
pub fn offered(tools: &str) -> Vec<ToolOffer> {
    let tools: Vec<Value> = serde_json::from_str(tools).unwrap_or_default();
    tools.iter().filter_map(ToolOffer::read).collect()
}

#[cfg(test)]
mod tests {
    use searchmill_schemas::ToolCall;

    use super::*;

    #[test]
    fn calls_are_paired_with_their_own_answers() {
        let call = |id: &str, arguments: &str| ToolCall {
            id: id.to_owned(),
            name: "web".to_owned(),
            arguments: arguments.to_owned(),
        };
        let answer = |id: &str, text: &str| {
            let mut message = Message::text(Role::Tool, text);
            message.tool_call_id = Some(id.to_owned());
            message
        };
        let said = |calls: Vec<ToolCall>| {
            let mut message = Message::text(Role::Assistant, "");
            message.tool_calls = calls;
            message
        };
        let messages = [
            said(vec![call("a", r#"{"q": "x", "k": 1}"#), call("b", "{"), call("c", "")]),
            answer("c", "three"),
            answer("a", "one"),
            said(vec![call("a", r#"{"q": "y"}"#)]),
            answer("a", "two"),
        ];
        let found: Vec<_> = calls(&messages).map(|call| (call.arguments, call.answer.content.as_str())).collect();
        let expected = [(json!({"k": 1, "q": "x"}), "one"), (json!({}), "three"), (json!({"q": "y"}), "two")];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_call_that_failed_first_fails_first_again() {
        use searchmill_engine::operator::InputArtifact;
        use searchmill_engine::operator::testing::rows_input;
        use searchmill_schemas::Observation;

        let asked = || {
            let mut message = Message::text(Role::Assistant, "");
            message.tool_calls =
                vec![ToolCall { id: "c".to_owned(), name: "web".to_owned(), arguments: "{}".to_owned() }];
            message
        };
        let answer = |error: Option<&str>| {
            let mut message = Message::text(Role::Tool, error.unwrap_or("found"));
            message.tool_call_id = Some("c".to_owned());
            message.error = error.map(str::to_owned);
            let id = "x".to_owned();
            message.observations = vec![Observation { chunk_id: id.clone(), document_id: id, title: None, score: 0.0 }];
            message
        };
        let mut rollout = searchmill_fixtures::trajectories::trajectory("q", 0, "x", "x");
        let limit = answer(Some("all 1 searches are used up"));
        let failed = answer(Some("`web` failed: down"));
        rollout.messages = vec![asked(), failed, asked(), answer(None), asked(), limit];
        let InputArtifact::Rows(input) = rows_input(std::slice::from_ref(&rollout)) else { panic!("rows") };
        let recorded = Recorded::open(&input, None).expect("a record");
        let arguments = json!({});
        let call = |messages: &[Message]| {
            recorded.call(OfferedCall { id: "c", tool: "web", arguments: &arguments }, messages).result.is_ok()
        };
        assert!(!call(&rollout.messages[..1]) && call(&rollout.messages[..3]));
        assert!(call(&rollout.messages[..5]), "a limit of that rollout is no answer");
        assert!(call(&[]), "in another conversation, an answer says more");
    }
}
