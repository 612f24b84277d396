//! A BERT network with its tokenizer, on any device: loading, and the vectors of tokens.

use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;
use searchmill_engine::operator::OperatorError;
use tokenizers::{Tokenizer, TruncationParams};

use super::bert_network::{BertConfig, BertNetwork, Scratch, Text};
use super::bert_tensors::BertTensors;
use super::device::Compute;
use super::pooling::Pooling;

/// Files of a model folder.
pub(super) const FILES: &[&str] = &["config.json", "tokenizer.json", WEIGHTS];
pub(super) const WEIGHTS: &str = "model.safetensors";

/// Bytes per token; English text in WordPiece has 4 to 5.
pub(super) const BYTES_A_TOKEN: usize = 4;

/// The backend: loops (f32 on the CPU) or tensor operations (everything else).
pub(super) enum Engine {
    Loops(BertNetwork),
    Tensors(BertTensors),
}

pub(super) fn broken(folder: &Path, file: &str, error: impl std::fmt::Display) -> OperatorError {
    OperatorError::data(format!("{}: {error}", folder.join(file).display()))
}

pub(super) fn failed(error: impl std::fmt::Display) -> OperatorError {
    OperatorError::machine(format!("the encoder failed: {error}"))
}

pub(super) fn read(folder: &Path, file: &str) -> Result<Vec<u8>, OperatorError> {
    std::fs::read(folder.join(file)).map_err(|error| broken(folder, file, error))
}

/// A loaded network, its configuration, and the content of its `model.safetensors`.
pub(super) type Opened = (Engine, BertConfig, Vec<u8>);

/// Loads the network of a model folder.
pub(super) fn open_network(folder: &Path, compute: &Compute) -> Result<Opened, OperatorError> {
    let config: BertConfig = serde_json::from_slice(&read(folder, "config.json")?)
        .map_err(|error| broken(folder, "config.json", error).with_help("the model must be of the BERT family"))?;
    let weights = read(folder, WEIGHTS)?;
    let network = BertNetwork::load(&weights, &config).map_err(|error| broken(folder, WEIGHTS, error))?;
    let network = if compute.is_plain() {
        Engine::Loops(network)
    } else {
        Engine::Tensors(BertTensors::new(&network, compute).map_err(failed)?)
    };
    Ok((network, config, weights))
}

/// Loads the tokenizer of a model folder.
pub(super) fn open_tokenizer(folder: &Path) -> Result<Tokenizer, OperatorError> {
    let mut tokenizer =
        Tokenizer::from_file(folder.join("tokenizer.json")).map_err(|error| broken(folder, "tokenizer.json", error))?;
    // The texts of a batch are concatenated, not filled up.
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

/// Makes the tokenizer cut texts after so many tokens, special tokens included.
pub(super) fn cut(tokenizer: &mut Tokenizer, max_length: usize, folder: &Path) -> Result<(), OperatorError> {
    let truncation = TruncationParams { max_length, ..TruncationParams::default() };
    tokenizer.with_truncation(Some(truncation)).map_err(|error| broken(folder, "tokenizer.json", error))?;
    Ok(())
}

impl Engine {
    /// Returns the last layer's vectors of all tokens of all texts, concatenated.
    pub(super) fn tokens(&self, texts: &[Text<'_>], scratch: &mut Scratch) -> Result<Vec<f32>, OperatorError> {
        match self {
            Self::Loops(network) => network.forward(texts, scratch).map_err(failed),
            Self::Tensors(network) => network.tokens(texts).map_err(failed),
        }
    }

    /// Returns the concatenated vectors of texts, `dimensions` numbers each.
    pub(super) fn pooled(
        &self,
        texts: &[Text<'_>],
        pooling: Pooling,
        dimensions: usize,
        scratch: &mut Scratch,
    ) -> Result<Vec<f32>, OperatorError> {
        if let Self::Tensors(network) = self {
            return network.pooled(texts, pooling).map_err(failed);
        }
        let hidden = self.tokens(texts, scratch)?;
        let mut pooled = Vec::with_capacity(texts.len() * dimensions);
        let mut rest = hidden.as_slice();
        for text in texts {
            let (tokens, others) = rest.split_at(text.ids.len() * dimensions);
            pooled.extend(pooling.pool(tokens, dimensions));
            rest = others;
        }
        Ok(pooled)
    }

    /// Runs all batches and returns their results in order; on the CPU in parallel.
    pub(super) fn run_all<T: Send>(
        &self,
        batches: &[Range<usize>],
        run: impl Fn(&mut Scratch, &Range<usize>) -> Result<T, OperatorError> + Sync + Send,
    ) -> Result<Vec<T>, OperatorError> {
        // A GPU computes one batch at a time; threads would only wait for it.
        if matches!(self, Self::Tensors(network) if !network.device().is_cpu()) {
            return batches.iter().map(|batch| run(&mut Scratch::default(), batch)).collect();
        }
        batches.par_iter().map_init(Scratch::default, run).collect()
    }
}
