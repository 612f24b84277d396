//! Log-probabilities of parts of given texts.

use std::ops::Range;
use std::path::Path;

use candle_core::Tensor;
use searchmill_engine::operator::OperatorError;
use tokenizers::Tokenizer;

use super::chat::ChatTemplate;
use super::control::{ControlTokens, Prompt};
use super::files::Files;
use super::network::{Network, Piece, Scratch};
use super::sampling::log_probability;
use super::slot::Slot;
use crate::decoder::{Decoder, Layout, failed, inference_need, log_probabilities};
use crate::device::Compute;

/// Tokens read at a time.
const TOKENS: usize = 512;

/// A model that scores texts, from any number of threads. The score of a text does not depend on other texts, to the last bit.
pub struct Scorer {
    reader: Reader,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    control: ControlTokens,
    context: usize,
}

/// The backend: loops (f32 on the CPU) or tensor operations (everything else).
enum Reader {
    Loops(Network),
    Tensors(Decoder),
}

/// Score of a part of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// Natural logarithms of the tokens' probabilities, each given all tokens before it.
    pub log_probabilities: Vec<f32>,
}

impl Scored {
    /// Returns the log-probability of the whole part.
    pub fn sum(&self) -> f64 {
        self.log_probabilities.iter().map(|number| f64::from(*number)).sum()
    }

    /// Returns the mean per token.
    pub fn mean(&self) -> f64 {
        self.sum() / self.log_probabilities.len().max(1) as f64
    }
}

impl Scorer {
    /// Loads a model folder or a `.gguf` file, with an adapter if there is one.
    ///
    /// # Errors
    /// When a file is missing or broken, or the model does not fit into `memory` bytes.
    pub fn open(
        folder: &Path,
        adapter: Option<&Path>,
        context: Option<usize>,
        memory: Option<u64>,
        compute: &Compute,
    ) -> Result<Self, OperatorError> {
        let files = Files::open(folder)?;
        let config = files.config()?;
        let context = context.unwrap_or(usize::MAX).min(config.max_position_embeddings);
        let need = inference_need(&config, 1, context, compute.dtype.size_in_bytes());
        // Before the weights are read: what does not fit would end the process.
        if let Some(memory) = compute.memory(memory) {
            need.check(memory)?;
        }
        let decoder = files.decoder(adapter, compute)?;
        let reader = if compute.is_plain() {
            Reader::Loops(Network::new(&decoder).map_err(failed)?)
        } else {
            Reader::Tensors(decoder)
        };
        let (tokenizer, template) = (files.tokenizer(&config)?, files.template()?);
        let control = ControlTokens::of(&tokenizer);
        let template = template.guarding(control.clone());
        Ok(Self { reader, tokenizer, template, control, context })
    }

    /// Returns the chat template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// Returns the control tokens of the model.
    pub fn control(&self) -> &ControlTokens {
        &self.control
    }

    /// Scores the tokens that overlap `part` of the text.
    ///
    /// # Errors
    /// When the text is longer than the context, or the part has no tokens.
    pub fn score(&self, text: &Prompt, part: Range<usize>) -> Result<Scored, String> {
        let encoded = text.encode(&self.tokenizer)?;
        let (tokens, spans): (Vec<u32>, Vec<Range<usize>>) = encoded.into_iter().unzip();
        if tokens.len() > self.context {
            return Err(format!("the text has {} tokens, the model's context {}", tokens.len(), self.context));
        }
        let (mut first, mut last) = (None, 0);
        for (index, span) in spans.iter().enumerate() {
            if span.start < part.end && span.end > part.start {
                first = first.or(Some(index));
                last = index;
            }
        }
        let first = first.ok_or("there is nothing to score: the part is empty")?;
        if first == 0 {
            return Err("the first token of a text has no probability: nothing stands before it".to_owned());
        }
        self.read(&tokens[..=last], first)
    }

    /// Scores `tokens[first..]`.
    fn read(&self, tokens: &[u32], first: usize) -> Result<Scored, String> {
        let numbers = match &self.reader {
            Reader::Loops(network) => by_loops(network, tokens, first),
            Reader::Tensors(decoder) => by_tensors(decoder, tokens, first).map_err(|error| failed(error).message)?,
        };
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err("the model's logits are not numbers: its weights are broken".to_owned());
        }
        Ok(Scored { log_probabilities: numbers })
    }
}

fn by_loops(network: &Network, tokens: &[u32], first: usize) -> Vec<f32> {
    let (mut slot, mut scratch, mut logits) = (Slot::new(&network.shape), Scratch::default(), Vec::new());
    let (mut numbers, mut at) = (Vec::new(), 0);
    // The logits of the last token are not needed: nothing is predicted from them.
    let end = tokens.len() - 1;
    while at < end {
        let count = TOKENS.min(end - at);
        let wanted = (at + count + 1).saturating_sub(first).min(count);
        let mut pieces = [Piece { slot: &mut slot, tokens: &tokens[at..at + count], wanted }];
        network.read(&mut pieces, &mut scratch, &mut logits);
        at += count;
        let rows = logits.chunks_exact(network.shape.vocabulary).enumerate();
        numbers.extend(rows.map(|(row, logits)| log_probability(logits, tokens[at - wanted + row + 1])));
    }
    numbers
}

fn by_tensors(decoder: &Decoder, tokens: &[u32], first: usize) -> candle_core::Result<Vec<f32>> {
    let count = tokens.len() - 1;
    let read = Tensor::from_slice(&tokens[..count], (1, count), decoder.embedding.device())?;
    let hidden = decoder.hidden(&read, &Layout::whole(1, count))?.squeeze(0)?;
    let mut numbers = Vec::new();
    for start in (first - 1..count).step_by(TOKENS) {
        let length = TOKENS.min(count - start);
        // Some tokens at a time: the logits of a long text would take more memory than the model.
        let logits = decoder.logits(&hidden.narrow(0, start, length)?)?;
        numbers.extend(log_probabilities(&logits, &tokens[start + 1..=start + length])?.to_vec1::<f32>()?);
    }
    Ok(numbers)
}
