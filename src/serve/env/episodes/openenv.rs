//! `/reset`, `/step`, `/state`, `/schema`, `/metadata`: the HTTP routes of OpenEnv (meta-pytorch/OpenEnv, 0.3). Its
//! clients use the WebSocket (`socket`). Over HTTP the original forgets an episode after each request; here `episode_id`
//! names it.

use std::sync::Arc;

use axum::Json;
use axum::extract::Query;
use schemars::schema_for;
use serde::Deserialize;
use serde_json::{Value, json};

use super::action::{Action, Observation, Outcome, State};
use super::questions::Wanted;
use super::sessions::Shared;
use crate::serve::env::body::Asked;
use crate::serve::env::problem::Problem;
use crate::serve::env::state::{Env, View};

#[derive(Deserialize)]
pub(crate) struct Step {
    action: Value,
    episode_id: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Which {
    episode_id: Option<String>,
}

pub(crate) async fn reset(view: View, body: axum::body::Bytes) -> Result<Json<Outcome>, Problem> {
    // The body is optional in OpenEnv: without one, the reset chooses the question.
    let wanted = if body.trim_ascii().is_empty() { Wanted::default() } else { Asked::read(&body)?.0 };
    Ok(Json(view.world()?.reset(&wanted)?.1))
}

pub(crate) async fn step(view: View, Asked(step): Asked<Step>) -> Result<Json<Outcome>, Problem> {
    let world = view.world()?;
    let id = step.episode_id.ok_or_else(|| {
        Problem::bad(
            "`episode_id` is missing: send the one of `/reset`, beside `action` (clients of OpenEnv use `/ws`)",
        )
    })?;
    let play = world.find(&id)?;
    // Read apart from the request, so that its errors name `action`.
    let action = action(step.action)?;
    let outcome = play.lock().await.step(&world.environment, &view, action).await?;
    Ok(Json(outcome))
}

/// Reads an action.
///
/// # Errors
/// Fails with the field to blame.
pub(crate) fn action(value: Value) -> Result<Action, Problem> {
    serde_json::from_value(value).map_err(|error| Problem::bad(format!("`action`: {error}")))
}

pub(crate) async fn state(view: View, Query(which): Query<Which>) -> Result<Json<State>, Problem> {
    let world = view.world()?;
    let Some(id) = which.episode_id else { return Ok(Json(State::default())) };
    let play = world.find(&id)?;
    let state = play.lock().await.state();
    Ok(Json(state))
}

pub(crate) async fn schema(view: View) -> Result<Json<Value>, Problem> {
    view.world()?;
    let (action, observation, state) = (schema_for!(Action), schema_for!(Observation), schema_for!(State));
    Ok(Json(json!({"action": action, "observation": observation, "state": state})))
}

/// Describes the environment.
pub(crate) async fn metadata(view: View) -> Result<Json<Value>, Problem> {
    let world = view.world()?;
    let environment = &world.environment;
    let protocol = environment.rules.protocol.name();
    let (count, rest) = (world.questions.len(), if environment.rewards() { "" } else { "; without a reward" });
    let description = format!("Answers {count} questions by searching an index, in the protocol `{protocol}`{rest}.");
    Ok(Json(json!({"name": "searchmill", "description": description, "version": env!("CARGO_PKG_VERSION"),
        "author": null, "readme_content": null, "documentation_url": null})))
}

/// A connection's episode, which ends with it.
pub(crate) struct Held {
    env: Arc<Env>,
    /// Id and episode.
    open: Option<(String, Shared)>,
}

impl Held {
    pub(crate) fn new(env: Arc<Env>) -> Self {
        Self { env, open: None }
    }

    /// Returns the episode.
    pub(crate) fn play(&self) -> Option<&Shared> {
        self.open.as_ref().map(|(_, play)| play)
    }

    /// Starts an episode in place of the earlier one.
    ///
    /// # Errors
    /// Fails as a reset does.
    pub(crate) fn reset(&mut self, wanted: &Wanted) -> Result<Outcome, Problem> {
        // First, so that at the limit a connection can still replace its own episode.
        self.forget();
        let (play, outcome) = self.env.world()?.reset(wanted)?;
        self.open = Some((outcome.observation.episode_id.clone(), play));
        Ok(outcome)
    }

    fn forget(&mut self) {
        if let (Some((id, _)), Ok(world)) = (self.open.take(), self.env.world()) {
            world.close(&id);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.forget();
    }
}
