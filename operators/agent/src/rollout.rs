//! Rollouts: a policy and a tool drive an episode from the question to the trajectory.

use std::sync::Arc;

use futures::future::join_all;
use searchmill_engine::operator::{Context, FailureKind, RowFailure, Usage};
use searchmill_schemas::{Question, Trajectory};
use serde_json::Value;

use super::episode::{Command, Episode, Event, Rules};
use super::policy::{Actor, Policy};
use super::tool::{Tool, ToolResult};

/// A policy with its rules and its tool.
pub struct Agent {
    pub rules: Arc<Rules>,
    pub policy: Box<dyn Policy>,
    pub tool: Option<Box<dyn Tool>>,
}

/// Usage and model name of the policy's calls so far.
#[derive(Default)]
struct Spent {
    usage: Usage,
    model: Option<String>,
}

impl Agent {
    /// Runs one rollout of one question.
    ///
    /// # Errors
    /// If the policy fails; the failure includes the usage so far.
    pub async fn answer(
        &self,
        question: Question,
        sample: u32,
        context: &Context,
    ) -> Result<(Trajectory, Usage), RowFailure> {
        let mut episode = Episode::new(Arc::clone(&self.rules), &question.question);
        let mut spent = Spent::default();
        let ended = {
            let mut actor = self.policy.begin(&question, sample, context);
            self.play(&mut episode, &mut spent, actor.as_mut(), context).await
        };
        let prices = self.policy.prices();
        match ended {
            Ok(()) => {
                let trajectory = episode.trajectory(question, sample, self.policy.name(), spent.model);
                Ok((trajectory, spent.usage.at(&prices)))
            }
            Err(mut failure) => {
                failure.usage += spent.usage;
                failure.usage = failure.usage.at(&prices);
                Err(failure)
            }
        }
    }

    /// Executes the episode's commands until it ends.
    async fn play(
        &self,
        episode: &mut Episode,
        spent: &mut Spent,
        actor: &mut dyn Actor,
        context: &Context,
    ) -> Result<(), RowFailure> {
        let mut event = Event::Started;
        loop {
            event = match episode.step(event) {
                Command::Ask(_) if context.is_cancelled() => {
                    return Err(RowFailure::new(FailureKind::Cancelled, "interrupted"));
                }
                Command::Ask(offer) => {
                    let reply = actor.act(episode.messages(), offer).await?;
                    spent.usage += reply.usage();
                    spent.model = spent.model.take().or(reply.model);
                    Event::Said(reply.message)
                }
                Command::Call(calls) => Event::Returned(self.call(calls).await),
                Command::End => return Ok(()),
            };
        }
    }

    async fn call(&self, calls: Vec<Value>) -> Vec<ToolResult> {
        match &self.tool {
            Some(tool) => join_all(calls.into_iter().map(|arguments| tool.call(arguments))).await,
            None => calls.iter().map(|_| Err("there is nothing to search".to_owned())).collect(),
        }
    }
}
