//! Files of a model: a Hugging Face folder, or a `.gguf` file.

use std::path::{Path, PathBuf};

use searchmill_engine::operator::OperatorError;
use tokenizers::Tokenizer;

use super::chat::ChatTemplate;
use super::source;
use crate::decoder::{Adapter, Decoder, DecoderConfig};
use crate::device::Compute;
use crate::files::broken;
use crate::gguf::{self, Gguf};

/// The files of a model.
pub(super) enum Files {
    Folder(PathBuf),
    Gguf(Box<Gguf>),
}

impl Files {
    /// Opens a folder or a `.gguf` file.
    ///
    /// # Errors
    /// When a `.gguf` file is broken, or a folder has several.
    pub(super) fn open(path: &Path) -> Result<Self, OperatorError> {
        match gguf::file_of(path)? {
            Some(file) => Ok(Self::Gguf(Box::new(Gguf::open(file)?))),
            None => Ok(Self::Folder(path.to_owned())),
        }
    }

    pub(super) fn config(&self) -> Result<DecoderConfig, OperatorError> {
        match self {
            Self::Folder(folder) => Decoder::read_config(folder),
            Self::Gguf(gguf) => gguf.config(),
        }
    }

    /// Loads the decoder on its device, with an adapter if there is one.
    pub(super) fn decoder(&self, adapter: Option<&Path>, compute: &Compute) -> Result<Decoder, OperatorError> {
        let mut decoder = match self {
            Self::Folder(folder) => Decoder::load(folder, &compute.device, compute.dtype)?,
            Self::Gguf(gguf) => gguf.decoder(compute)?,
        };
        if let Some(adapter) = adapter {
            decoder.attach(&Adapter::load(adapter, decoder.config(), &compute.device, compute.dtype)?)?;
        }
        Ok(decoder)
    }

    /// Loads the tokenizer of `tokenizer.json`, else of the `.gguf` file.
    pub(super) fn tokenizer(&self, config: &DecoderConfig) -> Result<Tokenizer, OperatorError> {
        match self {
            // A file beside it counts: converters have left parts of tokenizers out.
            Self::Gguf(gguf) if !self.folder().join("tokenizer.json").is_file() => {
                fitting(gguf.tokenizer()?, config, gguf.path())
            }
            _ => read_tokenizer(self.folder(), config),
        }
    }

    /// Loads the template of `chat_template.jinja` or `tokenizer_config.json`, else of the `.gguf` file.
    pub(super) fn template(&self) -> Result<ChatTemplate, OperatorError> {
        let folder = self.folder();
        let beside = ["chat_template.jinja", "tokenizer_config.json"].iter().any(|name| folder.join(name).is_file());
        match self {
            Self::Gguf(gguf) if !beside => {
                ChatTemplate::of(gguf.chat_template()?, gguf.special_tokens()?, &gguf.path().display().to_string())
            }
            _ => ChatTemplate::read(folder),
        }
    }

    /// Returns the tokens that end a turn.
    pub(super) fn stop_tokens(&self, config: &DecoderConfig, tokenizer: &Tokenizer) -> Result<Vec<u32>, OperatorError> {
        source::stop_tokens(self.folder(), config, tokenizer)
    }

    fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder,
            Self::Gguf(gguf) => gguf.folder(),
        }
    }
}

/// Required file of a model folder besides its weights.
pub fn read_tokenizer(folder: &Path, config: &DecoderConfig) -> Result<Tokenizer, OperatorError> {
    let path = folder.join("tokenizer.json");
    let tokenizer = Tokenizer::from_file(&path).map_err(|error| broken(&path, error))?;
    fitting(tokenizer, config, &path)
}

/// Checks that a tokenizer has no tokens beyond the model's vocabulary.
fn fitting(tokenizer: Tokenizer, config: &DecoderConfig, origin: &Path) -> Result<Tokenizer, OperatorError> {
    let highest = tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
    if highest > config.vocab_size {
        let (origin, last, vocabulary) = (origin.display(), highest - 1, config.vocab_size);
        let message = format!("{origin}: tokens go up to {last}, but the model's vocabulary is {vocabulary}");
        return Err(OperatorError::data(message).with_help("use the tokenizer of the model"));
    }
    Ok(tokenizer)
}
