//! Log-probabilities of examples under another model, such as the reference of a policy.

use std::path::Path;

use searchmill_engine::operator::OperatorError;
use tokenizers::Tokenizer;

use super::example::Example;
use super::objective::Sft;
use super::step;
use super::student::Student;
use crate::decoder::{Decoder, failed};
use crate::device::Compute;

/// A model that scores the tokens of examples.
pub struct Judge<'a> {
    /// The folder of the model.
    pub folder: &'a Path,
    /// The folder of its adapter.
    pub adapter: Option<&'a Path>,
    /// The name of its port.
    pub port: &'a str,
    /// The folder of the model whose tokens they are.
    pub own: Option<&'a Path>,
    /// Limit of a pass in tokens.
    pub pass_tokens: usize,
    pub compute: &'a Compute,
}

impl Judge<'_> {
    /// Returns the log-probabilities of the learnt tokens of each example, at the temperature of the example.
    ///
    /// # Errors
    /// If the model has another tokenizer, or cannot be read.
    pub fn log_probabilities(&self, examples: &[Example]) -> Result<Vec<Vec<f32>>, OperatorError> {
        self.check(examples)?;
        let model = Student::frozen(self.folder, self.adapter, self.compute)?;
        let all: Vec<usize> = (0..examples.len()).collect();
        let longest = examples.iter().map(|example| example.tokens.len()).max().unwrap_or(0);
        // A pass holds at least one example.
        let pass_tokens = self.pass_tokens.max(longest);
        let mut by_example =
            step::evaluate(&model, &all, examples, &Sft::default(), pass_tokens).map_err(failed)?.log_probabilities;
        let mut scores = Vec::with_capacity(examples.len());
        for (number, example) in examples.iter().enumerate() {
            // An example without learnt tokens has no entry.
            let numbers = by_example.remove(&number).unwrap_or_default();
            if numbers.iter().any(|score| !score.is_finite()) {
                return Err(OperatorError::data(format!(
                    "under the model of `{}`, a token of `{}` has no finite log-probability: its weights are broken",
                    self.port, example.id
                )));
            }
            scores.push(numbers);
        }
        Ok(scores)
    }

    /// Checks that the tokens mean the same to both models.
    fn check(&self, examples: &[Example]) -> Result<(), OperatorError> {
        let port = self.port;
        let config = Decoder::read_config(self.folder)?;
        let most = config.max_position_embeddings;
        if let Some(long) = examples.iter().find(|example| example.tokens.len() > most) {
            let (id, count) = (&long.id, long.tokens.len());
            let message = format!("`{id}` has {count} tokens, but the model of `{port}` reads at most {most}");
            let help = "lower `max_length`, or connect a model with a longer context";
            return Err(OperatorError::data(message).with_help(help));
        }
        let help = format!("`{port}` and the model need the same tokenizer");
        let mut tokens: Vec<u32> = examples.iter().flat_map(|example| &example.tokens).copied().collect();
        tokens.sort_unstable();
        tokens.dedup();
        // Sorted and without repeats: each token is compared once.
        let largest = tokens.last().copied().unwrap_or(0);
        if largest as usize >= config.vocab_size {
            let size = config.vocab_size;
            let message = format!("the rollouts have token {largest}, but the vocabulary of `{port}` ends at {size}");
            return Err(OperatorError::data(message).with_help(help));
        }
        // Without both tokenizers, nothing more can be compared than the sizes.
        let (Some(own), Some(other)) = (self.own.and_then(vocabulary), vocabulary(self.folder)) else {
            return Ok(());
        };
        for token in tokens {
            let (own, other) = (own.id_to_token(token), other.id_to_token(token));
            if own != other {
                let (own, other) = (own.unwrap_or_default(), other.unwrap_or_default());
                let message = format!("token {token} is `{own}` to the model, and `{other}` to `{port}`");
                return Err(OperatorError::data(message).with_help(help));
            }
        }
        Ok(())
    }
}

/// Returns the tokenizer of a model if its folder has one that can be read.
fn vocabulary(folder: &Path) -> Option<Tokenizer> {
    Tokenizer::from_bytes(std::fs::read(folder.join("tokenizer.json")).ok()?).ok()
}
