//! Trajectories of other systems: the fields that their files tell, and those that follow from the messages.

use searchmill_schemas::{Message, Role, Trajectory};

/// Returns a trajectory of the protocol `tool_call`: sample 0, one turn for each message of the model, one search for
/// each tool message, the end that the prediction tells. Tokens are 0 (unknown); what else a file tells is set later.
pub(super) fn trajectory_of(
    question_id: String,
    question: String,
    messages: Vec<Message>,
    prediction: String,
) -> Trajectory {
    let turns = messages.iter().filter(|message| message.is_model()).count();
    let tool_calls = messages.iter().filter(|message| message.role == Role::Tool.name()).count();
    let last = messages.iter().rev().find(|message| message.is_model());
    Trajectory {
        id: format!("{question_id}@0"),
        question_id,
        sample_index: 0,
        question,
        golden_answers: Vec::new(),
        question_type: None,
        evidence: Vec::new(),
        policy: "external".to_owned(),
        model: None,
        protocol: "tool_call".to_owned(),
        tools: "[]".to_owned(),
        answer: last.map(|message| message.content.clone()).unwrap_or_default(),
        messages,
        turns: i32::try_from(turns).unwrap_or(i32::MAX),
        tool_calls: i32::try_from(tool_calls).unwrap_or(i32::MAX),
        prompt_tokens: 0,
        completion_tokens: 0,
        last_prompt_tokens: 0,
        last_completion_tokens: 0,
        finish_reason: if prediction.trim().is_empty() { "no_answer" } else { "answered" }.to_owned(),
        prediction,
        metadata: None,
    }
}
