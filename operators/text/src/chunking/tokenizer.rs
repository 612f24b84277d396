//! Counts the tokens of a Hugging Face `tokenizer.json`, word by word from a cache where that is exact.

use std::path::Path;

use regex::Regex;
use tokenizers::Tokenizer;

use super::segment::Segmentation;
use super::wordpiece::WordPiece;

/// Block size in bytes for tokenising long texts where that is exact, so that memory stays bounded.
const BLOCK_BYTES: usize = 1 << 16;

/// Why a tokenizer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerFault {
    /// What happened.
    pub message: String,
    /// How to fix it.
    pub help: String,
}

impl TokenizerFault {
    fn new(message: String, help: &str) -> Self {
        Self { message, help: help.to_owned() }
    }
}

/// Returns `path` if it ends in `.json`, else the `tokenizer.json` in that folder.
pub fn tokenizer_file(path: &str) -> String {
    let is_file = Path::new(path).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    if is_file { path.to_owned() } else { format!("{}/tokenizer.json", path.trim_end_matches('/')) }
}

/// A tokenizer that counts. It adds no special tokens (`[CLS]`, …), pads nothing and truncates nothing.
pub struct TokenCounter {
    tokenizer: Tokenizer,
    segmentation: Option<Segmentation>,
    /// For BERT's segmentation only.
    wordpiece: Option<WordPiece>,
    /// Matches added tokens, which the tokenizer removes from a text before it splits words.
    added: Option<Regex>,
    marks: [usize; 128],
}

impl TokenCounter {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    /// Fails if the file is missing or not a tokenizer.
    pub fn load(file: &Path) -> Result<Self, TokenizerFault> {
        let bytes = std::fs::read(file).map_err(|error| unreadable(file, &error))?;
        Self::parse(&bytes)
            .map_err(|fault| TokenizerFault { message: format!("{}: {}", file.display(), fault.message), ..fault })
    }

    /// Parses the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// Fails if the content is not a tokenizer, or one that tokenises at random.
    pub fn parse(bytes: &[u8]) -> Result<Self, TokenizerFault> {
        let file: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| broken(&error))?;
        if file["model"]["dropout"].as_f64().is_some_and(|share| share > 0.0) {
            let message = "the tokenizer drops merges at random (BPE dropout), so its counts are not repeatable";
            return Err(TokenizerFault::new(message.to_owned(), "set `model.dropout` to null in the file"));
        }
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| broken(&error))?;
        // The file may say both, and chunks are counted as they are.
        tokenizer.with_truncation(None).map_err(|error| broken(&error))?;
        tokenizer.with_padding(None);
        let segmentation = Segmentation::of(&file);
        let is_bert = matches!(segmentation, Some(Segmentation::Bert { .. }));
        let wordpiece = if is_bert { WordPiece::of(&file) } else { None };
        let mut counter = Self { tokenizer, segmentation, wordpiece, added: None, marks: [0; 128] };
        // Escaped and sorted: the expression must be the same whatever the order of the map.
        let added = counter.tokenizer.get_added_tokens_decoder().into_values();
        let mut contents: Vec<String> = added.map(|token| regex::escape(&token.content)).collect();
        contents.retain(|content| !content.is_empty());
        contents.sort();
        if !contents.is_empty() {
            counter.added = Some(Regex::new(&contents.join("|")).map_err(|error| broken(&error))?);
        }
        // BERT splits at each mark, so its count does not depend on its neighbours.
        for mark in (0..128_u8).filter(u8::is_ascii_punctuation) {
            match counter.encode(char::from(mark).to_string().as_str()) {
                Ok(count) => counter.marks[usize::from(mark)] = count,
                // A mark that cannot be counted ends counting by words.
                Err(_) => counter.segmentation = None,
            }
        }
        Ok(counter)
    }

    /// Returns the segmentation by which `text` and all its parts can be counted word by word, if any.
    pub(crate) fn segmentation_of(&self, text: &str) -> Option<Segmentation> {
        match &self.added {
            Some(added) if added.is_match(text) => None,
            _ => self.segmentation,
        }
    }

    /// Returns the number of tokens of `text`, encoded as a whole.
    ///
    /// # Errors
    /// Fails if the model has no token for a part of it.
    pub fn encode(&self, text: &str) -> Result<usize, String> {
        self.tokenizer.encode_fast(text, false).map(|encoding| encoding.len()).map_err(|error| error.to_string())
    }

    /// Returns the same count by segments, each cached in `memo`.
    #[inline]
    pub fn count(&self, rule: Segmentation, text: &str, memo: &mut super::memo::Memo) -> Result<usize, String> {
        if text.is_empty() {
            return self.encode(text);
        }
        let mut fault = None;
        let total = rule.sum(text, &self.marks, |word| {
            memo.count(text, word.clone(), || {
                let word = &text[word];
                // The vocabulary alone decides for most words, much faster than an encoding.
                let known = self.wordpiece.as_ref().and_then(|model| model.count(word));
                known.map_or_else(|| self.encode(word), Ok).unwrap_or_else(|error| {
                    fault = Some(error);
                    usize::MAX >> 32 // too large to be cached
                })
            })
        });
        fault.map_or(Ok(total), Err)
    }

    /// Returns the byte offsets at which the tokens of `text` start. Offsets rise and lie on character boundaries.
    ///
    /// # Errors
    /// Fails if the model has no token for a part of it.
    pub fn starts(&self, rule: Option<Segmentation>, text: &str) -> Result<Vec<usize>, String> {
        let (mut starts, mut from) = (Vec::new(), 0);
        while from < text.len() {
            let end = rule.map_or(text.len(), |rule| from + rule.cut_behind(&text[from..], BLOCK_BYTES));
            let encoding = self.tokenizer.encode(&text[from..end], false).map_err(|error| error.to_string())?;
            for &(start, _) in encoding.get_offsets() {
                let start = text.floor_char_boundary(from + start);
                starts.push(start.max(starts.last().copied().unwrap_or(0)));
            }
            from = end;
        }
        Ok(starts)
    }
}

fn broken(error: &dyn std::fmt::Display) -> TokenizerFault {
    let help = "save it with Hugging Face tokenizers (`tokenizer.save(\"tokenizer.json\")`)";
    TokenizerFault::new(format!("not a tokenizer: {error}"), help)
}

fn unreadable(file: &Path, error: &std::io::Error) -> TokenizerFault {
    let help = if file.parent().is_some_and(Path::is_dir) {
        "give the path of a Hugging Face tokenizer.json, or of its folder"
    } else {
        "write `hf://ORG/NAME` for a model of the Hugging Face Hub, or give an existing path"
    };
    TokenizerFault::new(format!("cannot read the tokenizer {}: {error}", file.display()), help)
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::small_bert;

    use super::*;

    #[test]
    fn a_path_means_a_file_or_a_folder() {
        assert_eq!(tokenizer_file("models/e5/"), "models/e5/tokenizer.json");
        assert_eq!(tokenizer_file("a/b.JSON"), "a/b.JSON");
    }

    #[test]
    fn faults_say_what_to_do() {
        let fault = |bytes: &[u8]| TokenCounter::parse(bytes).err().unwrap();
        assert!(fault(b"{}").message.starts_with("not a tokenizer"));
        assert!(fault(b"{}").help.contains("tokenizer.json"));
        let mut random = small_bert();
        random["model"]["dropout"] = serde_json::json!(0.1);
        assert!(fault(random.to_string().as_bytes()).message.contains("dropout"));
        let missing = TokenCounter::load(Path::new("intfloat/e5-base-v2/tokenizer.json")).err().unwrap();
        assert!(
            missing.message.contains("intfloat/e5-base-v2/tokenizer.json") && missing.help.contains("hf://ORG/NAME")
        );
    }
}
