//! Continuous batching: rows join and leave the batch between steps, and common prefixes are read once.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rayon::prelude::*;
use searchmill_engine::operator::OperatorError;
use tokenizers::Tokenizer;
use tokio::sync::mpsc::UnboundedSender;

use super::generator::Generator;
use super::network::{Piece, Scratch};
use super::sampling::{Distribution, Sampling, draw, most_probable};
use super::slot::Slot;
use super::text::Writer;
use crate::decoder::failed;

/// A request to continue a text.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the text.
    pub prompt: Vec<u32>,
    /// Sampling settings.
    pub sampling: Sampling,
    /// Determines, with the prompt, every sampled token.
    pub seed: u64,
    /// Maximum number of sampled tokens.
    pub max_tokens: usize,
    /// Strings that end the text.
    pub stops: Vec<String>,
    /// Whether the string that ended the text is part of the result.
    pub keep_stop: bool,
    /// Tokens that end the text.
    pub stop_tokens: Arc<[u32]>,
    /// Distribution whose log-probabilities of the sampled tokens to return.
    pub log_probabilities: Option<Distribution>,
    /// Number of most probable tokens to return for each sampled token, with their log-probabilities.
    pub alternatives: usize,
    /// Whether to stream the text.
    pub stream: bool,
}

/// Reason why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token or string.
    Stop,
    /// `max_tokens`, or the end of the model's context.
    Length,
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The generated text.
    pub text: String,
    /// The sampled tokens, without the stop token.
    pub tokens: Vec<u32>,
    /// Natural logarithms of the tokens' probabilities (empty unless requested).
    pub log_probabilities: Vec<f32>,
    /// The most probable tokens at each sampled token, with their log-probabilities, in descending order (empty unless
    /// requested).
    pub alternatives: Vec<Vec<(u32, f32)>>,
    /// Reason why it ended.
    pub finish: Finish,
    /// The stop token that ended it.
    pub stop_token: Option<u32>,
    /// Natural logarithm of its probability (`None` unless requested).
    pub stop_log_probability: Option<f32>,
    /// The stop string that ended it.
    pub stop_text: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of sampled tokens, including the stop token.
    pub drawn: usize,
    /// Prompt tokens whose keys and values were reused from this or another row.
    pub reused: usize,
}

/// Event sent to the caller of a request.
#[derive(Clone, Debug)]
pub enum Event {
    /// More text (streaming requests only).
    Text(String),
    /// The result.
    Done(Result<Completion, String>),
}

/// Limits of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows in the batch.
    pub rows: usize,
    /// Maximum tokens of a row, prompt and answer.
    pub context: usize,
    /// Maximum tokens of all rows together.
    pub tokens: usize,
    /// Finished rows whose tokens stay cached for reuse.
    pub kept: usize,
    /// Maximum prompt tokens per step, so that prefill does not delay decoding.
    pub prompt_tokens: usize,
}

struct Job {
    request: Request,
    reply: UnboundedSender<Event>,
}

/// An active row.
struct Row {
    request: Request,
    reply: UnboundedSender<Event>,
    slot: Slot,
    /// Tokens to be read: the rest of the prompt, then the last sampled token.
    queue: Vec<u32>,
    chance: ChaCha8Rng,
    writer: Writer,
    log_probabilities: Vec<f32>,
    alternatives: Vec<Vec<(u32, f32)>>,
    stop_token: Option<u32>,
    stop_log_probability: Option<f32>,
    /// Length of the text that was sent.
    sent: usize,
    reused: usize,
    drawn: usize,
    /// Maximum length in tokens.
    planned: usize,
    /// How it ended, if it did.
    ended: Option<Result<Finish, String>>,
}

/// State of the thread that generates text.
pub(super) struct Worker {
    network: Generator,
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    waiting: Vec<Job>,
    rows: Vec<Row>,
    /// Slots of finished rows, oldest first, cached for reuse.
    left: Vec<Slot>,
    scratch: Scratch,
    logits: Vec<f32>,
}

/// Starts the thread, which ends when the sender is dropped.
pub(super) fn start(
    network: Generator,
    tokenizer: Arc<Tokenizer>,
    limits: Limits,
    threads: usize,
) -> Result<JobSender, OperatorError> {
    let pool = match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
        Ok(pool) => pool,
        Err(error) => return Err(OperatorError::machine(format!("cannot start {threads} threads: {error}"))),
    };
    let (sender, jobs) = channel();
    let worker = Worker {
        network,
        tokenizer,
        limits,
        waiting: Vec::new(),
        rows: Vec::new(),
        left: Vec::new(),
        scratch: Scratch::default(),
        logits: Vec::new(),
    };
    let name = std::thread::Builder::new().name("decoder".to_owned());
    // In the pool: a thread outside would be woken after each of many short loops.
    match name.spawn(move || pool.install(move || worker.run(jobs))) {
        Ok(_) => Ok(JobSender(sender)),
        Err(error) => Err(OperatorError::machine(format!("cannot start {threads} threads: {error}"))),
    }
}

/// Sender of requests.
#[derive(Clone)]
pub(super) struct JobSender(Sender<Job>);

impl JobSender {
    /// Sends a request. Returns the receiver of its events.
    pub(super) fn send(&self, request: Request) -> tokio::sync::mpsc::UnboundedReceiver<Event> {
        let (reply, events) = tokio::sync::mpsc::unbounded_channel();
        // If the thread has ended, the reply is dropped and the receiver closes.
        drop(self.0.send(Job { request, reply }));
        events
    }
}

impl Worker {
    fn run(mut self, jobs: Receiver<Job>) {
        loop {
            if self.rows.is_empty() && self.waiting.is_empty() {
                let Ok(job) = jobs.recv() else { return };
                self.waiting.push(job);
            }
            // Requests that came during a step join before the next one.
            self.waiting.extend(jobs.try_iter());
            self.admit();
            self.step();
        }
    }

    /// Admits waiting rows in order, as far as the limits allow. A row waits while another row reads a common prefix.
    fn admit(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        for job in waiting.by_ref() {
            // Its caller has gone.
            if job.reply.is_closed() {
                continue;
            }
            let planned = (job.request.prompt.len() + job.request.max_tokens).min(self.limits.context);
            let taken: usize = self.rows.iter().map(|row| row.planned).sum();
            let full = self.rows.len() >= self.limits.rows || taken + planned > self.limits.tokens;
            // A row that is alone runs, whatever its length. Those behind wait: none is overtaken for ever.
            if full && !self.rows.is_empty() || self.is_being_read(&job.request.prompt) {
                self.waiting.push(job);
                break;
            }
            self.evict(taken + planned);
            match self.slot(&job.request.prompt) {
                Ok(slot) => self.rows.push(self.row(job, slot, planned)),
                Err(error) => drop(job.reply.send(Event::Done(Err(failed(error).message)))),
            }
        }
        self.waiting.extend(waiting);
    }

    /// Whether an active row is still reading a longer prefix of this prompt than is cached now.
    fn is_being_read(&self, prompt: &[u32]) -> bool {
        const WORTH_WAITING: usize = 16;
        let now = self.rows.iter().map(|row| &row.slot).chain(&self.left).map(|slot| slot.shared_with(prompt)).max();
        let now = now.unwrap_or(0);
        self.rows.iter().any(|row| {
            let read = row.slot.shared_with(prompt);
            let rest = prompt.get(read..).unwrap_or_default();
            let later = read + row.queue.iter().zip(rest).take_while(|(one, other)| one == other).count();
            read == row.slot.tokens.len() && row.queue.len() > 1 && later >= now + WORTH_WAITING
        })
    }

    /// Evicts the oldest cached slots until they fit the limit together with `taken` tokens.
    fn evict(&mut self, taken: usize) {
        let mut cached: usize = self.left.iter().map(|slot| slot.tokens.len()).sum();
        while cached + taken > self.limits.tokens || self.left.len() > self.limits.kept {
            if self.left.is_empty() {
                return;
            }
            cached -= self.left.remove(0).tokens.len();
        }
    }

    fn row(&self, job: Job, slot: Slot, planned: usize) -> Row {
        let reused = slot.tokens.len();
        Row {
            queue: job.request.prompt[reused..].to_vec(),
            chance: ChaCha8Rng::seed_from_u64(job.request.seed),
            writer: Writer::new(Arc::clone(&self.tokenizer), job.request.stops.clone(), job.request.keep_stop),
            request: job.request,
            reply: job.reply,
            slot,
            log_probabilities: Vec::new(),
            alternatives: Vec::new(),
            stop_token: None,
            stop_log_probability: None,
            sent: 0,
            reused,
            drawn: 0,
            planned,
            ended: None,
        }
    }

    /// Returns a slot with the longest cached prefix of the prompt (at least one token must be left to read).
    fn slot(&mut self, prompt: &[u32]) -> candle_core::Result<Slot> {
        let most = prompt.len().saturating_sub(1);
        let shape = self.network.shape();
        let of_left = longest_shared(self.left.iter(), prompt, most);
        let of_rows = longest_shared(self.rows.iter().map(|row| &row.slot), prompt, most);
        match (of_left, of_rows) {
            (Some((shared, at)), other) if other.is_none_or(|(more, _)| shared >= more) => {
                // A continued conversation takes its own slot over; a common prefix is copied.
                if shared * 2 > self.left[at].tokens.len()
                    && shared + self.limits.prompt_tokens > self.left[at].tokens.len()
                {
                    let mut slot = self.left.remove(at);
                    slot.truncate(&shape, shared);
                    return Ok(slot);
                }
                self.network.beginning(&self.left[at], shared)
            }
            (_, Some((shared, at))) => self.network.beginning(&self.rows[at].slot, shared),
            _ => self.network.empty(),
        }
    }

    /// Runs a step: each row reads its tokens, and rows that have read everything sample a token.
    fn step(&mut self) {
        self.rows.retain(|row| !row.reply.is_closed());
        if self.rows.is_empty() {
            return;
        }
        let counts = shares(&self.rows, self.limits.prompt_tokens);
        let mut pieces = Vec::with_capacity(self.rows.len());
        for (row, count) in self.rows.iter_mut().zip(&counts) {
            if *count > 0 {
                let wanted = usize::from(*count == row.queue.len());
                pieces.push(Piece { slot: &mut row.slot, tokens: &row.queue[..*count], wanted });
            }
        }
        // The slots are then in any state.
        if let Err(error) = self.network.read(&mut pieces, &mut self.scratch, &mut self.logits) {
            let problem = failed(error).message;
            for row in std::mem::take(&mut self.rows) {
                drop(row.end(Err(problem.clone())));
            }
            self.left.clear();
            return;
        }
        for (row, count) in self.rows.iter_mut().zip(counts) {
            row.queue.drain(..count);
        }
        let logits = self.logits.chunks_exact(self.network.shape().vocabulary);
        // Each row has its own random stream, so that sampling in parallel changes nothing.
        let have_read = self.rows.iter_mut().filter(|row| row.queue.is_empty());
        have_read
            .zip(logits)
            .collect::<Vec<_>>()
            .into_par_iter()
            .for_each(|(row, logits)| row.ended = row.draw(logits));
        for mut row in std::mem::take(&mut self.rows) {
            match row.ended.take() {
                None => self.rows.push(row),
                Some(ended) => self.left.push(row.end(ended)),
            }
        }
        let taken = self.rows.iter().map(|row| row.planned).sum();
        self.evict(taken);
    }
}

/// Returns the number of tokens that each row reads in this step: one for decoding rows; the others share the rest.
fn shares(rows: &[Row], prompt_tokens: usize) -> Vec<usize> {
    let mut left = prompt_tokens;
    let mut counts = Vec::with_capacity(rows.len());
    for row in rows {
        let count = if row.queue.len() == 1 { 1 } else { row.queue.len().min(left) };
        left -= count.min(left);
        counts.push(count);
    }
    counts
}

/// Finds the slot with the longest common prefix with a prompt, at most `most` tokens; the first of equals. Returns its length
/// and the number of the slot.
fn longest_shared<'a>(slots: impl Iterator<Item = &'a Slot>, prompt: &[u32], most: usize) -> Option<(usize, usize)> {
    let mut longest = None;
    for (number, slot) in slots.enumerate() {
        let shared = slot.shared_with(prompt).min(most);
        if shared > longest.map_or(0, |(shared, _)| shared) {
            longest = Some((shared, number));
        }
    }
    longest
}

impl Row {
    /// Samples a token. Returns how the row ended, if it did.
    fn draw(&mut self, logits: &[f32]) -> Option<Result<Finish, String>> {
        let Some(token) = draw(logits, self.request.sampling, &mut self.chance) else {
            return Some(Err(
                "the model's logits are not numbers: its weights are broken or its numbers overflow".to_owned()
            ));
        };
        // The stop token counts, as in the usage that servers report.
        self.drawn += 1;
        let number = self.request.log_probabilities.map(|of| of.log_probability(logits, token, self.request.sampling));
        if self.request.stop_tokens.contains(&token) {
            (self.stop_token, self.stop_log_probability) = (Some(token), number);
            return Some(Ok(Finish::Stop));
        }
        self.log_probabilities.extend(number);
        if self.request.alternatives > 0 {
            self.alternatives.push(most_probable(logits, self.request.alternatives));
        }
        if self.writer.push(token) {
            return Some(Ok(Finish::Stop));
        }
        if self.request.stream {
            self.send_text(self.writer.settled());
        }
        self.queue.push(token);
        if self.slot.tokens.len() + 1 >= self.planned { Some(Ok(Finish::Length)) } else { None }
    }

    /// Sends the text up to `end`.
    fn send_text(&mut self, end: usize) {
        if let Some(new) = self.writer.text().get(self.sent..end).filter(|new| !new.is_empty()) {
            // The caller may have gone: the row ends before its next step.
            drop(self.reply.send(Event::Text(new.to_owned())));
            self.sent = end;
        }
    }

    /// Sends the result and returns the slot.
    fn end(mut self, ended: Result<Finish, String>) -> Slot {
        let stopped = self.writer.finish();
        let finish = ended.map(|finish| if stopped { Finish::Stop } else { finish });
        if self.request.stream {
            self.send_text(self.writer.text().len());
        }
        let done = finish.map(|finish| Completion {
            text: self.writer.text().to_owned(),
            tokens: self.writer.tokens().to_vec(),
            log_probabilities: std::mem::take(&mut self.log_probabilities),
            alternatives: std::mem::take(&mut self.alternatives),
            finish,
            stop_token: self.stop_token,
            stop_log_probability: self.stop_log_probability,
            stop_text: self.writer.stopped().map(str::to_owned),
            prompt_tokens: self.request.prompt.len(),
            drawn: self.drawn,
            reused: self.reused,
        });
        drop(self.reply.send(Event::Done(done)));
        self.slot
    }
}
