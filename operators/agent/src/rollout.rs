//! Rollouts: a policy and a tool drive an episode from the question to the trajectory.

use std::sync::Arc;

use futures::future::join_all;
use searchmill_engine::operator::{Context, FailureKind, RowFailure, Usage};
use searchmill_schemas::{CutObservation, Question, RecordedTokens, Trajectory};
use serde_json::Value;

use super::episode::{Command, Episode, Event, Rules};
use super::policy::{Actor, Policy};
use super::tokens::TokenLog;
use super::tool::{Moment, Tool, ToolResult};

/// A policy with its rules and its tool.
pub struct Agent {
    pub rules: Arc<Rules>,
    pub policy: Box<dyn Policy>,
    pub tool: Box<dyn Tool>,
}

/// Usage, model name and tokens of the policy's calls so far.
#[derive(Default)]
struct Spent {
    usage: Usage,
    model: Option<String>,
    tokens: TokenLog,
    /// Cost of tools.
    tools: Usage,
    tool_errors: u32,
}

/// A finished rollout.
#[derive(Debug)]
pub struct Rolled {
    pub trajectory: Trajectory,
    /// Its tokens, if the policy records them.
    pub tokens: Option<RecordedTokens>,
    /// Its tool messages that were cut, if there is a limit.
    pub cuts: Option<Vec<CutObservation>>,
    pub usage: Usage,
    /// Number of calls that a service outside failed to answer.
    pub tool_errors: u32,
}

impl Agent {
    /// Runs one rollout of one question.
    ///
    /// # Errors
    /// If the policy or the tool fails; the failure includes the usage so far.
    pub async fn answer(&self, question: Question, sample: u32, context: &Context) -> Result<Rolled, RowFailure> {
        let mut episode = Episode::new(Arc::clone(&self.rules), &question.question);
        let mut spent = Spent::default();
        // The actor borrows the question, which the trajectory then takes over.
        let ended = {
            let mut actor = self.policy.begin(&question, sample, context);
            self.play(&mut episode, &mut spent, actor.as_mut(), context).await
        };
        let prices = self.policy.prices();
        match ended {
            Ok(()) => {
                let cuts = episode.cuts().map(<[_]>::to_vec);
                let trajectory = episode.trajectory(question, sample, self.policy.name(), spent.model);
                let sampling = self.policy.sampling();
                let tokens = sampling.map(|sampling| RecordedTokens { tokens: spent.tokens.spans, sampling });
                // Before the tools are added: their calls have prices of their own.
                let mut usage = spent.usage.at(&prices);
                usage += spent.tools;
                Ok(Rolled { trajectory, tokens, cuts, usage, tool_errors: spent.tool_errors })
            }
            Err(mut failure) => {
                failure.usage += spent.usage;
                failure.usage = failure.usage.at(&prices);
                failure.usage += spent.tools;
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
            let command = episode.step(event);
            // `step` returns no error: a tool message that cannot be tokenised is reported here.
            if let Some(fault) = episode.fault() {
                return Err(RowFailure::new(FailureKind::Data, fault));
            }
            event = match command {
                // Only before a call: a call that was made is paid for, and its answer is taken.
                Command::Ask(_) if context.is_cancelled() => {
                    return Err(RowFailure::new(FailureKind::Cancelled, "interrupted"));
                }
                Command::Ask(offer) => {
                    let reply = actor.act(episode.messages(), offer).await?;
                    spent.usage += reply.usage();
                    spent.model = spent.model.take().or(reply.model);
                    if let Some(tokens) = reply.tokens {
                        spent.tokens.add(tokens, episode.messages());
                    }
                    Event::Said(reply.message)
                }
                Command::Call(calls) => {
                    let moment = Moment { messages: episode.messages(), context };
                    Event::Returned(self.call(calls, moment, spent).await?)
                }
                Command::End => return Ok(()),
            };
        }
    }

    /// Runs the calls of one message together; the results have the order of the calls. All are awaited, even if one
    /// fails: the others are being paid for.
    async fn call(
        &self,
        calls: Vec<Value>,
        moment: Moment<'_>,
        spent: &mut Spent,
    ) -> Result<Vec<ToolResult>, RowFailure> {
        let called = join_all(calls.into_iter().map(|arguments| self.tool.call(arguments, moment))).await;
        // Before a failure ends the row: the other calls were paid for.
        for call in called.iter().flatten() {
            spent.tools += call.usage;
            spent.tool_errors += u32::from(call.failed);
        }
        called.into_iter().map(|call| call.map(|call| call.result)).collect()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use searchmill_engine::operator::testing::Harness;
    use searchmill_schemas::{Message, Role, ToolCall};

    use super::*;
    use crate::episode::{Limits, Offer};
    use crate::policy::Reply;
    use crate::protocol::{ProtocolParams, ProtocolSettings};
    use crate::tool::Called;

    /// A model that always searches.
    struct Searches;

    impl Policy for Searches {
        fn name(&self) -> &'static str {
            "searches"
        }

        fn begin<'a>(&'a self, _: &'a Question, _: u32, _: &'a Context) -> Box<dyn Actor + 'a> {
            Box::new(Self)
        }
    }

    impl Actor for Searches {
        fn act<'a>(&'a mut self, _: &'a [Message], _: Offer) -> BoxFuture<'a, Result<Reply, RowFailure>> {
            let mut message = Message::text(Role::Assistant, "");
            let arguments = r#"{"query": "where"}"#.to_owned();
            message.tool_calls.push(ToolCall { id: "c".to_owned(), name: "search".to_owned(), arguments });
            message.prompt_tokens = Some(5);
            async move { Ok(Reply { message, model: None, calls: 1, tokens: None }) }.boxed()
        }
    }

    /// An index that cannot be read.
    struct Broken;

    impl Tool for Broken {
        fn call<'a>(&'a self, _: Value, _: Moment<'a>) -> BoxFuture<'a, Result<Called, RowFailure>> {
            let failure = RowFailure::new(FailureKind::Data, "the search failed: disk");
            async move { Err(failure) }.boxed()
        }
    }

    #[test]
    fn a_tool_that_fails_fails_the_row_and_what_was_paid_is_counted() {
        let settings = ProtocolSettings { tool: Some("search"), ..ProtocolSettings::default() };
        let limits = Limits {
            max_turns: 3,
            max_searches: None,
            ask_for_answer: true,
            max_total_tokens: None,
            ends_at_invalid: false,
        };
        let rules = Arc::new(Rules { protocol: ProtocolParams::ToolCall.open(&settings), limits, observations: None });
        let agent = Agent { rules, policy: Box::new(Searches), tool: Box::new(Broken) };
        let question = Question { id: "q".to_owned(), question: "Q".to_owned(), ..Question::default() };
        let harness = Harness::new();
        let context = harness.context();
        let failure = context.block_on(agent.answer(question, 0, &context)).expect_err("no trajectory");
        assert_eq!(failure.message, "the search failed: disk");
        assert_eq!((failure.usage.calls, failure.usage.prompt_tokens), (1, 5));
    }
}
