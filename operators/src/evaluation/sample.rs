//! Synthetic trajectories for tests.

use searchmill_schemas::{Author, Observation, Trajectory, Turn};

/// Sample `index` of question `id`: one round, no search, answered.
pub(crate) fn trajectory(id: &str, index: i32, golden: &str, prediction: &str) -> Trajectory {
    Trajectory {
        id: format!("{id}@{index}"),
        question_id: id.to_owned(),
        sample_index: index,
        question: format!("What is asked in {id}?"),
        golden_answers: vec![golden.to_owned()],
        question_type: Some("bridge".into()),
        evidence: Vec::new(),
        policy: "endpoint".into(),
        model: Some("m".into()),
        protocol: "tool_call".into(),
        tools: "[]".into(),
        turns: vec![
            Turn::text(Author::System, "Search, then answer."),
            Turn::text(Author::User, format!("What is asked in {id}?")),
        ],
        answer: format!("<answer>{prediction}</answer>"),
        prediction: prediction.to_owned(),
        rounds: 1,
        tool_calls: 0,
        prompt_tokens: 100,
        completion_tokens: 20,
        last_prompt_tokens: 60,
        last_completion_tokens: 10,
        finish_reason: "answered".into(),
        metadata: None,
    }
}

/// The same with one search that showed `document` with that text.
pub(crate) fn searched(mut made: Trajectory, document: &str, content: &str) -> Trajectory {
    let mut call = Turn::text(Author::Assistant, "Let me search.");
    call.tool_calls.push(searchmill_schemas::ToolCall {
        id: "c1".into(),
        name: "search".into(),
        arguments: "{\"query\": \"x\"}".into(),
    });
    let mut result = Turn::text(Author::Tool, content);
    result.observations.push(Observation {
        chunk_id: format!("{document}#0"),
        document_id: document.to_owned(),
        title: Some(format!("Title of {document}")),
        score: 1.0,
    });
    let answer = Turn::text(Author::Assistant, made.answer.clone());
    made.turns.extend([call, result, answer]);
    made.rounds += 1;
    made.tool_calls += 1;
    made
}
