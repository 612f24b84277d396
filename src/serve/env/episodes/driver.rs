//! An episode that an external trainer plays: the driver that carries out its commands, as `rollout` does.

use std::sync::Arc;

use axum::http::StatusCode;
use futures::future::BoxFuture;
use searchmill_agent::episode::{Command, Episode, Event, Offer};
use searchmill_operators::environment::{Environment, PLAYER};
use searchmill_retrieval::Numbered;
use searchmill_schemas::{Message, Question};
use serde_json::Value;

use super::action::{Action, Observation, Outcome, Shown, State};
use crate::serve::env::problem::Problem;

/// What a step needs of the server.
pub(crate) trait Searching: Send + Sync {
    /// Searches for the queries.
    ///
    /// # Errors
    /// Fails if the queue is full, a limit is exceeded, or an index cannot be read.
    fn find(&self, queries: Vec<String>, top_k: usize) -> BoxFuture<'_, Result<Vec<Vec<Numbered>>, Problem>>;
}

/// A step whose searches have not been answered yet.
struct Open {
    message: Message,
    calls: Vec<Value>,
}

/// What an agent that plays its episode alone was served.
#[derive(Default)]
pub(crate) struct Served {
    /// Tool messages with what they show.
    pub(crate) messages: Vec<Message>,
    pub(crate) searches: u32,
}

/// An episode, from its reset to its end.
pub(crate) struct Play {
    id: String,
    pub(super) question: Question,
    /// `None` after the end.
    episode: Option<Episode>,
    /// Messages that the trainer knows.
    shown: usize,
    steps: u32,
    open: Option<Open>,
    reward: Option<f64>,
    /// What an agent that plays alone was served.
    pub(super) served: Served,
}

impl Play {
    /// Starts the episode of a question.
    pub(crate) fn start(environment: &Environment, id: String, question: Question) -> (Self, Outcome) {
        let mut episode = Episode::new(Arc::clone(&environment.rules), &question.question);
        let offered = matches!(episode.step(Event::Started), Command::Ask(Offer::Tools));
        let served = Served::default();
        let mut play =
            Self { id, question, episode: Some(episode), shown: 0, steps: 0, open: None, reward: None, served };
        let protocol = &environment.rules.protocol;
        let observation = Observation {
            tools: Some(environment.tools().into()),
            one_text: Some(protocol.is_one_text()),
            stop: Some(protocol.stop().to_vec()),
            tools_offered: offered,
            ..play.observe()
        };
        (play, Outcome { observation, reward: None, done: false })
    }

    /// Returns id and state.
    pub(crate) fn state(&self) -> State {
        State {
            episode_id: Some(self.id.clone()),
            step_count: self.steps,
            question_id: Some(self.question.id.clone()),
            done: self.is_over(),
            reward: self.reward,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.episode.is_none()
    }

    /// Processes a message of the model. After a failed search, the same step can be repeated.
    ///
    /// # Errors
    /// Fails if the episode is over, the action is none, or the search fails.
    pub(crate) async fn step(
        &mut self,
        environment: &Environment,
        search: &dyn Searching,
        action: Action,
    ) -> Result<Outcome, Problem> {
        let Some(episode) = self.episode.as_mut() else {
            return Err(Problem::new(StatusCode::CONFLICT, "the episode is over; reset first"));
        };
        // A repeated step gets the ids of calls that it had the first time.
        let message = action.message(self.shown - usize::from(self.open.is_some()))?;
        let command = match &self.open {
            None => {
                // Counted here alone: a step that is repeated after a failed search counts once.
                self.steps += 1;
                // The trainer knows its own message.
                self.shown += 1;
                match episode.step(Event::Said(message.clone())) {
                    Command::Call(calls) => {
                        self.open = Some(Open { message, calls });
                        None
                    }
                    command => Some(command),
                }
            }
            Some(open) if open.message == message => None,
            Some(_) => {
                let detail = "the searches of the previous step failed; repeat that step, or reset";
                return Err(Problem::new(StatusCode::CONFLICT, detail));
            }
        };
        let mut command = match command {
            Some(command) => command,
            None => self.search(environment, search).await?,
        };
        loop {
            match command {
                Command::Ask(offer) => return Ok(self.asked(offer)),
                Command::End => return self.end(environment),
                Command::Call(calls) => {
                    // No protocol calls without a message; the searches run all the same.
                    self.open = Some(Open { message: Message::default(), calls });
                    command = self.search(environment, search).await?;
                }
            }
        }
    }

    /// Runs the open searches, together with those of other requests.
    async fn search(&mut self, environment: &Environment, search: &dyn Searching) -> Result<Command, Problem> {
        let mut queries = Vec::new();
        for call in self.open.iter().flat_map(|open| &open.calls) {
            queries.push(call["query"].as_str().unwrap_or_default().to_owned());
        }
        // The step stays open until they are answered: after an error it can be repeated.
        let mut results = Vec::new();
        for list in search.find(queries, environment.top_k).await? {
            results.push(Ok(list.into_iter().map(|chunk| chunk.found).collect()));
        }
        self.open = None;
        let Some(episode) = self.episode.as_mut() else {
            return Err(Problem::bad("the episode is over; reset first"));
        };
        let command = episode.step(Event::Returned(results));
        match episode.fault() {
            Some(fault) => Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, fault.to_owned())),
            None => Ok(command),
        }
    }

    fn asked(&mut self, offer: Offer) -> Outcome {
        let observation = Observation { tools_offered: offer == Offer::Tools, ..self.observe() };
        Outcome { observation, reward: None, done: false }
    }

    fn end(&mut self, environment: &Environment) -> Result<Outcome, Problem> {
        // Before the episode is taken: its last messages are observed from it.
        let mut observation = self.observe();
        let Some(episode) = self.episode.take() else { return Err(Problem::bad("the episode is over")) };
        let trajectory = episode.trajectory(self.question.clone(), 0, PLAYER, None);
        // The reset has checked that the question can be judged.
        let rewarded = environment.reward(&trajectory).map_err(|why| {
            let detail = format!("the episode has no reward: {why}");
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
        })?;
        let (reward, parts) = rewarded.map(|rewarded| (rewarded.value, rewarded.parts)).unzip();
        self.reward = reward;
        observation.finish_reason = Some(trajectory.finish_reason);
        observation.prediction = Some(trajectory.prediction);
        observation.reward_parts = parts.map(|parts| parts.into_iter().collect());
        Ok(Outcome { observation, reward, done: true })
    }

    /// Returns the new messages.
    fn observe(&mut self) -> Observation {
        let messages = self.episode.as_ref().map_or(&[][..], Episode::messages);
        let shown = messages.get(self.shown..).unwrap_or_default().iter().map(Shown::from).collect();
        self.shown = messages.len();
        Observation {
            episode_id: self.id.clone(),
            question_id: self.question.id.clone(),
            question: self.question.question.clone(),
            messages: shown,
            ..Observation::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;
    use searchmill_engine::operator::testing::Harness;
    use serde_json::json;

    use super::*;

    /// A search that fails at first.
    struct Busy(AtomicUsize);

    impl Searching for Busy {
        fn find(&self, queries: Vec<String>, _: usize) -> BoxFuture<'_, Result<Vec<Vec<Numbered>>, Problem>> {
            let first = self.0.fetch_add(1, Ordering::Relaxed) == 0;
            let busy = || Problem::new(StatusCode::TOO_MANY_REQUESTS, "busy");
            let found = if first { Err(busy()) } else { Ok(queries.iter().map(|_| Vec::new()).collect()) };
            async move { found }.boxed()
        }
    }

    #[test]
    fn a_step_whose_search_failed_can_be_repeated() {
        let harness = Harness::new();
        let context = harness.context();
        let environment = Environment::open(serde_json::Map::default(), &context).expect("an environment");
        let question = Question { question: "Where?".to_owned(), ..Question::default() };
        let (mut play, outcome) = Play::start(&environment, "e".to_owned(), question);
        assert_eq!(outcome.observation.messages.len(), 2);
        let search = Busy(AtomicUsize::new(0));
        let mut step = |action: Value| {
            let action = serde_json::from_value(action).expect("an action");
            context.block_on(play.step(&environment, &search, action)).map_err(|problem| problem.status())
        };
        let call = json!({"tool_calls": [{"name": "search", "arguments": {"query": "x"}}]});
        assert_eq!(step(call.clone()).map(|_| ()), Err(StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(step(json!({"message": "another"})).map(|_| ()), Err(StatusCode::CONFLICT));
        let shown = step(call).expect("an observation").observation.messages;
        assert_eq!(
            shown.iter().map(|message| message.content.as_str()).collect::<Vec<_>>(),
            ["No passages were found."]
        );
        let end = step(json!({"message": "<answer>here</answer>"})).expect("the end");
        assert_eq!((end.done, end.reward, end.observation.prediction.as_deref()), (true, None, Some("here")));
        assert_eq!(step(json!({"message": "more"})).map(|_| ()), Err(StatusCode::CONFLICT));
        assert_eq!(play.state().step_count, 2);
    }
}
