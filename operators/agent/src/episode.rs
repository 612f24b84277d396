//! The loop: the model speaks, its searches are run, until it answers or a limit is reached.

use futures::future::join_all;
use searchmill_engine::operator::{Context, FailureKind, RowFailure, Usage};
use searchmill_schemas::{Message, Question, Role, ToolCall, Trajectory};

use super::policy::{Actor, Offer, Policy, Reply};
use super::protocol::ProtocolName;
use super::protocol::tool_call::{ANSWER_NOW, ToolCallProtocol, extract_answer, searches_used_up, tool_message};
use super::tool::Searcher;

/// An agent: somebody who answers, what it may use, and how far it may go.
pub struct Agent {
    pub policy: Box<dyn Policy>,
    pub protocol: ToolCallProtocol,
    pub search: Option<Searcher>,
    pub limits: Limits,
}

/// How far an agent may go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Model calls.
    pub max_turns: u32,
    /// Searches that are run.
    pub max_searches: Option<u32>,
    /// Is the model told to answer, without tools, in the last call?
    pub ask_for_answer: bool,
}

/// What came of a question so far.
#[derive(Default)]
struct Episode {
    messages: Vec<Message>,
    usage: Usage,
    model: Option<String>,
    turns: u32,
    searches: u32,
    search_refused: bool,
}

impl Agent {
    /// One rollout of one question.
    ///
    /// # Errors
    /// When the policy cannot go on; what was paid until then is in the failure.
    pub async fn answer(
        &self,
        question: Question,
        sample: u32,
        context: &Context,
    ) -> Result<(Trajectory, Usage), RowFailure> {
        let mut episode = Episode::open(&self.protocol.system_prompt, &question.question);
        let ended = {
            let mut actor = self.policy.begin(&question, sample, context);
            self.play(&mut episode, actor.as_mut(), context).await
        };
        match ended {
            Ok(limit) => {
                let usage = episode.usage.at(&self.policy.prices());
                Ok((self.trajectory(episode, limit, question, sample), usage))
            }
            Err(mut failure) => {
                failure.usage += episode.usage;
                failure.usage = failure.usage.at(&self.policy.prices());
                Err(failure)
            }
        }
    }

    /// Plays until the model stops asking for tools; the limit that ended it, if one did.
    async fn play(
        &self,
        episode: &mut Episode,
        actor: &mut dyn Actor,
        context: &Context,
    ) -> Result<Option<&'static str>, RowFailure> {
        loop {
            if context.is_cancelled() {
                return Err(RowFailure::new(FailureKind::Cancelled, "interrupted"));
            }
            let limit = self.limit(episode);
            let offer = self.offer(episode, limit);
            let reply = actor.act(&episode.messages, offer).await?;
            let calls = episode.hear(reply);
            if calls.is_empty() || limit.is_some() {
                let stopped = self.search.is_some() || !calls.is_empty();
                return Ok(limit.filter(|_| stopped));
            }
            self.run_calls(episode, &calls).await;
        }
    }

    /// The limit that makes the next call the last one.
    fn limit(&self, episode: &Episode) -> Option<&'static str> {
        if episode.search_refused && self.limits.ask_for_answer {
            return Some("max_searches");
        }
        (episode.turns + 1 >= self.limits.max_turns).then_some("max_turns")
    }

    /// What the model may use in the next call; before the last one it is told that it is the last.
    fn offer(&self, episode: &mut Episode, limit: Option<&str>) -> Offer {
        if self.search.is_none() {
            return Offer::Nothing;
        }
        if limit.is_none() || !self.limits.ask_for_answer {
            return Offer::Tools;
        }
        if episode.turns > 0 {
            episode.messages.push(Message::text(Role::User, ANSWER_NOW));
        }
        Offer::Nothing
    }

    /// Runs a turn's tool calls at once; the tool turns keep the order of the calls.
    async fn run_calls(&self, episode: &mut Episode, calls: &[ToolCall]) {
        let requests: Vec<_> = calls.iter().map(|call| self.admit(episode, call)).collect();
        let messages = calls.iter().zip(requests).map(|(call, request)| async move {
            let result = match (request, &self.search) {
                (Ok(query), Some(searcher)) => searcher.search(query).await,
                (Ok(_), None) => Err("there is nothing to search".to_owned()),
                (Err(message), _) => Err(message),
            };
            tool_message(call, result)
        });
        let messages = join_all(messages).await;
        episode.messages.extend(messages);
    }

    /// The query of a call that may be run, or what to tell the model.
    fn admit(&self, episode: &mut Episode, call: &ToolCall) -> Result<String, String> {
        let query = self.protocol.query(call)?;
        match self.limits.max_searches {
            Some(most) if episode.searches >= most => {
                episode.search_refused = true;
                Err(searches_used_up(most))
            }
            _ => {
                episode.searches += 1;
                Ok(query)
            }
        }
    }

    fn trajectory(&self, episode: Episode, limit: Option<&str>, question: Question, sample: u32) -> Trajectory {
        let last = episode.messages.iter().rfind(|message| message.is_model());
        let answer = last.map(|message| message.content.clone()).unwrap_or_default();
        let prediction = extract_answer(&answer).to_owned();
        let cut_short = last.and_then(|message| message.finish_reason.as_deref()) == Some("length");
        let calls: usize = episode.messages.iter().map(|message| message.tool_calls.len()).sum();
        Trajectory {
            id: format!("{}@{sample}", question.id),
            question_id: question.id,
            sample_index: i32::try_from(sample).unwrap_or(i32::MAX),
            question: question.question,
            golden_answers: question.golden_answers,
            question_type: question.question_type,
            evidence: question.evidence,
            policy: self.policy.name().to_owned(),
            model: episode.model,
            protocol: ProtocolName::ToolCall.name().to_owned(),
            tools: self.protocol.tools.clone(),
            finish_reason: finish_reason(&prediction, cut_short, limit).to_owned(),
            answer,
            prediction,
            turns: episode.turns as i32,
            tool_calls: calls as i32,
            prompt_tokens: episode.usage.prompt_tokens as i64,
            completion_tokens: episode.usage.completion_tokens as i64,
            last_prompt_tokens: last.and_then(|message| message.prompt_tokens).unwrap_or(0),
            last_completion_tokens: last.and_then(|message| message.completion_tokens).unwrap_or(0),
            messages: episode.messages,
            metadata: question.metadata,
        }
    }
}

fn finish_reason<'a>(prediction: &str, cut_short: bool, limit: Option<&'a str>) -> &'a str {
    match limit {
        _ if !prediction.is_empty() => "answered",
        _ if cut_short => "length",
        Some(limit) => limit,
        None => "no_answer",
    }
}

impl Episode {
    fn open(system_prompt: &str, question: &str) -> Self {
        let messages = vec![Message::text(Role::System, system_prompt), Message::text(Role::User, question)];
        Self { messages, ..Self::default() }
    }

    /// Takes the model's turn in; the tool calls it asks for.
    fn hear(&mut self, reply: Reply) -> Vec<ToolCall> {
        self.turns += 1;
        self.usage += reply.usage();
        if self.model.is_none() {
            self.model = reply.model;
        }
        let calls = reply.message.tool_calls.clone();
        self.messages.push(reply.message);
        calls
    }
}
