//! Models in llama.cpp's format: one `.gguf` file with configuration, weights (quantised or not) and tokenizer
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>). Weights are dequantised to f32.

mod config;
mod file;
mod tokenizer;
mod weights;

pub use file::Gguf;
pub use weights::file_name;

use std::path::{Path, PathBuf};

use searchmill_engine::operator::OperatorError;

use super::decoder::{Decoder, DecoderConfig};
use super::device::Compute;
use super::files::paths_in;

/// Extension of the files.
const ENDING: &str = "gguf";

/// Whether a path has the extension of a GGUF file.
pub fn is_meant(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|ending| ending.eq_ignore_ascii_case(ENDING))
}

/// Returns the `.gguf` file of a path: the path itself, or the only one in a folder without other weights. `None` if the path
/// is another kind of model.
///
/// # Errors
/// When the folder has several.
pub fn file_of(path: &Path) -> Result<Option<PathBuf>, OperatorError> {
    if path.is_file() && is_meant(&path.to_string_lossy()) {
        return Ok(Some(path.to_owned()));
    }
    // A folder with other weights may have GGUF copies of them beside it.
    if !path.is_dir() || path.join("config.json").is_file() {
        return Ok(None);
    }
    let mut files = paths_in(path)?;
    files.retain(|path| is_meant(&path.to_string_lossy()));
    match files.len() {
        0 | 1 => Ok(files.pop()),
        count => {
            let message = format!("{} has {count} .gguf files: {}, …", path.display(), files[0].display());
            Err(OperatorError::pipeline(message).with_help("name one of the files"))
        }
    }
}

impl Gguf {
    /// Returns the decoder's configuration.
    ///
    /// # Errors
    /// When the architecture is not supported, or metadata are missing.
    pub fn config(&self) -> Result<DecoderConfig, OperatorError> {
        config::read(self)
    }

    /// Loads the decoder with its weights in f32.
    ///
    /// # Errors
    /// When a tensor is missing, truncated, or of the wrong shape.
    pub fn decoder(&self, compute: &Compute) -> Result<Decoder, OperatorError> {
        let config = self.config()?;
        let mut tensors = weights::read(self, &config)?;
        for tensor in tensors.values_mut() {
            let on_device = tensor.to_device(&compute.device).and_then(|tensor| tensor.to_dtype(compute.dtype));
            *tensor = on_device.map_err(|error| OperatorError::machine(format!("the model does not fit: {error}")))?;
        }
        Decoder::from_checked(config, tensors, &self.path.display().to_string())
    }

    /// Returns the tokenizer stored in the file.
    ///
    /// # Errors
    /// When its kind is not supported.
    pub fn tokenizer(&self) -> Result<tokenizers::Tokenizer, OperatorError> {
        tokenizer::read(self)
    }
}
