//! Recomputes the parts of recorded rollouts that do not come from the model. Replays the model's recorded messages
//! under the rules of the episode; prompt, tool responses, counts and extracted answer must match the record.

mod replay;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use searchmill_engine::operator::{OperatorError, Recheck, Rechecked, RowDifference};
use searchmill_retrieval::{Found, Search};
use searchmill_schemas::{
    CutObservation, CutObservations, Message, Observation, Question, RecordedTokens, Trajectory, from_batch,
};
use serde_json::{Value, json};

use self::replay::{Pair, Replay};
use super::episode::Rules;
use super::outside::Opener;
use super::protocol::{Action, OfferedCall};
use super::tokens::contradiction;
use super::tool::{RERANKER, SEARCH, ToolResult, failure_of, nothing_to_search, query};

/// Relative tolerance of scores: those of dense indexes may differ in the last bits between CPUs.
const SCORE_TOLERANCE: f64 = 1e-5;
/// Number of rollouts replayed together, so that their searches run in one batch.
const AT_ONCE: usize = 256;

/// Returns the rules of rollouts with these recorded tool definitions.
pub type RulesOf = Box<dyn Fn(&str) -> Arc<Rules> + Send + Sync>;

/// Checks the rollouts of a node. What services answered cannot be derived again and is taken from the record.
pub struct RolloutRecheck {
    pub rules: RulesOf,
    /// Documents that the rollouts could open.
    pub opener: Option<Opener>,
    pub search: Option<Search>,
    /// Whether a service answered the searches. They are taken from the record.
    pub live: bool,
    /// Whether a reranker ordered what was found. The order is taken from the record.
    pub reranks: bool,
    /// Questions of the node's input, by id.
    pub questions: BTreeMap<String, Question>,
}

impl Recheck for RolloutRecheck {
    fn port(&self) -> &'static str {
        "trajectories"
    }

    fn check(&self, rows: &RecordBatch) -> Result<Rechecked, OperatorError> {
        let rollouts: Vec<Trajectory> = from_batch(rows)?;
        let mut found = Rechecked::default();
        if let Some(recorded) = RecordedTokens::from_batch(rows)? {
            for (rollout, recorded) in rollouts.iter().zip(&recorded) {
                found.compared += 1;
                if let Some(parts) = contradiction(&recorded.tokens, &rollout.messages) {
                    found.differences.push(difference(rollout, parts));
                }
            }
        }
        let mut cuts = CutObservations::from_batch(rows)?.map(Vec::into_iter);
        for rollouts in rollouts.chunks(AT_ONCE) {
            let mut replays: Vec<_> =
                rollouts.iter().map(|rollout| Replay::new((self.rules)(&rollout.tools), rollout)).collect();
            self.play(&mut replays)?;
            for replay in replays {
                let recorded = cuts.as_mut().and_then(Iterator::next);
                self.compare(replay, recorded.as_ref(), &mut found);
            }
        }
        Ok(found)
    }
}

impl RolloutRecheck {
    /// Replays all rollouts to their ends, with their pending searches in one batch.
    fn play(&self, replays: &mut [Replay<'_>]) -> Result<(), OperatorError> {
        loop {
            let calls: Vec<Vec<Value>> = replays.iter_mut().map(|replay| replay.calls().to_vec()).collect();
            if calls.iter().all(Vec::is_empty) {
                return Ok(());
            }
            let searches = calls.iter().flatten().filter(|call| OfferedCall::of(call).is_none());
            let queries: Vec<&str> = searches.map(query).collect();
            // One batch for all rollouts: that is why they are replayed together.
            let lists = match &self.search {
                Some(search) => search.search_batch(&queries)?,
                None => Vec::new(),
            };
            let mut lists = lists.into_iter();
            for (replay, calls) in replays.iter_mut().zip(&calls) {
                // An episode that waits for no call has ended.
                if calls.is_empty() {
                    continue;
                }
                let mut results = Vec::with_capacity(calls.len());
                for (number, call) in calls.iter().enumerate() {
                    if let Some(call) = OfferedCall::of(call) {
                        // Derived again, or as recorded.
                        results.push(match &self.opener {
                            Some(open) if open.name() == call.tool => open.call(call, replay.episode.messages())?,
                            _ => replay.recorded(call.id),
                        });
                    } else if self.live {
                        results.push(replay.recorded_call(number));
                    } else {
                        let found = lists.next().map_or_else(nothing_to_search, Ok);
                        results.push(if self.reranks { reranked(found, replay.recorded_call(number)) } else { found });
                    }
                }
                replay.returned(results);
            }
        }
    }

    /// Whether a message answers a call that was taken from the record.
    fn is_taken(&self, pair: &Pair<'_>) -> bool {
        let Some(derived) = pair.derived else { return false };
        // The request about the passages of a search lists them all.
        if self.live && derived.is_aside() {
            return pair.recorded == pair.derived;
        }
        let Some(Action { arguments: Ok(arguments), .. }) = &pair.action else { return false };
        if derived.error != pair.recorded.and_then(|recorded| recorded.error.clone()) {
            return false;
        }
        if self.live {
            // An error that the episode itself wrote (a limit, a call that must not run) is derived again.
            return derived.error.as_ref().is_none_or(|error| error.starts_with(&failure_of(SEARCH, "")));
        }
        match (OfferedCall::of(arguments), &self.opener) {
            (Some(call), Some(opener)) => opener.name() != call.tool,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    fn compare(&self, replay: Replay<'_>, cuts: Option<&CutObservations>, found: &mut Rechecked) {
        let rollout = replay.rollout;
        let mut taken = BTreeSet::new();
        for pair in replay.pairs() {
            if self.is_taken(&pair) {
                found.taken += 1;
                taken.insert(i32::try_from(pair.position).unwrap_or(i32::MAX));
                continue;
            }
            found.compared += 1;
            if let Some(parts) = message_difference(&pair) {
                found.differences.push(difference(rollout, parts));
            }
        }
        found.differences.extend(cut_difference(&replay, cuts, &taken));
        if let Some(parts) = replay.end() {
            found.differences.push(difference(rollout, parts));
        }
        let asked = self.questions.get(&rollout.question_id);
        let sample = u32::try_from(rollout.sample_index).unwrap_or_default();
        // A question that the input lacks is reported once, below: the other parts are compared all the same.
        let question = asked.cloned().unwrap_or_else(|| question(rollout));
        let derived = replay.episode.trajectory(question, sample, &rollout.policy, rollout.model.clone());
        for ((what, recorded), (_, derived)) in parts(rollout).into_iter().zip(parts(&derived)) {
            found.compared += 1;
            if recorded != derived {
                found.differences.push(difference(rollout, (what.to_owned(), recorded, derived)));
            }
        }
        if asked.is_none() {
            found.compared += 1;
            let unknown = "the question is not in the node's input".to_owned();
            let parts = ("question".to_owned(), rollout.question_id.clone(), unknown);
            found.differences.push(difference(rollout, parts));
        }
    }
}

/// Returns what was found in the recorded order with the recorded scores; or the recorded failure of the reranker. A
/// record that is no selection of what was found stays a difference.
fn reranked(found: ToolResult, recorded: ToolResult) -> ToolResult {
    let (found, shown) = match (found, recorded) {
        (Ok(found), Err(error)) if !found.is_empty() && error.contains(RERANKER) => return Err(error),
        (Ok(found), Ok(shown)) if !shown.is_empty() => (found, shown),
        (found, _) => return found,
    };
    let mut seen = BTreeSet::new();
    let mut reordered = Vec::with_capacity(shown.len());
    for shown in &shown {
        match found.iter().position(|found| found.chunk_id == shown.chunk_id) {
            Some(index) if seen.insert(index) => reordered.push(Found { score: shown.score, ..found[index].clone() }),
            _ => return Ok(found),
        }
    }
    Ok(reordered)
}

/// Difference between the recorded and the derived cuts of tool messages, but for those that were `taken` from the
/// record as they had been cut.
fn cut_difference(
    replay: &Replay<'_>,
    recorded: Option<&CutObservations>,
    taken: &BTreeSet<i32>,
) -> Option<RowDifference> {
    let derived = derived_cuts(replay.episode.cuts(), taken);
    let recorded = derived_cuts(recorded.map(|cuts| cuts.cut_observations.as_slice()), taken);
    let derived = match replay.episode.fault() {
        Some(fault) => fault.to_owned(),
        None if recorded == derived => return None,
        None => derived,
    };
    Some(difference(replay.rollout, ("cut observations".to_owned(), recorded, derived)))
}

/// The cuts that were not taken from the record, as a text.
fn derived_cuts(cuts: Option<&[CutObservation]>, taken: &BTreeSet<i32>) -> String {
    let Some(cuts) = cuts else { return "not recorded".to_owned() };
    let derived: Vec<&CutObservation> = cuts.iter().filter(|cut| !taken.contains(&cut.message)).collect();
    json!(derived).to_string()
}

fn difference(rollout: &Trajectory, parts: (String, String, String)) -> RowDifference {
    let (what, recorded, derived) = parts;
    RowDifference { row: rollout.id.clone(), what, recorded, derived }
}

/// Reconstructs the question from a rollout.
fn question(rollout: &Trajectory) -> Question {
    Question {
        id: rollout.question_id.clone(),
        question: rollout.question.clone(),
        golden_answers: rollout.golden_answers.clone(),
        question_type: rollout.question_type.clone(),
        evidence: rollout.evidence.clone(),
        metadata: rollout.metadata.clone(),
    }
}

/// Parts of a rollout that come from its node and question, or are derived from the model's messages.
fn parts(rollout: &Trajectory) -> [(&'static str, String); 9] {
    [
        ("question", json!(question(rollout)).to_string()),
        ("tool definitions", rollout.tools.clone()),
        ("answer", rollout.answer.clone()),
        ("prediction", rollout.prediction.clone()),
        ("number of tool calls", rollout.tool_calls.to_string()),
        ("number of turns", rollout.turns.to_string()),
        ("prompt tokens", rollout.prompt_tokens.to_string()),
        ("completion tokens", rollout.completion_tokens.to_string()),
        ("finish reason", rollout.finish_reason.clone()),
    ]
}

/// Difference between a recorded and a derived message: what, as recorded, as derived.
fn message_difference(pair: &Pair<'_>) -> Option<(String, String, String)> {
    let Pair { position, recorded, derived, action, is_tool, .. } = pair;
    match (recorded, derived) {
        (Some(recorded), Some(derived)) if *is_tool => {
            let query = match action {
                Some(Action { arguments: Ok(arguments), .. }) if derived.error.is_none() => {
                    format!(" to `{}`", query(arguments))
                }
                _ => String::new(),
            };
            let (what, recorded, derived) = response_difference(recorded, derived)?;
            Some((format!("message {position}, {what} of the tool response{query}"), recorded, derived))
        }
        (None, Some(_)) if *is_tool => {
            let tool = action.as_ref().map_or("", |action| &action.tool);
            let what = format!("message {position}, answer to the call `{tool}`");
            Some((what, "none".to_owned(), "a tool response".to_owned()))
        }
        (Some(_), None) if *is_tool => {
            Some((format!("message {position}"), "a tool response".to_owned(), "no call asks for it".to_owned()))
        }
        _ => {
            // Roles are named only where they differ.
            let is_same = recorded.map(|message| &message.role) == derived.map(|message| &message.role);
            let (recorded, derived) = (text_of(*recorded, is_same), text_of(*derived, is_same));
            if recorded == derived { None } else { Some((pair.name(), recorded, derived)) }
        }
    }
}

/// The text of a message other than a tool's, with its role unless both messages have the same.
fn text_of(message: Option<&Message>, is_same_role: bool) -> String {
    match message {
        Some(message) if is_same_role => message.content.clone(),
        Some(message) => format!("{}: {}", message.role, message.content),
        None => "none".to_owned(),
    }
}

/// First difference between two tool responses: chunks, the error shown, the text, the call, scores.
fn response_difference(recorded: &Message, derived: &Message) -> Option<(&'static str, String, String)> {
    // Causes first: other chunks also make another text.
    let parts = [
        ("chunks", chunks(recorded), chunks(derived)),
        ("error", error(recorded), error(derived)),
        ("text", recorded.content.clone(), derived.content.clone()),
        ("call id", call_id(recorded), call_id(derived)),
    ];
    if let Some(found) = parts.into_iter().find(|(_, recorded, derived)| recorded != derived) {
        return Some(found);
    }
    for (one, other) in recorded.observations.iter().zip(&derived.observations) {
        let is_near = (one.score - other.score).abs() <= SCORE_TOLERANCE * one.score.abs().max(other.score.abs());
        if !is_near {
            return Some(("scores", scores(recorded), scores(derived)));
        }
    }
    None
}

fn chunks(message: &Message) -> String {
    let chunks = message.observations.iter().map(|Observation { chunk_id, document_id, title, .. }| {
        format!("{chunk_id} ({document_id}, {})", title.as_deref().unwrap_or("-"))
    });
    chunks.collect::<Vec<_>>().join("; ")
}

fn scores(message: &Message) -> String {
    message.observations.iter().map(|shown| shown.score.to_string()).collect::<Vec<_>>().join("; ")
}

fn call_id(message: &Message) -> String {
    message.tool_call_id.clone().unwrap_or_default()
}

fn error(message: &Message) -> String {
    message.error.as_deref().unwrap_or("none").to_owned()
}
#[cfg(test)]
mod tests {
    use super::*;

    fn found(passages: &[(&str, &str, f64)]) -> Vec<Found> {
        let one = |(id, text, score): &(&str, &str, f64)| Found {
            chunk_id: (*id).to_owned(),
            document_id: (*id).to_owned(),
            title: None,
            contents: (*text).to_owned(),
            score: *score,
            sources: Vec::new(),
        };
        passages.iter().map(one).collect()
    }

    #[test]
    fn the_order_is_the_record_s_and_the_texts_are_those_of_the_search() {
        let searched = || Ok(found(&[("a", "one", 3.0), ("b", "two", 2.0), ("c", "three", 1.0)]));
        let recorded = Ok(found(&[("c", "forged", 9.0), ("a", "", 8.0)]));
        assert_eq!(reranked(searched(), recorded), Ok(found(&[("c", "three", 9.0), ("a", "one", 8.0)])));
        for forged in [&[("z", "one", 1.0)][..], &[("a", "one", 1.0), ("a", "one", 1.0)], &[]] {
            assert_eq!(reranked(searched(), Ok(found(forged))), searched(), "{forged:?} stays a difference");
        }
        let failed = "`search` failed: the reranker failed: ValueError".to_owned();
        assert_eq!(reranked(searched(), Err(failed.clone())), Err(failed.clone()));
        assert_eq!(reranked(searched(), Err("the record has no answer".to_owned())), searched());
        assert_eq!(reranked(Ok(Vec::new()), Err(failed)), Ok(Vec::new()), "nothing was found: nothing was called");
    }
}
