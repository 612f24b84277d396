//! An open GGUF file: its metadata and the index of its tensors.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{Content, Value};
use searchmill_engine::operator::OperatorError;

use crate::files::{broken, on_path};

/// An open file. Everything but the weights has been read.
pub struct Gguf {
    pub(super) path: PathBuf,
    pub(super) content: Content,
    pub(super) architecture: String,
}

impl Gguf {
    /// Reads the header.
    ///
    /// # Errors
    /// When the file is broken, or of another architecture.
    pub fn open(path: PathBuf) -> Result<Self, OperatorError> {
        let file = File::open(&path).map_err(on_path(&path))?;
        let content = Content::read(&mut BufReader::new(file)).map_err(|error| {
            OperatorError::data(format!("{}: not a complete GGUF file: {}", path.display(), plain(&error)))
                .with_help("fetch it again")
        })?;
        // All other keys begin with the architecture's name.
        let mut gguf = Self { path, content, architecture: String::new() };
        let architecture = gguf.text("general.architecture")?.unwrap_or("of no name").to_owned();
        gguf.architecture = architecture;
        Ok(gguf)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder of the file, which may also hold tokenizer files.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// Returns the chat template, if the file has one.
    pub fn chat_template(&self) -> Result<Option<String>, OperatorError> {
        Ok(self.text("tokenizer.chat_template")?.map(str::to_owned))
    }

    /// Returns the tokens that chat templates refer to by name.
    pub(crate) fn special_tokens(&self) -> Result<BTreeMap<String, String>, OperatorError> {
        let tokens = self.texts("tokenizer.ggml.tokens")?;
        let mut special = BTreeMap::new();
        for (name, key) in
            [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
        {
            let Some(id) = self.whole(&format!("tokenizer.ggml.{key}_token_id"))? else { continue };
            if let Some(token) = tokens.get(id) {
                special.insert(name.to_owned(), (*token).to_owned());
            }
        }
        Ok(special)
    }

    pub(super) fn broken(&self, problem: impl std::fmt::Display) -> OperatorError {
        broken(&self.path, problem)
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.content.metadata.get(key)
    }

    /// Returns an integer, if present.
    pub(super) fn whole(&self, key: &str) -> Result<Option<usize>, OperatorError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = match value {
            Value::U8(number) => Some(u64::from(*number)),
            Value::U16(number) => Some(u64::from(*number)),
            Value::U32(number) => Some(u64::from(*number)),
            Value::U64(number) => Some(*number),
            Value::I8(number) => u64::try_from(*number).ok(),
            Value::I16(number) => u64::try_from(*number).ok(),
            Value::I32(number) => u64::try_from(*number).ok(),
            Value::I64(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        match number.map(usize::try_from) {
            Some(Ok(number)) => Ok(Some(number)),
            Some(Err(_)) | None => Err(self.broken(format!("`{key}` is not an integer"))),
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, OperatorError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::F32(number)) => Ok(Some(f64::from(*number))),
            // The format has both widths.
            Some(Value::F64(number)) => Ok(Some(*number)),
            Some(_) => Err(self.broken(format!("`{key}` is not a number"))),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, OperatorError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.broken(format!("`{key}` is not a string"))),
        }
    }

    /// Returns a list of strings (empty if absent).
    pub(super) fn texts(&self, key: &str) -> Result<Vec<&str>, OperatorError> {
        let mut texts = Vec::new();
        match self.value(key) {
            None => return Ok(texts),
            Some(Value::Array(items)) => {
                for item in items {
                    let Value::String(text) = item else { break };
                    texts.push(text.as_str());
                }
                if texts.len() == items.len() {
                    return Ok(texts);
                }
            }
            Some(_) => {}
        }
        Err(self.broken(format!("`{key}` is not a list of strings")))
    }
}

/// Returns candle's message without the backtrace.
pub(super) fn plain(error: &candle_core::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}
