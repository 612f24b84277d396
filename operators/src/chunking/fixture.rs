//! Tokenizers and texts for the tests of this folder.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::TokenCounter;

pub(crate) use crate::skip::shared_text as shared;

/// The passages of the 2WikiMultihopQA corpus.
pub(crate) fn passages() -> Option<Vec<String>> {
    let corpus: Vec<Value> =
        serde_json::from_str(&shared("data/2wikimultihopqa/corpus_6119.json")?).expect("a JSON array");
    Some(corpus.iter().map(|passage| passage["text"].as_str().expect("a text").to_owned()).collect())
}

/// What tests with real weights need.
pub(crate) const MINILM: &str =
    "MINILM_DIR, the folder of all-MiniLM-L6-v2 (pipelines/params/minilm.yaml says how to get it)";

/// The folder of all-MiniLM-L6-v2: `MINILM_DIR`; `None` (said loudly) where there is none.
pub(crate) fn minilm() -> Option<PathBuf> {
    let given = std::env::var_os("MINILM_DIR").map(PathBuf::from);
    let found = given.filter(|folder| folder.join("tokenizer.json").is_file());
    if found.is_none() {
        crate::skip::skip(MINILM);
    }
    found
}

/// Texts that pull at every rule: delimiters, scripts, marks, control characters, added tokens.
pub(crate) const PARTS: [&str; 56] = [
    "\n\n",
    "\r\n",
    "\n",
    "\r",
    ". ",
    "! ",
    "? ",
    "{",
    "}",
    "\"",
    "[",
    "]",
    "<",
    ">",
    "(",
    ")",
    ":",
    ";",
    ",",
    "—",
    "|",
    "~",
    "-",
    "...",
    "`",
    "'",
    " ",
    "  ",
    "\t",
    "\u{a0}",
    "\u{85}",
    "\u{301}",
    "é",
    "e\u{301}",
    "中",
    "文",
    "İ",
    "ß",
    "😀",
    "\0",
    "\u{b}",
    "\u{200b}",
    "ﬁ",
    "\u{37e}",
    "[CLS]",
    "[MASK]",
    "##ing",
    "word",
    "The",
    "1234",
    "'s",
    "한국어",
    "≠",
    "<\u{338}",
    "\u{2028}",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
];

/// A small WordPiece tokenizer with BERT's normaliser.
pub(crate) fn small_bert() -> Value {
    let mut vocab = vec!["[UNK]".to_owned(), "[CLS]".to_owned(), "[MASK]".to_owned()];
    vocab.extend(["the", "word", "##s", "##ing", "ab", "##c", "is", "##is"].map(str::to_owned));
    vocab.extend((b'!'..=b'~').filter(|b| !b.is_ascii_uppercase()).map(|b| char::from(b).to_string()));
    vocab.extend(('a'..='z').map(|letter| format!("##{letter}")));
    let added = |id: usize| {
        json!({"id": id, "content": vocab[id], "special": true, "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false})
    };
    let ids: serde_json::Map<String, Value> =
        vocab.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    json!({"version": "1.0", "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": null, "added_tokens": [added(1), added(2)],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 20, "vocab": ids}})
}

/// A small byte-level BPE tokenizer; `pre_tokenizer` and `normalizer` as given.
pub(crate) fn small_bpe(normalizer: Value, pre_tokenizer: Value) -> Value {
    // GPT-2's map of bytes to printable characters: printable Latin-1 stands for itself, the rest follows from U+0100.
    let printable = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = 0x100..;
    let mut alphabet: Vec<String> = (0..256_u32)
        .filter_map(|byte| char::from_u32(if printable(byte) { byte } else { others.next()? }))
        .map(String::from)
        .collect();
    let merges =
        [("t", "h"), ("th", "e"), ("Ġ", "the"), ("w", "o"), ("r", "d"), ("wo", "rd"), ("Ġ", "word"), ("Ċ", "Ċ")];
    alphabet.extend(merges.iter().map(|(left, right)| format!("{left}{right}")));
    let vocab: serde_json::Map<String, Value> =
        alphabet.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    let merges: Vec<String> = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{"id": vocab.len(), "content": "<|end|>",
            "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": {"type": "ByteLevel",
            "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges}})
}

/// A counter of that tokenizer.
pub(crate) fn parse(file: &Value) -> TokenCounter {
    TokenCounter::parse(file.to_string().as_bytes()).expect("a tokenizer")
}
