//! Text generation: a thread that serves many rows at once. On the CPU in f32, results do not depend on the other rows.
//!
//! There, `network` computes without tensors. Every number of a product is one dot product, summed in a fixed order. A
//! row's logits are therefore equal to the last bit: alone or in any batch, read at once or token by token, on any
//! number of threads. `engine` can thus admit and release rows between steps, and copy what another row has already
//! read, without changing any output. On another kind of processor, a rollout may differ, as with any model server.
//!
//! On other devices, `tensor_network` keeps the keys and values of all rows in one tensor per layer, with one place per
//! row (`device_cache`). Masks and addresses of a step are computed once for all layers (`step_plan`), and rows that
//! read one token each share all operations.
//!
//! Content is plain text. Documents, questions and tool results can contain the text of a control token. `control` cuts
//! such a text before it is encoded, so that the model reads plain text and only the chat template writes control
//! tokens. `training` cuts the `content_spans` of examples in the same places.

mod chat;
mod chat_tokens;
mod control;
mod device_cache;
mod engine;
mod files;
mod generator;
mod hermes;
mod layer;
mod network;
mod plain_text;
mod sampling;
mod scorer;
mod shape;
mod slot;
mod source;
mod step_plan;
mod tensor_network;
mod text;
mod tools;
pub mod throughput;
#[cfg(test)]
mod tensor_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use searchmill_engine::operator::OperatorError;
use tokenizers::Tokenizer;
use tokio::sync::mpsc::UnboundedReceiver;

pub use chat::{ChatTemplate, Ending, Message, Said};
pub use chat_tokens::{ChatTokens, Newly};
pub use control::{ControlTokens, Prompt};
pub use engine::{Completion, Event, Finish, Limits, Request};
pub use files::read_tokenizer;
pub use hermes::{Speech, parse_calls};
pub use plain_text::PlainTokenizer;
pub use sampling::{Distribution, Sampling};
pub use scorer::{Scored, Scorer};
pub use source::{ADAPTER, ModelSource, NAME_BOTH, WHOLE, check_files, lone_adapter, model_files};
pub use tools::parse_tools;

use super::decoder::{DecoderConfig, failed, inference_need};
use super::device::Compute;
use engine::JobSender;
use files::Files;
use generator::Generator;

/// A loaded model. Cheap to clone; its thread ends with the last clone.
#[derive(Clone)]
pub struct TextModel {
    jobs: JobSender,
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    stop_tokens: Arc<[u32]>,
    limits: Limits,
}

/// Options for opening a model.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Maximum rows in the batch.
    pub rows: usize,
    /// Maximum length of a row in tokens, prompt and answer (`None`: the model's positions).
    pub context: Option<usize>,
    /// Number of compute threads.
    pub threads: usize,
    /// Limit of weights, keys and values in bytes, if known (on a GPU: its free memory).
    pub memory: Option<u64>,
    /// Device and precision.
    pub compute: Compute,
}

impl TextModel {
    /// Loads a model folder or a `.gguf` file, with an adapter if there is one, and starts its thread.
    ///
    /// # Errors
    /// When a file is missing or broken, or the model with its rows does not fit into memory.
    pub fn open(folder: &Path, adapter: Option<&Path>, opening: Opening) -> Result<Self, OperatorError> {
        let files = Files::open(folder)?;
        let config = files.config()?;
        let context = opening.context.unwrap_or(usize::MAX).min(config.max_position_embeddings);
        let rows = opening.rows.max(1);
        let (compute, memory) = (&opening.compute, opening.compute.memory(opening.memory));
        // Before the weights are read: what does not fit would end the process.
        let limits = planned(&config, rows, context, memory, compute)?;
        let decoder = files.decoder(adapter, compute)?;
        let tokenizer = Arc::new(files.tokenizer(&config)?);
        let template = Arc::new(files.template()?.guarding(ControlTokens::of(&tokenizer)));
        let stop_tokens = files.stop_tokens(&config, &tokenizer)?.into();
        let network = Generator::new(&decoder, compute, limits.rows + limits.kept, context).map_err(failed)?;
        // Before the thread starts: the network has copies of its weights.
        drop(decoder);
        let jobs = engine::start(network, Arc::clone(&tokenizer), limits, opening.threads.max(1))?;
        Ok(Self { jobs, tokenizer, template, stop_tokens, limits })
    }

    /// Returns the prompt tokens of a conversation. `tools` is a JSON list of tool definitions, `options` are additional
    /// variables of the chat template. Control tokens in messages are read as plain text.
    ///
    /// # Errors
    /// When the tools are not JSON, or the template rejects the conversation.
    pub fn chat_tokens(
        &self,
        messages: &[Message],
        tools: &str,
        options: &BTreeMap<String, serde_json::Value>,
    ) -> Result<Vec<u32>, String> {
        self.chat_tokens_until(messages, tools, options, Ending::NextTurn)
    }

    /// Like [`Self::chat_tokens`], with another ending.
    ///
    /// # Errors
    /// As [`Self::chat_tokens`], and as [`ChatTemplate::prompt_until`].
    pub fn chat_tokens_until(
        &self,
        messages: &[Message],
        tools: &str,
        options: &BTreeMap<String, serde_json::Value>,
        ending: Ending,
    ) -> Result<Vec<u32>, String> {
        let tools = parse_tools(tools)?;
        let prompt = self.template.prompt_until(messages, &tools, options, ending)?;
        Ok(prompt.encode(&self.tokenizer)?.into_iter().map(|(token, _)| token).collect())
    }

    /// Whether a prompt ends in reasoning opened by the chat template.
    pub fn begins_in_thought(&self, prompt: &[u32]) -> bool {
        // The tag and its line break may be several tokens.
        let tail = &prompt[prompt.len().saturating_sub(8)..];
        self.tokenizer.decode(tail, false).is_ok_and(|text| text.trim_end().ends_with("<think>"))
    }

    /// Returns the maximum length of a conversation in tokens, prompt and answer.
    pub fn context(&self) -> usize {
        self.limits.context
    }

    /// Returns the tokens that end a turn.
    pub fn stop_tokens(&self) -> &Arc<[u32]> {
        &self.stop_tokens
    }

    /// Returns a text's tokens, including special tokens.
    ///
    /// # Errors
    /// When the tokenizer cannot read it.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoded = self.tokenizer.encode_fast(text, false).map_err(|error| error.to_string())?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Returns the tokens of plain text, in which control tokens are text; `begins`: with the tokens that the tokenizer
    /// puts before every text (`<s>` of Llama).
    ///
    /// # Errors
    /// When the tokenizer cannot read it.
    pub fn plain_tokens(&self, text: &str, begins: bool) -> Result<Vec<u32>, String> {
        let mut tokens = Vec::new();
        if begins {
            let start = self.tokenizer.encode_fast("", true).map_err(|error| error.to_string())?;
            tokens.extend(start.get_ids().iter().filter(|token| !self.stop_tokens.contains(token)));
        }
        let mut prompt = Prompt::default();
        prompt.push(text, &self.template.control);
        tokens.extend(prompt.encode(&self.tokenizer)?.into_iter().map(|(token, _)| token));
        Ok(tokens)
    }

    /// Returns the text of tokens that follow others.
    pub fn continuation(&self, before: &[u32], tokens: &[u32]) -> String {
        const CONTEXT: usize = 8;
        // Some decoders write a token in another way at the beginning of a text.
        let context = &before[before.len().saturating_sub(CONTEXT)..];
        let (known, all) = (self.decode(context), self.decode(&[context, tokens].concat()));
        match all.strip_prefix(known.as_str()) {
            Some(text) => text.to_owned(),
            // A character of several tokens begins in the context.
            None => self.decode(tokens),
        }
    }

    /// Returns the text of a token.
    pub fn token_text(&self, token: u32) -> String {
        self.decode(&[token])
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens, false).unwrap_or_default()
    }

    /// Starts to generate text. Returns the receiver of its events.
    ///
    /// # Errors
    /// When the prompt is empty, too long, or has tokens unknown to the model.
    pub fn start(&self, request: Request) -> Result<UnboundedReceiver<Event>, String> {
        let (length, context) = (request.prompt.len(), self.limits.context);
        if length == 0 {
            return Err("the prompt is empty".to_owned());
        }
        if length >= context {
            return Err(format!("the prompt has {length} tokens, the model's context {context}"));
        }
        if request.max_tokens == 0 {
            return Err("max_tokens must be at least 1".to_owned());
        }
        let vocabulary = self.tokenizer.get_vocab_size(true) as u32;
        // Ids may have gaps, so that some are beyond the count of tokens.
        for token in &request.prompt {
            if self.tokenizer.id_to_token(*token).is_none() && *token >= vocabulary {
                return Err(format!("the model has no token {token}"));
            }
        }
        Ok(self.jobs.send(request))
    }

    /// Generates text until it ends.
    ///
    /// # Errors
    /// As [`Self::start`], and when the model fails.
    pub async fn complete(&self, request: Request) -> Result<Completion, String> {
        finished(self.start(request)?).await
    }
}

/// Waits for the result of a started request.
///
/// # Errors
/// When the model fails.
pub async fn finished(mut events: UnboundedReceiver<Event>) -> Result<Completion, String> {
    while let Some(event) = events.recv().await {
        if let Event::Done(done) = event {
            return done;
        }
    }
    Err("the model's thread has died".to_owned())
}

/// Finished rows whose tokens stay cached on a device.
const KEPT: usize = 4;
/// Prompt tokens per step on the CPU.
const PROMPT_TOKENS: usize = 512;
/// Prompt tokens per step on a device.
const DEVICE_PROMPT_TOKENS: usize = 4096;

/// Returns the limits of a batch: all requested rows at full length if they fit, else as many tokens as fit (on a device,
/// where each place has the length of the context, as many rows as fit), at least one row.
fn planned(
    config: &DecoderConfig,
    rows: usize,
    context: usize,
    memory: Option<u64>,
    compute: &Compute,
) -> Result<Limits, OperatorError> {
    let (plain, number) = (compute.is_plain(), compute.dtype.size_in_bytes());
    let mut limits = if plain {
        let tokens = rows.saturating_mul(context);
        Limits { rows, context, tokens, kept: rows, prompt_tokens: PROMPT_TOKENS }
    } else {
        Limits { rows, context, tokens: usize::MAX, kept: KEPT, prompt_tokens: DEVICE_PROMPT_TOKENS }
    };
    let Some(memory) = memory else { return Ok(limits) };
    let least = inference_need(config, 1, context, number);
    least.check(memory)?;
    let share = config.cache_bytes_per_token(number) * if plain { 1 } else { context };
    let fitting = (memory - least.weights - least.activations) / share.max(1) as u64;
    let fitting = usize::try_from(fitting).unwrap_or(usize::MAX);
    if plain {
        limits.tokens = limits.tokens.min(fitting);
    } else {
        limits.kept = KEPT.min(fitting / 8);
        limits.rows = rows.min(fitting - limits.kept);
    }
    Ok(limits)
}
