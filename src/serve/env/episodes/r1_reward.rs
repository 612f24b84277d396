//! `/get_reward`: the reward server of R1-Searcher (RUCAIBox/R1-Searcher, 631167c), in the published form of its rules.

use axum::Json;
use axum::http::StatusCode;
use searchmill_agent::reward::question_in;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::serve::env::body::Asked;
use crate::serve::env::problem::Problem;
use crate::serve::env::state::View;

#[derive(Deserialize)]
pub(crate) struct Texts {
    /// Whole decoded texts: prompt, turns, documents.
    query: Vec<String>,
}

pub(crate) async fn rewards(view: View, Asked(asked): Asked<Texts>) -> Result<Json<Value>, Problem> {
    let world = view.world()?;
    let environment = &world.environment;
    let mut rewards = Vec::with_capacity(asked.query.len());
    for (index, text) in asked.query.iter().enumerate() {
        // The trainer matches rewards to texts by place: one that cannot be judged fails the request.
        let Some(question) = question_in(text) else {
            let why = "there is no question between R1-Searcher's prompt and the model's `<think>`";
            return Err(Problem::bad(format!("`query[{index}]`: {why}")));
        };
        let Some(known) = world.questions.with_text(question) else {
            return Err(Problem::bad(format!("`query[{index}]`: the question is not served: `{question}`")));
        };
        if let Some(why) = environment.unrewarded(known) {
            return Err(Problem::bad(format!("`query[{index}]`: {why}")));
        }
        let Some(reward) = environment.reward_of_text(text, &known.golden_answers) else {
            let detail = "the server has none of R1-Searcher's rewards: start it with `--reward r1-searcher-qwen`";
            return Err(Problem::new(StatusCode::NOT_FOUND, detail));
        };
        // The trainer of the rewards with pairs reads a list for each text.
        rewards.push(if environment.has_pairs() { json!([reward, 0]) } else { json!(reward) });
    }
    Ok(Json(json!({"rewards": rewards})))
}
