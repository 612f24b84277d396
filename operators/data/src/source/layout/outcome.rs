//! Trajectories of other systems: the fields that their files tell, and those that follow from the messages.

use searchmill_schemas::{Message, Role, Trajectory};

/// What a file tells about one rollout.
pub(super) struct Outcome {
    pub question_id: String,
    pub question: String,
    pub golden_answers: Vec<String>,
    pub protocol: &'static str,
    /// Tool definitions as a JSON list.
    pub tools: String,
    pub messages: Vec<Message>,
    pub prediction: String,
    /// The reason for the end, unless the prediction tells it.
    pub finish_reason: Option<&'static str>,
    pub metadata: Option<String>,
}

/// Completes a trajectory: sample 0, one turn for each message of the model, one search for each tool message; tokens are
/// 0 (unknown).
pub(super) fn trajectory_of(outcome: Outcome) -> Trajectory {
    let count = |role: Role| outcome.messages.iter().filter(|message| message.role == role.name()).count();
    let (turns, tool_calls) = (count(Role::Assistant), count(Role::Tool));
    let last = outcome.messages.iter().rev().find(|message| message.is_model());
    let answer = last.map(|message| message.content.clone()).unwrap_or_default();
    let told = if outcome.prediction.trim().is_empty() { "no_answer" } else { "answered" };
    Trajectory {
        id: format!("{}@0", outcome.question_id),
        question_id: outcome.question_id,
        sample_index: 0,
        question: outcome.question,
        golden_answers: outcome.golden_answers,
        question_type: None,
        evidence: Vec::new(),
        policy: "external".to_owned(),
        model: None,
        protocol: outcome.protocol.to_owned(),
        tools: outcome.tools,
        messages: outcome.messages,
        answer,
        prediction: outcome.prediction,
        turns: i32::try_from(turns).unwrap_or(i32::MAX),
        tool_calls: i32::try_from(tool_calls).unwrap_or(i32::MAX),
        prompt_tokens: 0,
        completion_tokens: 0,
        last_prompt_tokens: 0,
        last_completion_tokens: 0,
        finish_reason: outcome.finish_reason.unwrap_or(told).to_owned(),
        metadata: outcome.metadata,
    }
}
