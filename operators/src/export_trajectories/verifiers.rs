//! `traces.jsonl` of verifiers (PrimeIntellect-ai/verifiers 0.4, `verifiers/v1/episode.py` and `trace.py`, trace version
//! 1): one episode with one trace per trajectory; the rollouts of a question are a group.
//!
//! A node of the trace is a message, each the child of the one before. The file has no clock: times are 0. What a trace
//! has no field for is in `info.trajectory`.

use searchmill_data::source::layout::definitions_of_chat;
use searchmill_schemas::{Message, Role, Trajectory};
use serde_json::{Map, Value, json};

use super::parts::{answered, answers_nothing, filled, lost, rest, tool, tools};
use crate::reward::Rewarded;

/// Builds the episode.
pub(super) fn episode(trajectory: &Trajectory, rewards: Option<&Rewarded>, env: &str) -> Value {
    let messages = &trajectory.messages;
    let nodes: Vec<Value> = (0..messages.len()).map(|place| node(place, messages)).collect();
    let calls: Vec<Value> = (0..messages.len()).filter_map(|place| call(place, trajectory)).collect();
    let definitions: Option<Vec<_>> = tools(trajectory).map(|tools| tools.iter().map(tool).collect());
    // What a reader makes of the definitions decides whether their text must be stored too.
    let mut info = rest(trajectory, definitions.clone().map(definitions_of_chat));
    info.insert("messages".to_owned(), lost(messages));
    let mut scores = Map::new();
    for (name, value) in rewards.iter().flat_map(|rewards| &rewards.parts) {
        // The parts are weighted already: their sum is the reward.
        scores.insert(name.clone(), json!({"score": value, "weight": 1.0}));
    }
    let task = json!({"type": "Task", "data": task(trajectory), "key": trajectory.question_id});
    let trace = json!({
        "version": 1,
        "id": trajectory.id,
        "task": task,
        "agent": {"config": filled([("model", json!(trajectory.model))]), "name": "agent"},
        "tools": definitions.unwrap_or_default(),
        "nodes": nodes,
        "calls": calls,
        "rewards": scores,
        "metrics": {},
        "info": {"trajectory": info},
        "is_completed": true,
        "ok": true,
        "stop_condition": trajectory.finish_reason,
        "timing": {"start": 0.0},
    });
    json!({
        "id": trajectory.id,
        "env": {"id": env},
        "task": task,
        "group": {"id": trajectory.question_id},
        "ok": true,
        "traces": [trace],
    })
}

/// Its system prompt is the first message, if the pipeline wrote one.
fn task(trajectory: &Trajectory) -> Value {
    let first = trajectory.messages.first().filter(|message| message.role == Role::System.name());
    filled([
        ("name", json!(trajectory.question_id)),
        ("prompt", json!(trajectory.question)),
        ("system_prompt", json!(first.map(|message| &message.content))),
        ("golden_answers", json!(trajectory.golden_answers)),
    ])
}

fn node(place: usize, messages: &[Message]) -> Value {
    let said = &messages[place];
    let call = answered(said, &messages[..place]);
    let role = if answers_nothing(place, messages) { Role::User.name() } else { &said.role };
    let calls = if said.tool_calls.is_empty() { Value::Null } else { json!(said.tool_calls) };
    filled([
        ("parent", json!(place.checked_sub(1))),
        (
            "message",
            filled([
                ("role", json!(role)),
                ("content", json!(said.content)),
                ("reasoning_content", json!(said.reasoning)),
                ("tool_calls", calls),
                ("tool_call_id", json!(call.map(|call| &call.id))),
                ("name", json!(call.map(|call| &call.name))),
            ]),
        ),
        ("sampled", json!(said.is_model())),
        ("timestamp", json!(0.0)),
    ])
}

/// Returns the model call behind a message of the model.
fn call(place: usize, trajectory: &Trajectory) -> Option<Value> {
    let said = trajectory.messages.get(place).filter(|message| message.is_model())?;
    let reason = said.finish_reason.as_deref().filter(|reason| ["stop", "length", "tool_calls"].contains(reason));
    let usage = said.prompt_tokens.zip(said.completion_tokens);
    let usage = usage.map(|(prompt, completion)| json!({"prompt_tokens": prompt, "completion_tokens": completion}));
    Some(filled([
        ("node", json!(place)),
        ("model", json!(trajectory.model)),
        ("finish_reason", json!(reason)),
        ("usage", json!(usage)),
    ]))
}
