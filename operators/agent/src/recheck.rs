//! Derives again what in recorded rollouts does not come from the model: the prompt, the question, every tool response,
//! the extracted answer.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use searchmill_engine::operator::{OperatorError, Recheck, Rechecked, RowDifference};
use searchmill_retrieval::{Found, Search};
use searchmill_schemas::{Message, Observation, Question, Role, ToolCall, Trajectory, from_batch};
use serde_json::json;

use super::protocol::tool_call::{ToolCallProtocol, extract_answer, searches_used_up, tool_message};

/// Scores of dense indexes may differ in their last bits between CPUs; relative to the larger of the two.
const SCORE_TOLERANCE: f64 = 1e-5;
/// Rollouts whose searches are run at once.
const AT_ONCE: usize = 256;

/// Checks the rollouts of one node.
pub struct RolloutRecheck {
    pub protocol: ToolCallProtocol,
    pub search: Option<Search>,
    pub max_searches: Option<u32>,
    /// The questions that were asked, by id.
    pub questions: BTreeMap<String, Question>,
}

/// One tool response to derive again.
struct Response<'a> {
    rollout: usize,
    turn: usize,
    call: &'a ToolCall,
    /// The query that was run, or what the model was told instead.
    request: Result<String, String>,
}

impl Recheck for RolloutRecheck {
    fn port(&self) -> &'static str {
        "trajectories"
    }

    fn check(&self, rows: &RecordBatch) -> Result<Rechecked, OperatorError> {
        let rollouts: Vec<Trajectory> = from_batch(rows)?;
        let mut found = Rechecked::default();
        for rollouts in rollouts.chunks(AT_ONCE) {
            let mut responses = Vec::new();
            for (place, rollout) in rollouts.iter().enumerate() {
                self.fixed_parts(rollout, &mut found);
                self.responses(place, rollout, &mut responses, &mut found);
            }
            self.compare(rollouts, &responses, &mut found)?;
        }
        Ok(found)
    }
}

impl RolloutRecheck {
    /// What a rollout has from its node and its question, and what is read off the model's words.
    fn fixed_parts(&self, rollout: &Trajectory, found: &mut Rechecked) {
        let turn = |place: usize| rollout.messages.get(place).map_or("", |message| message.content.as_str());
        let answer =
            rollout.messages.iter().rfind(|message| message.is_model()).map_or("", |message| message.content.as_str());
        let calls: usize = rollout.messages.iter().map(|message| message.tool_calls.len()).sum();
        let mut parts = vec![
            ("system prompt", turn(0).to_owned(), self.protocol.system_prompt.clone()),
            ("question told to the model", turn(1).to_owned(), rollout.question.clone()),
            ("tool definitions", rollout.tools.clone(), self.protocol.tools.clone()),
            ("answer", rollout.answer.clone(), answer.to_owned()),
            ("prediction", rollout.prediction.clone(), extract_answer(answer).to_owned()),
            ("number of tool calls", rollout.tool_calls.to_string(), calls.to_string()),
        ];
        if let Some(asked) = self.questions.get(&rollout.question_id) {
            parts.push(("question", question_of(rollout).to_string(), fields(asked).to_string()));
        } else {
            let derived = "the question is not in the node's input".to_owned();
            parts.push(("question", rollout.question_id.clone(), derived));
        }
        for (what, recorded, derived) in parts {
            tell(found, rollout, what.to_owned(), recorded, derived);
        }
    }

    /// The tool responses of a rollout, each with the request that it must answer.
    fn responses<'a>(
        &self,
        place: usize,
        rollout: &'a Trajectory,
        responses: &mut Vec<Response<'a>>,
        found: &mut Rechecked,
    ) {
        let is_tool = |turn: usize| rollout.messages.get(turn).is_some_and(|message| message.role == Role::Tool.name());
        let (mut turn, mut searches) = (0, 0);
        while turn < rollout.messages.len() {
            let calls = &rollout.messages[turn].tool_calls;
            let answers = (turn + 1..rollout.messages.len()).take_while(|turn| is_tool(*turn)).count();
            // The calls of the last turn were not run: a limit ended the rollout.
            let run = turn + 1 < rollout.messages.len();
            for (number, call) in calls.iter().enumerate().filter(|_| run) {
                let answer = turn + 1 + number;
                if number < answers {
                    let request = self.request(call, &mut searches);
                    responses.push(Response { rollout: place, turn: answer, call, request });
                } else {
                    let what = format!("turn {answer}, answer to the call `{}`", call.name);
                    tell(found, rollout, what, "none".to_owned(), "a tool response".to_owned());
                }
            }
            for extra in calls.len()..answers {
                let what = format!("turn {}", turn + 1 + extra);
                tell(found, rollout, what, "a tool response".to_owned(), "no call asks for it".to_owned());
            }
            turn += 1 + answers;
        }
    }

    /// What was run for a call, as the rollout decided it then.
    fn request(&self, call: &ToolCall, searches: &mut u32) -> Result<String, String> {
        let query = self.protocol.query(call)?;
        match self.max_searches {
            Some(most) if *searches >= most => Err(searches_used_up(most)),
            _ => {
                *searches += 1;
                Ok(query)
            }
        }
    }

    /// Runs all searches again, together, and compares.
    fn compare(
        &self,
        rollouts: &[Trajectory],
        responses: &[Response<'_>],
        found: &mut Rechecked,
    ) -> Result<(), OperatorError> {
        let queries: Vec<&str> = responses.iter().filter_map(|r| r.request.as_deref().ok()).collect();
        let lists = match &self.search {
            Some(search) => search.search_batch(&queries)?,
            None => Vec::new(),
        };
        let mut lists = lists.into_iter();
        for response in responses {
            let result: Result<Vec<Found>, String> = match &response.request {
                Ok(_) => lists.next().ok_or_else(|| "there is nothing to search".to_owned()),
                Err(message) => Err(message.clone()),
            };
            let rollout = &rollouts[response.rollout];
            let recorded = &rollout.messages[response.turn];
            let derived = tool_message(response.call, result);
            found.compared += 1;
            let query = response.request.as_deref().map_or_else(|_| String::new(), |query| format!(" to `{query}`"));
            if let Some((what, recorded, derived)) = turn_difference(recorded, &derived) {
                let what = format!("turn {}, {what} of the tool response{query}", response.turn);
                found.differences.push(RowDifference { row: rollout.id.clone(), what, recorded, derived });
            }
        }
        Ok(())
    }
}

fn tell(found: &mut Rechecked, rollout: &Trajectory, what: String, recorded: String, derived: String) {
    found.compared += 1;
    if recorded != derived {
        found.differences.push(RowDifference { row: rollout.id.clone(), what, recorded, derived });
    }
}

/// What a rollout says of its question.
fn question_of(rollout: &Trajectory) -> serde_json::Value {
    json!([rollout.question, rollout.golden_answers, rollout.question_type, rollout.evidence, rollout.metadata])
}

fn fields(asked: &Question) -> serde_json::Value {
    json!([asked.question, asked.golden_answers, asked.question_type, asked.evidence, asked.metadata])
}

/// In what two tool messages differ first: chunks, scores, the error told, the text.
fn turn_difference(recorded: &Message, derived: &Message) -> Option<(&'static str, String, String)> {
    let chunks = |message: &Message| {
        let shown =
            |o: &Observation| format!("{} ({}, {})", o.chunk_id, o.document_id, o.title.as_deref().unwrap_or("-"));
        message.observations.iter().map(shown).collect::<Vec<_>>().join("; ")
    };
    let scores =
        |message: &Message| message.observations.iter().map(|o| o.score.to_string()).collect::<Vec<_>>().join("; ");
    let error = |message: &Message| message.error.clone().unwrap_or_else(|| "none".to_owned());
    let id = |message: &Message| message.tool_call_id.clone().unwrap_or_default();
    let parts = [
        ("chunks", chunks(recorded), chunks(derived)),
        ("error", error(recorded), error(derived)),
        ("text", recorded.content.clone(), derived.content.clone()),
        ("call id", id(recorded), id(derived)),
    ];
    if let Some(found) = parts.into_iter().find(|(_, recorded, derived)| recorded != derived) {
        return Some(found);
    }
    let near = |(one, other): (&Observation, &Observation)| {
        (one.score - other.score).abs() <= SCORE_TOLERANCE * one.score.abs().max(other.score.abs())
    };
    let same = recorded.observations.iter().zip(&derived.observations).all(near);
    (!same).then(|| ("scores", scores(recorded), scores(derived)))
}
