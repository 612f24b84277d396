//! Schedules of the store: when they run next, what failed, and the buttons that pause them or ask for a run.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use searchmill_engine::{Session, Switch};
use serde::Deserialize;
use serde_json::Value;

use super::problem::Problem;
use super::state::{Page, require_own_page};
use crate::schedule::{now, schedule_json};

/// Returns all schedules of a store that exists.
pub(super) fn all(session: &Session) -> Result<Vec<Value>, Problem> {
    // Asking for schedules would create the store.
    if !session.store().exists()? {
        return Ok(Vec::new());
    }
    let schedules = session.store().schedules()?;
    Ok(schedules.names().iter().filter_map(|name| schedule_json(&schedules, name)).collect())
}

/// What a schedule is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Pause,
    Resume,
    Trigger,
}

/// A request to a schedule.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Given {
    name: String,
    action: Action,
}

/// Answers `POST /api/schedules`: the schedule afterwards.
pub(super) async fn act(
    State(page): State<Arc<Page>>,
    headers: HeaderMap,
    Json(given): Json<Given>,
) -> Result<Json<Value>, Problem> {
    require_own_page(&headers)?;
    let answer = page.ask(move |page| {
        if !page.session.store().exists()? {
            return Err(missing(&given.name));
        }
        let schedules = page.session.store().schedules()?;
        let schedule = schedule_json(&schedules, &given.name).ok_or_else(|| missing(&given.name))?;
        let written = match given.action {
            // The request would wait in the store, and start a run days later, once a daemon is started.
            Action::Trigger if schedule["served"] != true => {
                return Err(Problem::refused(format!("no daemon serves `{}`: nobody would start the run", given.name)));
            }
            Action::Trigger => schedules.ask_for_run(&given.name, now()),
            // A schedule that is paused already keeps its date.
            action if schedule["paused"] == (action == Action::Pause) => Ok(()),
            action => {
                let switch = Switch { paused: action == Action::Pause, since: Some(now()) };
                schedules.set_switch(&given.name, &switch)
            }
        };
        written.map_err(|error| Problem::broken(error.to_string()))?;
        schedule_json(&schedules, &given.name).ok_or_else(|| missing(&given.name))
    });
    answer.await.map(Json)
}

fn missing(name: &str) -> Problem {
    Problem::missing(format!("there is no schedule `{name}`"))
}
