//! Inspect's log (UK AISI, `inspect_ai` 0.3.285, log version 2, JSON): one sample per trajectory.
//!
//! The log has no clock: `created` is the epoch. A sample has no field for tool definitions; they are in its metadata.

use searchmill_data::source::layout::definitions_of_chat;
use searchmill_schemas::{Message, Role, ToolCall, Trajectory};
use searchmill_text::answer_metrics::{AnswerScores, answer_scores};
use serde_json::{Value, json};

use super::parts::{answered, arguments, details, filled, is_exact, rest, tools};

/// The log's file. `inspect view` lists JSON files whose names begin with a time; the log has none, so it is the epoch.
pub(super) const FILE: &str = "1970-01-01T00-00-00+00-00_trajectories.json";

/// The time of everything in the log.
const EPOCH: &str = "1970-01-01T00:00:00+00:00";

/// Sums for the means in the head of the log.
#[derive(Default)]
pub(super) struct Totals {
    samples: usize,
    scored: usize,
    em: f64,
    f1: f64,
    model: Option<String>,
}

impl Totals {
    /// Counts one trajectory.
    pub(super) fn add(&mut self, trajectory: &Trajectory) {
        self.samples += 1;
        if self.model.is_none() {
            self.model.clone_from(&trajectory.model);
        }
        if let Some(scores) = scores(trajectory) {
            self.scored += 1;
            self.em += scores.em;
            self.f1 += scores.f1;
        }
    }

    /// Returns the head of the log: everything but the samples.
    pub(super) fn head(&self, name: &str) -> Value {
        let (count, mut scores) = (self.scored, Vec::new());
        for (metric, sum) in [("em", self.em), ("f1", self.f1)] {
            if count > 0 {
                let metrics = json!({"mean": {"name": "mean", "value": sum / count as f64}});
                scores.push(json!({"name": metric, "scorer": metric, "scored_samples": count, "metrics": metrics}));
            }
        }
        json!({
            "version": 2,
            "status": "success",
            "eval": {
                "created": EPOCH,
                "task": name,
                "dataset": {"name": name, "samples": self.samples},
                // Inspect's `EvalSpec` requires a model.
                "model": self.model.as_deref().unwrap_or("unknown"),
                "config": {},
            },
            "plan": {"name": "plan", "steps": []},
            "results": {"total_samples": self.samples, "completed_samples": self.samples, "scores": scores},
            "stats": {"started_at": EPOCH, "completed_at": EPOCH},
        })
    }
}

/// FlashRAG's metrics of the prediction; `None` without golden answers.
fn scores(trajectory: &Trajectory) -> Option<AnswerScores> {
    let golden = &trajectory.golden_answers;
    (!golden.is_empty()).then(|| answer_scores(&trajectory.prediction, golden))
}

/// Builds the sample.
pub(super) fn sample(trajectory: &Trajectory) -> Value {
    let messages = trajectory.messages.iter().enumerate().map(|(at, said)| message(said, &trajectory.messages[..at]));
    let messages: Vec<Value> = messages.collect();
    let mut scored = Value::Null;
    if let Some(scores) = scores(trajectory) {
        let [em, f1] = [scores.em, scores.f1].map(|value| json!({"value": value, "answer": trajectory.prediction}));
        scored = json!({"em": em, "f1": f1});
    }
    let (input, output) = (trajectory.prompt_tokens, trajectory.completion_tokens);
    let usage = json!({"input_tokens": input, "output_tokens": output, "total_tokens": input.saturating_add(output)});
    let model = trajectory.model.as_deref().unwrap_or("unknown");
    let mut said = trajectory.messages.iter().zip(&messages).rev();
    let last = said.find(|(said, _)| said.is_model());
    let choices: Vec<Value> =
        last.iter().map(|(said, message)| json!({"message": message, "stop_reason": stop_reason(said)})).collect();
    let definitions = tools(trajectory);
    let mut metadata = rest(trajectory, definitions.clone().map(definitions_of_chat));
    metadata.insert("tools".to_owned(), json!(definitions));
    filled([
        ("id", json!(trajectory.question_id)),
        // Inspect counts epochs from 1.
        ("epoch", json!(trajectory.sample_index + 1)),
        ("input", json!(trajectory.question)),
        ("target", json!(trajectory.golden_answers)),
        ("output", json!({"model": model, "choices": choices, "completion": trajectory.answer})),
        ("messages", Value::Array(messages)),
        ("scores", scored),
        ("metadata", Value::Object(metadata)),
        ("model_usage", json!({model: usage})),
    ])
}

/// Inspect's name of a finish reason.
fn stop_reason(said: &Message) -> &str {
    match said.finish_reason.as_deref() {
        Some("length") => "max_tokens",
        Some(reason @ ("stop" | "tool_calls" | "content_filter")) => reason,
        _ => "unknown",
    }
}

fn message(said: &Message, before: &[Message]) -> Value {
    let own = [("role", json!(said.role)), ("content", content(said))];
    if said.is_model() {
        let calls: Vec<Value> = said.tool_calls.iter().map(call).collect();
        let mut held = vec!["role", "content", "reasoning"];
        // Inspect has arguments as an object; a text that the object does not give back is stored in the metadata.
        if said.tool_calls.iter().all(is_exact) {
            held.push("tool_calls");
        }
        let calls = if calls.is_empty() { Value::Null } else { Value::Array(calls) };
        return filled(own.into_iter().chain([
            ("source", json!("generate")),
            ("tool_calls", calls),
            ("metadata", Value::Object(details(said, &held))),
        ]));
    }
    if said.role != Role::Tool.name() {
        let metadata = Value::Object(details(said, &["role", "content"]));
        return filled(own.into_iter().chain([("source", json!("input")), ("metadata", metadata)]));
    }
    let error = said.error.as_ref().map(|message| json!({"type": "unknown", "message": message}));
    // The text of a protocol without calls answers no call; its id is in the metadata.
    let call = answered(said, before);
    let mut held = vec!["role", "content", "error"];
    if call.is_some() {
        held.push("tool_call_id");
    }
    filled(own.into_iter().chain([
        ("tool_call_id", json!(call.map(|call| &call.id))),
        ("function", json!(call.map(|call| &call.name))),
        ("error", json!(error)),
        ("metadata", Value::Object(details(said, &held))),
    ]))
}

/// Text, or reasoning and text.
fn content(said: &Message) -> Value {
    let Some(reasoning) = &said.reasoning else { return json!(said.content) };
    json!([{"type": "reasoning", "reasoning": reasoning}, {"type": "text", "text": said.content}])
}

fn call(call: &ToolCall) -> Value {
    let parsed = arguments(call);
    let is_broken = parsed.is_none() && !call.arguments.trim().is_empty();
    let broken = is_broken.then(|| format!("the arguments are not an object: {}", call.arguments));
    filled([
        ("id", json!(call.id)),
        ("function", json!(call.name)),
        ("arguments", Value::Object(parsed.unwrap_or_default())),
        ("parse_error", json!(broken)),
    ])
}
