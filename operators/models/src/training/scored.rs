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
        let pass_tokens = self.pass_tokens.max(longest);
        let mut found =
            step::evaluate(&model, &all, examples, &Sft::default(), pass_tokens).map_err(failed)?.log_probabilities;
        let scores: Vec<Vec<f32>> = all.iter().map(|number| found.remove(number).unwrap_or_default()).collect();
        match scores.iter().position(|scores| scores.iter().any(|score| !score.is_finite())) {
            None => Ok(scores),
            Some(number) => Err(OperatorError::data(format!(
                "under the model of `{}`, a token of `{}` has no finite log-probability: its weights are broken",
                self.port, examples[number].id
            ))),
        }
    }

    /// Checks that the tokens mean the same to both models.
    fn check(&self, examples: &[Example]) -> Result<(), OperatorError> {
        let port = self.port;
        self.check_length(examples)?;
        let config = Decoder::read_config(self.folder)?;
        let refuse = |message: String| {
            Err(OperatorError::data(message).with_help(format!("`{port}` and the model need the same tokenizer")))
        };
        let mut tokens: Vec<u32> = examples.iter().flat_map(|example| &example.tokens).copied().collect();
        tokens.sort_unstable();
        tokens.dedup();
        let largest = tokens.last().copied().unwrap_or(0);
        if largest as usize >= config.vocab_size {
            let size = config.vocab_size;
            return refuse(format!("the rollouts have token {largest}, but the vocabulary of `{port}` ends at {size}"));
        }
        let Some((own, other)) = self.own.and_then(vocabulary).zip(vocabulary(self.folder)) else { return Ok(()) };
        let other_text = tokens.iter().find(|token| own.id_to_token(**token) != other.id_to_token(**token));
        let Some(token) = other_text else { return Ok(()) };
        let text = |tokenizer: &Tokenizer| tokenizer.id_to_token(*token).unwrap_or_default();
        let (own, other) = (text(&own), text(&other));
        refuse(format!("token {token} is `{own}` to the model, and `{other}` to `{port}`"))
    }

    fn check_length(&self, examples: &[Example]) -> Result<(), OperatorError> {
        let most = Decoder::read_config(self.folder)?.max_position_embeddings;
        let Some(long) = examples.iter().find(|example| example.tokens.len() > most) else { return Ok(()) };
        let (id, count, port) = (&long.id, long.tokens.len(), self.port);
        let message = format!("`{id}` has {count} tokens, but the model of `{port}` reads at most {most}");
        Err(OperatorError::data(message).with_help("lower `max_length`, or connect a model with a longer context"))
    }
}

/// Returns the tokenizer of a model if its folder has one that can be read.
fn vocabulary(folder: &Path) -> Option<Tokenizer> {
    Tokenizer::from_bytes(std::fs::read(folder.join("tokenizer.json")).ok()?).ok()
}
