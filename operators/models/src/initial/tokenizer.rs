//! A byte-level BPE tokenizer trained on a corpus, with the special tokens of ChatML and Hermes.

use regex::Regex;
use serde_json::{Value, json};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{AddedToken, Tokenizer};

/// Ends a text and pads rows.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// Ends a message; generation stops here.
pub const END_OF_MESSAGE: &str = "<|im_end|>";
/// Tokens that are never split and never merged from others. The first ones are left out of decoded text.
pub(crate) const CONTROL: [&str; 3] = [END_OF_TEXT, "<|im_start|>", END_OF_MESSAGE];
pub(crate) const MARKS: [&str; 6] =
    ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"];

/// Number of tokens of every tokenizer: the special ones and the 256 bytes.
pub const FEWEST: usize = CONTROL.len() + MARKS.len() + 256;

/// Splits text into words: lower-case letters with the space before them, other words without it, single digits, runs of
/// marks, line breaks, spaces. A name has the same tokens after a space, a quotation mark or a tag, so a model learns to
/// copy it sooner.
const WORDS: &str = r" ?\p{Ll}+|\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Separators of the texts that merges are trained on: the longest of the special tokens at each position.
fn parts_between(tokens: &[&str]) -> tokenizers::Result<Regex> {
    let mut longest_first = tokens.to_vec();
    longest_first.sort_by_key(|token| std::cmp::Reverse(token.len()));
    let escaped: Vec<String> = longest_first.into_iter().map(regex::escape).collect();
    Ok(regex::RegexBuilder::new(&escaped.join("|")).size_limit(1 << 26).build()?)
}

/// Trains a tokenizer of at most `vocab_size` tokens on `texts`. Each of the `phrases` becomes one token. The result is
/// deterministic: pairs with equal counts are merged in the order of their ids.
pub fn train(texts: &[String], phrases: &[String], vocab_size: usize) -> tokenizers::Result<Tokenizer> {
    let mut tokenizer = Tokenizer::from_bytes(blank(words(WORDS)).to_string())?;
    let mut special: Vec<AddedToken> = CONTROL.iter().map(|token| added(token, true)).collect();
    special.extend(MARKS.iter().map(|token| added(token, false)));
    let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let mut trainer: TrainerWrapper = BpeTrainer::builder()
        .vocab_size(vocab_size.saturating_sub(phrases.len()).max(FEWEST))
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(special)
        .initial_alphabet(alphabet.into_iter().collect())
        .build()
        .into();
    let mut whole_parts = [CONTROL.as_slice(), &MARKS].concat();
    whole_parts.extend(phrases.iter().map(String::as_str));
    // Special tokens and phrases take no part in merges.
    let parts = parts_between(&whole_parts)?;
    let plain = texts.iter().flat_map(|text| parts.split(text).collect::<Vec<_>>());
    tokenizer.train(&mut trainer, plain.filter(|piece| !piece.is_empty()))?;
    // After the training: their ids follow those of the merges.
    tokenizer.add_tokens(phrases.iter().map(|phrase| added(phrase, false)).collect::<Vec<_>>())?;
    Ok(tokenizer)
}

/// Returns a token that is never split.
fn added(text: &str, special: bool) -> AddedToken {
    AddedToken::from(text.to_owned(), special).normalized(false)
}

/// Returns a step that maps bytes to characters, or back.
pub(crate) fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": use_regex})
}

/// Returns a pre-tokenizer that splits text into the matches of a pattern.
pub(crate) fn words(pattern: &str) -> Value {
    let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
}

/// Returns the `tokenizer.json` of an untrained byte-level BPE tokenizer.
pub(crate) fn blank(pre_tokenizer: Value) -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": byte_level(false),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {}, "merges": []},
    })
}

/// Returns `tokenizer_config.json`, which Hugging Face's libraries need besides `tokenizer.json`.
pub fn config(tokenizer: &Tokenizer, context: usize) -> Value {
    let mut added = serde_json::Map::new();
    for token in CONTROL.iter().chain(&MARKS) {
        let id = tokenizer.token_to_id(token).unwrap_or_default().to_string();
        let entry = json!({"content": token, "lstrip": false, "normalized": false, "rstrip": false,
            "single_word": false, "special": CONTROL.contains(token)});
        added.insert(id, entry);
    }
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "additional_special_tokens": ["<|im_start|>", END_OF_MESSAGE],
        "bos_token": null,
        "eos_token": END_OF_MESSAGE,
        "pad_token": END_OF_TEXT,
        "unk_token": null,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": context,
        "clean_up_tokenization_spaces": false,
        "chat_template": CHAT_TEMPLATE,
    })
}

/// Renders messages as the Hermes conversion does (`conversion::hermes`, which follows ms-swift). With a generation prompt,
/// the result is a prefix of the training text.
const CHAT_TEMPLATE: &str = include_str!("../inference/chatml.jinja");

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> Vec<String> {
        (0..200)
            .map(|n| format!("<|im_start|>user\nWho founded Brausvairna in {n}?<|im_end|>\n<tool_call>\n{{\"name\": 1}}\n</tool_call> été"))
            .collect()
    }

    #[test]
    fn special_tokens_are_whole_and_text_comes_back() {
        let tokenizer = train(&texts(), &[], 400).unwrap();
        assert!(tokenizer.get_vocab_size(true) <= 400);
        for token in CONTROL.iter().chain(&MARKS) {
            assert_eq!(tokenizer.encode(*token, false).unwrap().get_ids().len(), 1, "{token}");
        }
        let text = "<|im_start|>user\nWho founded Zürich 12?\n\n  x<tool_call>";
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(ids.get_ids(), false).unwrap(), text);
        assert_eq!(tokenizer.encode(" founded", false).unwrap().get_ids().len(), 1, "a frequent word is one token");
        assert_eq!(tokenizer.encode("1234", false).unwrap().get_ids().len(), 4, "digits stand alone");
    }

    #[test]
    fn names_are_the_same_tokens_wherever_they_stand() {
        let tokenizer = train(&texts(), &[], 400).unwrap();
        let of = |text: &str| tokenizer.encode(text, false).unwrap().get_ids().to_vec();
        let name = of("Brausvairna");
        for text in [" Brausvairna", "\"Brausvairna", ">Brausvairna<", "(Brausvairna"] {
            let found = of(text);
            assert!(found.windows(name.len()).any(|window| window == name), "{text}");
        }
    }

    #[test]
    fn phrases_are_one_token() {
        let phrases = ["<|im_start|>user\nWho founded ".to_owned(), "\n<tool_call>\n".to_owned()];
        let tokenizer = train(&texts(), &phrases, 300).unwrap();
        assert!(tokenizer.get_vocab_size(true) <= 300);
        for phrase in &phrases {
            assert_eq!(tokenizer.encode(phrase.as_str(), false).unwrap().get_ids().len(), 1, "{phrase}");
        }
        let ids = tokenizer.encode(texts()[3].as_str(), false).unwrap();
        assert_eq!(ids.get_tokens()[0], phrases[0]);
        assert_eq!(tokenizer.decode(ids.get_ids(), false).unwrap(), texts()[3]);
    }

    #[test]
    fn the_same_texts_give_the_same_tokenizer() {
        let once = train(&texts(), &[], 500).unwrap().to_string(true).unwrap();
        assert_eq!(train(&texts(), &[], 500).unwrap().to_string(true).unwrap(), once);
        let other: Vec<String> = texts().iter().map(|text| text.replace("founded", "mentored")).collect();
        assert_ne!(train(&other, &[], 500).unwrap().to_string(true).unwrap(), once);
    }
}
