//! The tokenizer in a GGUF file's metadata: byte-level BPE, as in GPT-2 and all supported families.

use searchmill_engine::operator::OperatorError;
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use super::file::Gguf;
use crate::initial::tokenizer::{blank, byte_level, words};

/// Pre-tokenizer of the Qwen2 family (`pre_tokenizer` of its tokenizer.json).
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Pre-tokenizer of Llama 3.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Value of `tokenizer.ggml.token_type` for the tokens of the vocabulary.
const NORMAL: i64 = 1;
/// Its values for tokens that are never split.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

const BESIDE: &str = "put the model's `tokenizer.json` next to the file";

pub(super) fn read(gguf: &Gguf) -> Result<Tokenizer, OperatorError> {
    let kind = gguf.text("tokenizer.ggml.model")?.unwrap_or("none");
    if kind != "gpt2" {
        let message = format!("tokenizer of kind `{kind}`: only byte-level BPE (`gpt2`) is supported");
        return Err(gguf.broken(message).with_help(BESIDE));
    }
    let tokens = gguf.texts("tokenizer.ggml.tokens")?;
    if tokens.is_empty() {
        return Err(gguf.broken("missing `tokenizer.ggml.tokens`").with_help(BESIDE));
    }
    let pre = gguf.text("tokenizer.ggml.pre")?.unwrap_or("default");
    let pre_tokenizer = match pre {
        "qwen2" => words(QWEN2),
        "llama-bpe" | "llama3" | "llama-v3" => words(LLAMA3),
        "gpt-2" | "default" => byte_level(true),
        _ => return Err(gguf.broken(format!("the pre-tokenizer `{pre}` is not supported")).with_help(BESIDE)),
    };
    let mut whole = blank(pre_tokenizer);
    whole["added_tokens"] = added(gguf, &tokens)?.into();
    // These files do not say how text is normalised; each family has its way.
    if pre == "qwen2" {
        whole["normalizer"] = json!({"type": "NFC"});
    }
    let mut vocabulary = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        vocabulary.insert((*token).to_owned(), json!(id));
    }
    whole["model"]["vocab"] = vocabulary.into();
    whole["model"]["merges"] = gguf.texts("tokenizer.ggml.merges")?.into();
    // Llama 3's vocabulary has words that its merges do not build.
    whole["model"]["ignore_merges"] = (pre == "llama-bpe").into();
    Tokenizer::from_bytes(whole.to_string()).map_err(|error| gguf.broken(format!("tokenizer: {error}")))
}

/// Returns the special tokens, which are matched wherever they occur.
fn added(gguf: &Gguf, tokens: &[&str]) -> Result<Vec<Value>, OperatorError> {
    let kinds = match gguf.value("tokenizer.ggml.token_type") {
        Some(value) => value.to_vec().map_err(|_| gguf.broken("`tokenizer.ggml.token_type` is not a list"))?.as_slice(),
        None => &[],
    };
    let mut added = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        let kind = match kinds.get(id) {
            Some(value) => value.to_i32().map(i64::from).or_else(|_| value.to_u32().map(i64::from)).unwrap_or(NORMAL),
            None => NORMAL,
        };
        if matches!(kind, CONTROL | USER_DEFINED) {
            added.push(json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": kind == CONTROL}));
        }
    }
    Ok(added)
}
