//! Policy `model`: a decoder run in this process. All rows in flight share one batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use rand::Rng;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Computed, Context, FailureKind, Inputs, OperatorError, ParamIssue, Repeatability, RowFailure, TreeInput,
};
use searchmill_models::device::{Compute, Precision};
use searchmill_models::inference::{
    ChatTokens, Completion, Distribution, Finish, Message as ChatMessage, ModelSource, Opening, Request, Said,
    Sampling, TextModel, parse_calls,
};
use searchmill_schemas::{Message, Question, Role, SampledWith, ToolCall};
use serde::{Deserialize, Serialize};

use super::{Actor, ChatModel, Policy, Reply, RowSample};
use crate::episode::Offer;
use crate::protocol::{ChatFormat, Seen};
use crate::tokens::{RewrittenHistory, TurnTokens};

/// How a model is given its prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// As messages, which the model's chat template renders.
    #[default]
    Chat,
    /// As plain text.
    Completions,
}

impl Api {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    pub(super) fn is_chat(&self) -> bool {
        *self == Self::Chat
    }
}

/// A decoder run in this process: from a folder, the Hugging Face Hub, or another node (`from: {model: …}`; an
/// adapter from `train` with its base: `model: [base, adapter]`). Tool calls are parsed in the Hermes format. On the
/// CPU in f32, a row's tokens depend only on its seed, not on the rest of the batch. On a GPU they may differ when
/// two tokens are equally likely.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct ModelParams {
    /// A folder, a `.gguf` file, or a Hugging Face id (`Qwen/Qwen3-0.6B`) of a Qwen2, Qwen2.5, Qwen3 or Llama model.
    /// Weights of a `.gguf` file are dequantised to 32-bit numbers in memory. Without it, the model comes from the
    /// input `model`.
    pub model: Option<String>,
    /// Branch, tag or commit of a Hugging Face model. A commit never changes.
    pub revision: String,
    /// Folder of a PEFT LoRA adapter for the model.
    pub adapter: Option<String>,
    /// How the model is given the prompt: `chat` (by its chat template) or `completions` (as plain text, for base models
    /// and protocols of one text).
    #[serde(skip_serializing_if = "Api::is_chat")]
    pub api: Api,
    /// Sampling temperature (0 = always the most probable token).
    pub temperature: f64,
    /// Nucleus sampling: sample among the most probable tokens with this total probability.
    pub top_p: f64,
    /// Sample among this many of the most probable tokens (0 = all).
    pub top_k: usize,
    /// Maximum number of tokens per model turn.
    pub max_tokens: usize,
    /// Texts that end a turn, in addition to the model's end-of-turn token.
    pub stop: Vec<String>,
    /// Sampling seed, combined with the `seed` of the node, the question's id, the sample's number and the turn.
    pub seed: u64,
    /// Additional variables of the chat template (`enable_thinking`).
    pub template_options: BTreeMap<String, serde_json::Value>,
    /// Include the reasoning of earlier turns in the prompt, if the chat template supports it.
    pub resend_reasoning: bool,
    /// Maximum length of a conversation in tokens, including the answer (`null`: the model's maximum number of
    /// positions).
    pub context: Option<usize>,
    /// Computation precision: `f32`, or `bf16` (fastest on a GPU: `resources: {gpus: 1}`).
    pub dtype: Precision,
}

impl Default for ModelParams {
    fn default() -> Self {
        Self {
            model: None,
            revision: "main".to_owned(),
            adapter: None,
            api: Api::Chat,
            temperature: 0.7,
            top_p: 1.0,
            top_k: 0,
            max_tokens: 512,
            stop: Vec::new(),
            seed: 0,
            template_options: BTreeMap::new(),
            resend_reasoning: false,
            context: None,
            dtype: Precision::default(),
        }
    }
}

impl ModelParams {
    /// Where to load the model from.
    pub fn source(&self) -> ModelSource {
        ModelSource { model: self.model.clone(), revision: self.revision.clone(), adapter: self.adapter.clone() }
    }

    pub(super) fn check(&self) -> Vec<ParamIssue> {
        let mut issues = self.source().check("policy.model");
        let rules = [
            (self.temperature >= 0.0 && self.temperature.is_finite(), "temperature", "must not be negative"),
            (self.top_p > 0.0 && self.top_p <= 1.0, "top_p", "must be above 0 and at most 1"),
            (self.max_tokens > 0, "max_tokens", "must be at least 1"),
            (self.context != Some(0), "context", "must be at least 1"),
            (self.stop.iter().all(|stop| !stop.is_empty()), "stop", "a stop text must not be empty"),
        ];
        for (holds, field, message) in rules {
            if !holds {
                issues.push(ParamIssue::new(format!("policy.model.{field}"), message));
            }
        }
        issues
    }
}

/// A decoder and the tools offered to it.
pub struct LocalModel {
    model: TextModel,
    name: String,
    params: ModelParams,
    format: Arc<dyn ChatFormat>,
    tool_name: String,
    /// Texts that end a message.
    stop: Vec<String>,
    /// Whether tokens are recorded, and what happens to rewritten history.
    record: Option<RewrittenHistory>,
    /// What identifies the weights, if it is known.
    revision: Option<String>,
}

impl LocalModel {
    /// Loads the model.
    pub fn open(
        params: &ModelParams,
        inputs: &Inputs,
        format: Arc<dyn ChatFormat>,
        tool_name: &str,
        record: Option<RewrittenHistory>,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        let trees = &params.source().used(&inputs.trees("model"));
        let (folder, adapter) = params.source().folders(trees, context)?;
        let compute = Compute::leased(context, params.dtype)?;
        context.progress().log(&format!("the model runs on {}", compute.name()));
        let (plain, device) = (compute.is_plain(), compute.name());
        let opening = Opening {
            // As many rows as the engine has in flight share a batch.
            rows: context.concurrency(),
            context: params.context,
            threads: context.threads(),
            memory: context.memory(),
            compute,
        };
        let model = TextModel::open(&folder, adapter.as_deref(), opening)?;
        let (mut name, params) = (name(params, trees), params.clone());
        if !plain {
            // The output differs from that of a CPU: the name in the rows includes the device.
            name = format!("{name} ({device})");
            // A row's logits depend on the other rows of its batch, and so on when their searches end.
            context.computed_on(Computed::declared(Repeatability::Not));
        }
        let stop = [params.stop.as_slice(), format.stop()].concat();
        let revision = params.source().revision(trees, context);
        Ok(Self { model, name, params, format, tool_name: tool_name.to_owned(), stop, record, revision })
    }

    fn chat_messages(&self, messages: &[Message]) -> Vec<ChatMessage> {
        messages.iter().map(|message| chat_message(message, self.params.resend_reasoning)).collect()
    }

    /// Tokenises a conversation. Tools remain in the prompt even if the model may not use them any more: it was
    /// trained that way, and the cached prefix stays valid.
    fn prompt(&self, messages: &[Message]) -> Result<Vec<u32>, String> {
        self.model.chat_tokens(&self.chat_messages(messages), self.format.tools(), &self.params.template_options)
    }

    /// Returns the tokens of one text: the opening by the chat template or as plain text, what the environment added,
    /// and what the model wrote, in the tokens in which it wrote it. Returns the messages that the model has not read
    /// yet, each with the place of its first token.
    fn extend(&self, text: &mut OneText, messages: &[Message]) -> Result<Vec<(usize, usize)>, String> {
        let opening = messages.iter().take_while(|message| message.is_opening()).count();
        let mut fresh = Vec::new();
        if text.taken == 0 {
            text.tokens = match self.params.api {
                Api::Chat => self.prompt(&messages[..opening])?,
                Api::Completions => {
                    let prompt: String = messages[..opening].iter().map(|message| message.content.as_str()).collect();
                    // Only the beginning of the text gets what the tokenizer puts before a text (`<s>`).
                    self.model.plain_tokens(&prompt, true)?
                }
            };
            text.taken = opening;
            fresh.push((0, 0));
        }
        for (position, message) in messages.iter().enumerate().skip(text.taken) {
            // The tokens in which the model wrote it: encoding its text again may give others.
            if let Some(written) = text.written.take().filter(|_| message.is_model()) {
                text.tokens.extend(written);
            } else {
                fresh.push((position, text.tokens.len()));
                text.tokens.extend(self.model.plain_tokens(&message.content, false)?);
            }
        }
        text.taken = messages.len();
        Ok(fresh)
    }

    async fn go_on(&self, text: &mut OneText, messages: &[Message], seed: u64) -> Result<Reply, RowFailure> {
        let fresh = self.extend(text, messages).map_err(unusable)?;
        let read = self.record.map(|record| text.read(&fresh, record)).transpose().map_err(unusable)?;
        let said = self.complete(text.tokens.clone(), seed).await?;
        let mut message = Message::text(Role::Assistant, self.model.continuation(&text.tokens, &said.tokens));
        text.written = Some(said.tokens.clone());
        text.ended = said.stop_token.is_some();
        let reason = if said.finish == Finish::Length { "length" } else { "stop" };
        message.finish_reason = Some(reason.to_owned());
        Ok(Reply { tokens: read.map(|read| sampled(read, &said)), ..self.counted(message, &said) })
    }

    /// `count`: number of messages of the rollout, which are more than those of the chat if some lie beside it.
    async fn say(&self, chat: &mut Chat, messages: &[Message], count: usize, seed: u64) -> Result<Reply, RowFailure> {
        let (prompt, read) = match self.record {
            None => (self.prompt(messages).map_err(unusable)?, None),
            // The prompt goes on from the tokens that were sampled: the rendered text may have others.
            Some(record) => {
                let (all, options) = (self.chat_messages(messages), &self.params.template_options);
                let newly =
                    self.model.read_on(&mut chat.tokens, &all, self.format.tools(), options).map_err(unusable)?;
                let why = "the chat template renders earlier turns in other words than the model read or wrote";
                if newly.rewritten {
                    record.allow(why).map_err(unusable)?;
                }
                let read = vec![(if newly.rewritten { 0 } else { chat.taken }, newly.tokens)];
                // The model's message comes next.
                chat.taken = count + 1;
                let read = TurnTokens { read, restarts: newly.rewritten, ..TurnTokens::default() };
                (chat.tokens.tokens().to_vec(), Some(read))
            }
        };
        let thinks = self.model.begins_in_thought(&prompt);
        let said = self.complete(prompt, seed).await?;
        if read.is_some() {
            chat.tokens.said(&self.model, &said);
        }
        Ok(Reply { tokens: read.map(|read| sampled(read, &said)), ..self.reply(&said, thinks, messages) })
    }

    /// Returns the seed of a message after this number of messages.
    fn seed(&self, sample: RowSample<'_>, messages: usize) -> u64 {
        let mut chance = crate::chance::stream(self.params.seed, sample.row, sample.number);
        // Each turn has a stream of its own, which earlier turns do not advance.
        chance.set_stream(messages as u64);
        chance.random()
    }

    async fn complete(&self, prompt: Vec<u32>, seed: u64) -> Result<Completion, RowFailure> {
        let ModelParams { temperature, top_k, top_p, .. } = self.params;
        let request = Request {
            prompt,
            sampling: Sampling { temperature: temperature as f32, top_k, top_p: top_p as f32 },
            seed,
            max_tokens: self.params.max_tokens,
            stops: self.stop.clone(),
            keep_stop: false,
            stop_tokens: Arc::clone(self.model.stop_tokens()),
            log_probabilities: self.record.map(|_| Distribution::Sampled),
            alternatives: 0,
            stream: false,
        };
        self.model.complete(request).await.map_err(|error| RowFailure::new(FailureKind::BadResponse, error))
    }

    /// Converts the output to a message. `thinks`: the chat template has already opened the initial thought.
    fn reply(&self, said: &Completion, thinks: bool, messages: &[Message]) -> Reply {
        let opening = if thinks { "<think>" } else { "" };
        let speech = parse_calls(&format!("{opening}{}", said.text), &self.tool_name);
        let number = messages.iter().filter(|message| message.is_model()).count();
        let mut message = Message::text(Role::Assistant, speech.content);
        message.reasoning = speech.reasoning;
        for (call, (name, arguments)) in speech.calls.into_iter().enumerate() {
            // With the turn's number: results are found by the id in the whole conversation.
            message.tool_calls.push(ToolCall { id: format!("call_{number}_{call}"), name, arguments });
        }
        let reason = match said.finish {
            Finish::Length => "length",
            Finish::Stop if message.tool_calls.is_empty() => "stop",
            Finish::Stop => "tool_calls",
        };
        message.finish_reason = Some(reason.to_owned());
        self.counted(message, said)
    }

    fn counted(&self, mut message: Message, said: &Completion) -> Reply {
        message.prompt_tokens = i64::try_from(said.prompt_tokens).ok();
        message.completion_tokens = i64::try_from(said.drawn).ok();
        Reply { message, model: Some(self.name.clone()), calls: 1, tokens: None }
    }
}

/// The tokens of a rollout that is one text.
#[derive(Default)]
struct OneText {
    tokens: Vec<u32>,
    /// Number of messages in `tokens`.
    taken: usize,
    /// Tokens of the model's last message, if it is not yet in `tokens`.
    written: Option<Vec<u32>>,
    /// Whether the model ended its last message with an end-of-turn token, which is not part of the text.
    ended: bool,
}

impl OneText {
    /// Returns what the model reads next; `fresh`: its new messages, each with the place of its first token.
    fn read(&self, fresh: &[(usize, usize)], record: RewrittenHistory) -> Result<TurnTokens, String> {
        if self.ended {
            record.allow("the end-of-turn token that the model wrote is not part of the text that it continues")?;
            let read = vec![(0, self.tokens.clone())];
            return Ok(TurnTokens { read, restarts: true, ..TurnTokens::default() });
        }
        let mut read = Vec::with_capacity(fresh.len());
        for (index, (position, start)) in fresh.iter().enumerate() {
            let end = fresh.get(index + 1).map_or(self.tokens.len(), |(_, next)| *next);
            read.push((*position, self.tokens[*start..end].to_vec()));
        }
        Ok(TurnTokens { read, ..TurnTokens::default() })
    }
}

/// The tokens of a chat, if they are recorded.
#[derive(Default)]
struct Chat {
    tokens: ChatTokens,
    /// Number of messages of the rollout up to the end of `tokens`.
    taken: usize,
}

/// Adds what the model sampled to what it read.
fn sampled(read: TurnTokens, said: &Completion) -> TurnTokens {
    TurnTokens {
        sampled: said.tokens.iter().chain(&said.stop_token).copied().collect(),
        logprobs: said.log_probabilities.iter().chain(&said.stop_log_probability).copied().collect(),
        ..read
    }
}

fn unusable(message: String) -> RowFailure {
    RowFailure::new(FailureKind::Data, message)
}

/// Converts a message for the chat template.
pub fn chat_message(message: &Message, with_reasoning: bool) -> ChatMessage {
    let calls = message.tool_calls.iter().cloned();
    let calls = calls.map(|ToolCall { id, name, arguments }| Said { id, name, arguments }).collect();
    ChatMessage {
        role: message.role.clone(),
        content: message.content.clone(),
        reasoning: if with_reasoning { message.reasoning.clone() } else { None },
        calls,
        call_id: message.tool_call_id.clone(),
    }
}

/// Model name in trajectories: as given in the params, or the digests of the bound artifacts.
fn name(params: &ModelParams, trees: &[&TreeInput]) -> String {
    let mut parts = Vec::from_iter(params.model.clone());
    for tree in trees {
        parts.push(format!("artifact:{}", tree.digest.get(..12).unwrap_or(&tree.digest)));
    }
    parts.extend(params.adapter.clone());
    parts.join("+")
}

impl ChatModel for LocalModel {
    fn reply<'a>(&'a self, messages: &'a [Message], sample: RowSample<'a>) -> BoxFuture<'a, Result<Reply, RowFailure>> {
        let seed = self.seed(sample, messages.len());
        async move { self.say(&mut Chat::default(), messages, messages.len(), seed).await }.boxed()
    }
}

impl Policy for LocalModel {
    fn name(&self) -> &'static str {
        "model"
    }

    fn sampling(&self) -> Option<SampledWith> {
        self.record.map(|_| SampledWith {
            temperature: self.params.temperature,
            top_p: self.params.top_p,
            top_k: i64::try_from(self.params.top_k).unwrap_or(0),
            other: None,
            // They are asked for as `Distribution::Sampled` (see `complete`).
            logprobs: "processed".to_owned(),
            revision: self.revision.clone(),
        })
    }

    fn begin<'a>(&'a self, question: &'a Question, sample: u32, context: &'a Context) -> Box<dyn Actor + 'a> {
        let sample = RowSample { row: &question.id, number: sample, context };
        Box::new(Speaker { model: self, sample, text: OneText::default(), chat: Chat::default() })
    }
}

/// The model in one conversation.
struct Speaker<'a> {
    model: &'a LocalModel,
    sample: RowSample<'a>,
    text: OneText,
    chat: Chat,
}

impl Actor for Speaker<'_> {
    fn act<'a>(&'a mut self, messages: &'a [Message], _offer: Offer) -> BoxFuture<'a, Result<Reply, RowFailure>> {
        async move {
            let model = self.model;
            let seed = model.seed(self.sample, messages.len());
            if model.format.is_one_text() {
                return model.go_on(&mut self.text, messages, seed).await;
            }
            let seen = Seen::of(messages, model.format.is_in_turns());
            // An aside is a chat of its own: its tokens do not enter the one that grows.
            let mut aside = Chat::default();
            let chat = if seen.is_aside { &mut aside } else { &mut self.chat };
            model.say(chat, &seen.messages, messages.len(), seed).await
        }
        .boxed()
    }
}
