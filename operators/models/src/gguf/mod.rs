//! Models as llama.cpp keeps them: one `.gguf` file with configuration, weights (quantised or not) and tokenizer
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>). Weights are dequantised into the decoder's f32.

mod config;
mod file;
mod tokenizer;
mod weights;

pub use file::Gguf;
pub use weights::file_name;

use std::path::{Path, PathBuf};

use candle_core::Tensor;
use searchmill_engine::operator::OperatorError;

use super::decoder::{Decoder, DecoderConfig};
use super::device::Compute;

/// How the files' names end.
const ENDING: &str = "gguf";

/// Is a path that of such a file, by its name?
pub fn is_meant(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|ending| ending.eq_ignore_ascii_case(ENDING))
}

/// The `.gguf` file that a path means: itself, or the one in a folder without other weights. None: it is no such model.
///
/// # Errors
/// When the folder has several.
pub fn found(path: &Path) -> Result<Option<PathBuf>, OperatorError> {
    if path.is_file() && is_meant(&path.to_string_lossy()) {
        return Ok(Some(path.to_owned()));
    }
    if !path.is_dir() || path.join("config.json").is_file() {
        return Ok(None);
    }
    let entries = std::fs::read_dir(path)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = entries.filter(|path| is_meant(&path.to_string_lossy())).collect();
    files.sort();
    match files.len() {
        0 | 1 => Ok(files.pop()),
        count => {
            let message = format!("{} has {count} .gguf files: {}, …", path.display(), files[0].display());
            Err(OperatorError::pipeline(message).with_help("name the file that is meant"))
        }
    }
}

impl Gguf {
    /// The decoder's configuration.
    ///
    /// # Errors
    /// When the architecture is not known, or the file does not say what it must.
    pub fn config(&self) -> Result<DecoderConfig, OperatorError> {
        config::read(self)
    }

    /// The decoder with its weights in f32.
    ///
    /// # Errors
    /// When a tensor is missing, cut short, or of the wrong shape.
    pub fn decoder(&self, compute: &Compute) -> Result<Decoder, OperatorError> {
        let config = self.config()?;
        let moved = |tensor: Tensor| tensor.to_device(&compute.device)?.to_dtype(compute.dtype);
        let tensors = weights::read(self, &config)?.into_iter().map(|(name, tensor)| Ok((name, moved(tensor)?)));
        let tensors = tensors.collect::<candle_core::Result<_>>();
        let tensors = tensors.map_err(|error| OperatorError::machine(format!("the model does not fit: {error}")))?;
        Decoder::from_checked(config, tensors, &self.path.display().to_string())
    }

    /// The tokenizer that the file itself has.
    ///
    /// # Errors
    /// When it is not of a kind that is known.
    pub fn tokenizer(&self) -> Result<tokenizers::Tokenizer, OperatorError> {
        tokenizer::read(self)
    }
}
