//! The environment of a server with its questions and its open episodes, which are limited in number and age.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use searchmill_operators::environment::Environment;
use searchmill_schemas::Question;
use tokio::sync::Mutex as AsyncMutex;

use super::action::Outcome;
use super::driver::Play;
use super::questions::{Questions, Wanted};
use crate::serve::env::problem::Problem;

/// Longest id of an episode in bytes.
const ID: usize = 255;

/// Limits of episodes.
#[derive(Clone, Copy)]
pub(crate) struct EpisodeLimits {
    /// Maximum number of open episodes.
    pub(crate) most: usize,
    /// Time after its last step for which an episode is kept.
    pub(crate) idle: Duration,
}

/// An open episode that several requests may find.
pub(crate) type Shared = Arc<AsyncMutex<Play>>;

struct Entry {
    play: Shared,
    used: Instant,
}

/// Rules, reward, questions and open episodes.
pub(crate) struct World {
    pub(crate) environment: Environment,
    pub(crate) questions: Questions,
    limits: EpisodeLimits,
    episodes: Mutex<BTreeMap<String, Entry>>,
}

impl World {
    /// Creates the environment.
    ///
    /// # Errors
    /// If there are questions, but none can be played: why not the first.
    pub(crate) fn new(
        environment: Environment,
        mut questions: Questions,
        limits: EpisodeLimits,
    ) -> Result<Self, String> {
        let left = questions.retain(|question| unplayable(&environment, question).is_none());
        if left == 0
            && let Some(first) = questions.iter().next()
            && let Some(why) = unplayable(&environment, first)
        {
            return Err(why);
        }
        Ok(Self { environment, questions, limits, episodes: Mutex::default() })
    }

    /// Starts an episode.
    ///
    /// # Errors
    /// Fails if there is no such question, if it cannot be judged, or if too many episodes are open.
    pub(crate) fn reset(&self, wanted: &Wanted) -> Result<(Shared, Outcome), Problem> {
        let id = wanted.episode_id.clone().filter(|id| !id.is_empty()).unwrap_or_else(random_id);
        if id.len() > ID {
            return Err(Problem::bad(format!("`episode_id` is longer than {ID} bytes")));
        }
        let question = self.questions.choose(wanted)?;
        if let Some(why) = unplayable(&self.environment, &question) {
            return Err(Problem::bad(why));
        }
        let (play, outcome) = Play::start(&self.environment, id.clone(), question);
        let mut episodes = self.episodes.lock().unwrap_or_else(PoisonError::into_inner);
        // A reset under the id of an open episode replaces it, and needs no further place.
        if episodes.len() >= self.limits.most && !episodes.contains_key(&id) {
            // Idle and finished ones are closed first.
            episodes.retain(|_, entry| {
                // A locked episode is in a step: it is not over.
                let over = entry.play.try_lock().is_ok_and(|play| play.is_over());
                !over && entry.used.elapsed() < self.limits.idle
            });
            if episodes.len() >= self.limits.most {
                let (open, most) = (episodes.len(), self.limits.most);
                let detail = format!("{open} episodes are open (limit {most}); try again later");
                return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail));
            }
        }
        let play = Arc::new(AsyncMutex::new(play));
        episodes.insert(id, Entry { play: Arc::clone(&play), used: Instant::now() });
        Ok((play, outcome))
    }

    /// Returns an open episode.
    ///
    /// # Errors
    /// Fails if there is none with this id.
    pub(crate) fn find(&self, id: &str) -> Result<Shared, Problem> {
        let mut episodes = self.episodes.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is too old stays in the map until `reset` needs its place, but is not found.
        if let Some(entry) = episodes.get_mut(id)
            && entry.used.elapsed() < self.limits.idle
        {
            entry.used = Instant::now();
            return Ok(Arc::clone(&entry.play));
        }
        let idle = self.limits.idle.as_secs();
        let detail = format!("there is no episode `{id}`; episodes end after {idle} s without a step");
        Err(Problem::new(StatusCode::NOT_FOUND, detail))
    }

    /// Forgets an episode; returns whether it was open.
    pub(crate) fn close(&self, id: &str) -> bool {
        self.episodes.lock().unwrap_or_else(PoisonError::into_inner).remove(id).is_some()
    }

    /// Returns the time for which an episode is kept without a step.
    pub(crate) fn idle(&self) -> Duration {
        self.limits.idle
    }

    /// Returns the number of open episodes.
    pub(crate) fn open(&self) -> usize {
        self.episodes.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Returns an id that no one can guess, for an episode, a session or a stream.
pub(crate) fn random_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Returns why no episode of a question can be played, if so.
fn unplayable(environment: &Environment, question: &Question) -> Option<String> {
    if question.question.trim().is_empty() {
        return Some(format!("question `{}` is empty", question.id));
    }
    environment.unrewarded(question).map(|why| format!("question `{}` has no reward: {why}", question.id))
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::testing::Harness;

    use super::*;

    fn world(most: usize, idle: Duration) -> World {
        let context = Harness::new().context();
        let environment = Environment::open(serde_json::Map::default(), &context).expect("an environment");
        let question = Question { id: "q".to_owned(), question: "Where?".to_owned(), ..Question::default() };
        World::new(environment, Questions::new(vec![question]), EpisodeLimits { most, idle }).expect("a question")
    }

    fn named(id: &str) -> Wanted {
        Wanted { episode_id: Some(id.to_owned()), ..Wanted::default() }
    }

    #[test]
    fn episodes_are_limited_in_number() {
        let world = world(2, Duration::from_hours(1));
        for id in ["a", "b", "a"] {
            assert!(world.reset(&named(id)).is_ok(), "{id}");
        }
        let refused = world.reset(&named("c")).map(|_| ()).expect_err("it is full");
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(world.close("a") && !world.close("a"));
        assert!(world.reset(&Wanted::default()).is_ok() && world.open() == 2);
        assert!(world.reset(&named(&"x".repeat(300))).is_err());
    }

    #[test]
    fn idle_episodes_are_forgotten() {
        let world = world(1, Duration::ZERO);
        assert!(world.reset(&named("a")).is_ok());
        assert_eq!(world.find("a").map(|_| ()).expect_err("it is idle").status(), StatusCode::NOT_FOUND);
        assert!(world.reset(&named("b")).is_ok(), "the idle one made way");
    }
}
