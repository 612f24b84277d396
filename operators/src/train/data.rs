//! What is trained on, and what is held out.

use std::ops::Range;
use std::path::Path;

use searchmill_engine::operator::{Inputs, OperatorError};
use searchmill_models::decoder::DecoderConfig;
use searchmill_models::inference::ControlTokens;
use searchmill_models::training::example::{Example, Read, Reader};
use searchmill_models::training::fit::alone;
use searchmill_models::training::pairs::{PairReader, ReadPairs, numbered};
use searchmill_models::training::recorded::Recording;
use searchmill_models::training::rollouts::RolloutReader;
use searchmill_schemas::Reject;
use tokenizers::Tokenizer;

use super::held_out::split;
use super::params::{Method, TrainParams};
use super::policy::{PAIRS, ROLLOUTS};

/// What is trained on, and what is held out.
pub(super) struct Data {
    pub(super) examples: Vec<Example>,
    /// Examples that are in a step together.
    pub(super) units: Vec<Range<usize>>,
    pub(super) held_out: Vec<Example>,
    /// Number of examples that are held out; of pairs, if there are pairs.
    pub(super) held_out_units: usize,
    pub(super) rejects: Vec<Reject>,
}

impl Data {
    pub(super) fn of(examples: Vec<Example>, held_out: Vec<Example>, rejects: Vec<Reject>) -> Self {
        let (units, held_out_units) = (alone(examples.len()), held_out.len());
        Self { examples, units, held_out, held_out_units, rejects }
    }

    /// Returns the length of the longest example in tokens.
    pub(super) fn longest(&self) -> usize {
        self.examples.iter().chain(&self.held_out).map(|example| example.tokens.len()).max().unwrap_or(0)
    }
}

impl TrainParams {
    fn recording(&self, config: &DecoderConfig) -> Recording {
        Recording { vocabulary: config.vocab_size, max_length: self.max_length.min(config.max_position_embeddings) }
    }

    /// Reads the examples to train on, and those that are held out.
    pub(super) fn read(
        &self,
        inputs: &Inputs,
        folder: &Path,
        config: &DecoderConfig,
        seed: u64,
    ) -> Result<Data, OperatorError> {
        if self.method.learns_from_rewards() {
            let (recording, advantage) = (self.recording(config), self.advantage_column.as_deref());
            let reader = RolloutReader { recording, advantage };
            let Read { examples, rejects } = reader.read(inputs.rows(ROLLOUTS)?)?;
            return Ok(Data::of(examples, Vec::new(), rejects));
        }
        // Rollouts have recorded tokens, so that only text needs the tokenizer.
        let tokenizer = tokenizer(folder)?;
        let reader = Reader {
            tokenizer: &tokenizer,
            control: ControlTokens::of(&tokenizer),
            vocabulary: config.vocab_size,
            max_length: self.max_length.min(config.max_position_embeddings),
            truncation: self.truncation,
            weight_column: self.weight_column.as_deref(),
        };
        if self.method == Method::Dpo {
            let reader = PairReader { reader, recording: self.recording(config) };
            let ReadPairs { pairs, mut rejects } = reader.read(inputs.rows(PAIRS)?)?;
            let (pairs, held_out) = match inputs.rows_optional("eval") {
                Some(rows) => {
                    let eval = reader.read(rows)?;
                    rejects.extend(eval.rejects);
                    (pairs, eval.pairs)
                }
                None => {
                    split(pairs, |pair| pair.first().map_or("", |example| &example.question), self.eval_share, seed)
                }
            };
            let (examples, units) = numbered(pairs);
            let (held_out, of_pairs) = numbered(held_out);
            return Ok(Data { examples, units, held_out, held_out_units: of_pairs.len(), rejects });
        }
        let Read { examples, mut rejects } = reader.read(inputs.rows("examples")?)?;
        let (examples, held_out) = match inputs.rows_optional("eval") {
            Some(rows) => {
                let eval = reader.read(rows)?;
                rejects.extend(eval.rejects);
                (examples, eval.examples)
            }
            // By question, so that no question is on both sides.
            None => split(examples, |example| &example.question, self.eval_share, seed),
        };
        Ok(Data::of(examples, held_out, rejects))
    }
}

pub(super) fn tokenizer(folder: &Path) -> Result<Tokenizer, OperatorError> {
    let path = folder.join("tokenizer.json");
    let bytes = std::fs::read(&path).map_err(|error| OperatorError::data(format!("{}: {error}", path.display())))?;
    Tokenizer::from_bytes(bytes).map_err(|error| OperatorError::data(format!("{}: {error}", path.display())))
}
