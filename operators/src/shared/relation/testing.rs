//! Test rows for the relational operators and converters.

use searchmill_schemas::{Evidence, Message, Observation, Role, ToolCall, Trajectory};

/// Returns `count` rollouts `q0@0`, `q1@0`, … that differ in type, turns and tool calls, with all nested columns
/// filled.
pub(crate) fn trajectories(count: usize) -> Vec<Trajectory> {
    (0..count).map(trajectory).collect()
}

/// Returns the ids of rollouts.
pub(crate) fn ids(rows: &[Trajectory]) -> Vec<&str> {
    rows.iter().map(|row| row.id.as_str()).collect()
}

fn trajectory(place: usize) -> Trajectory {
    let calls = 1 + place % 3;
    let mut messages = vec![
        Message::text(Role::System, "Use the search tool."),
        Message::text(Role::User, format!("Question {place}, naïve?")),
    ];
    for call in 0..calls {
        messages.extend(exchange(place, call));
    }
    messages.push(Message::text(Role::Assistant, format!("<answer>Answer {place}</answer>")));
    Trajectory {
        id: format!("q{place}@0"),
        question_id: format!("q{place}"),
        sample_index: 0,
        question: format!("Question {place}, naïve?"),
        golden_answers: vec![format!("Answer {place}"), "東京".to_owned()],
        question_type: [Some("comparison"), Some("inference"), None][place % 5 % 3].map(str::to_owned),
        evidence: vec![Evidence { title: Some(format!("Title {place}")), ..Evidence::default() }],
        policy: "evidence".to_owned(),
        model: None,
        protocol: "tool_call".to_owned(),
        tools: TOOLS.to_owned(),
        messages,
        answer: format!("<answer>Answer {place}</answer>"),
        prediction: format!("Answer {place}"),
        turns: calls as i32 + 1,
        tool_calls: calls as i32,
        prompt_tokens: 10,
        completion_tokens: 5,
        last_prompt_tokens: 8,
        last_completion_tokens: 2,
        finish_reason: "answered".to_owned(),
        metadata: Some("{\"k\": 1}".to_owned()),
    }
}

/// Tool definitions of the rows.
pub(crate) const TOOLS: &str = r#"[{"type":"function","function":{"name":"search","description":"Searches the corpus.","parameters":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}}]"#;

fn exchange(place: usize, call: usize) -> [Message; 2] {
    let id = format!("call_{call}");
    let mut asked = Message::text(Role::Assistant, "");
    asked.reasoning = Some("I should search.".to_owned());
    asked.tool_calls = vec![ToolCall {
        id: id.clone(),
        name: "search".to_owned(),
        arguments: format!("{{\"query\":\"title {place} é\"}}"),
    }];
    let mut told = Message::text(Role::Tool, format!("Title {place}\nAnswer {place} stands here."));
    told.tool_call_id = Some(id);
    told.observations = vec![Observation {
        chunk_id: format!("d{place}#0"),
        document_id: format!("d{place}"),
        title: Some(format!("Title {place}")),
        score: 0.5,
    }];
    [asked, told]
}
