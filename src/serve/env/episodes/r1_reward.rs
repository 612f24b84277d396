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
    let reward = |(place, text): (usize, &String)| {
        let missing = |why: &str| Problem::bad(format!("`query[{place}]`: {why}"));
        let question = question_in(text)
            .ok_or_else(|| missing("there is no question between R1-Searcher's prompt and the model's `<think>`"))?;
        let known = world.questions.with_text(question);
        let known = known.ok_or_else(|| missing(&format!("the question is not served: `{question}`")))?;
        if let Some(why) = environment.unrewarded(known) {
            return Err(missing(&why));
        }
        let none = || {
            let detail = "the server has none of R1-Searcher's rewards: start it with `--reward r1-searcher-qwen`";
            Problem::new(StatusCode::NOT_FOUND, detail)
        };
        environment.reward_of_text(text, &known.golden_answers).ok_or_else(none)
    };
    let rewards = asked.query.iter().enumerate().map(reward).collect::<Result<Vec<_>, _>>()?;
    if environment.has_pairs() {
        return Ok(Json(json!({"rewards": rewards.into_iter().map(|reward| json!([reward, 0])).collect::<Value>()})));
    }
    Ok(Json(json!({"rewards": rewards})))
}
