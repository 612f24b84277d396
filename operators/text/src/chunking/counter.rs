//! The unit of chunk sizes: characters, words, or a tokenizer's tokens.

use super::memo::Memo;
use super::tokenizer::TokenCounter;

/// The unit of size.
pub enum Counter {
    /// Unicode scalar values.
    Characters,
    /// Words between single spaces, as chonkie's word tokenizer counts: the number of spaces plus one.
    Words,
    /// Tokens of a Hugging Face tokenizer.
    Tokens(Box<TokenCounter>),
}

impl Counter {
    /// Starts counting in `document` and its parts.
    pub fn tally<'a>(&'a self, memo: &'a mut Memo, document: &str) -> Tally<'a> {
        let segmentation = match self {
            Self::Tokens(tokens) => tokens.segmentation_of(document),
            Self::Characters | Self::Words => None,
        };
        Tally { counter: self, memo, segmentation, fault: None }
    }
}

/// Counts units within one document.
pub struct Tally<'a> {
    counter: &'a Counter,
    memo: &'a mut Memo,
    segmentation: Option<super::segment::Segmentation>,
    fault: Option<String>,
}

impl Tally<'_> {
    /// The size of `text`, a part of the document.
    #[inline]
    pub fn count(&mut self, text: &str) -> usize {
        let counted = match (self.counter, self.segmentation) {
            (Counter::Characters, _) => Ok(text.chars().count()),
            (Counter::Words, _) => Ok(text.bytes().filter(|&byte| byte == b' ').count() + 1),
            (Counter::Tokens(tokens), Some(rule)) => tokens.count(rule, text, self.memo),
            (Counter::Tokens(tokens), None) => tokens.encode(text),
        };
        // Callers count many parts, and ask for the fault once per document.
        counted.unwrap_or_else(|fault| self.failed(fault))
    }

    /// Returns the byte offsets in `text`, a part of the document, at which its units start. Offsets rise and lie on
    /// character boundaries.
    pub fn starts(&mut self, text: &str) -> Vec<usize> {
        match self.counter {
            Counter::Characters => text.char_indices().map(|(at, _)| at).collect(),
            Counter::Words => std::iter::once(0).chain(text.match_indices(' ').map(|(at, _)| at + 1)).collect(),
            Counter::Tokens(tokens) => tokens.starts(self.segmentation, text).unwrap_or_else(|fault| {
                self.failed(fault);
                Vec::new()
            }),
        }
    }

    /// Returns the tokenizer's first error, if any; all counts of the document are then invalid.
    pub fn fault(self) -> Option<String> {
        self.fault
    }

    #[cold]
    fn failed(&mut self, fault: String) -> usize {
        self.fault.get_or_insert(fault);
        0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use searchmill_fixtures::{minilm, passages, small_bert, small_bpe};
    use serde_json::{Value, json};

    use super::super::fixture::{PARTS, parse};
    use super::super::segment::SPACE_LED_WORDS;
    use super::*;

    fn counters() -> Vec<(&'static str, TokenCounter)> {
        let byte_level = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true});
        let split = |regex: &str| {
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]})
        };
        let mut accented = small_bert();
        accented["normalizer"] = json!({"type": "BertNormalizer", "clean_text": false, "handle_chinese_chars": false,
            "strip_accents": false, "lowercase": false});
        vec![
            ("bert", parse(&small_bert())),
            ("bert, cased", parse(&accented)),
            ("gpt-2", parse(&small_bpe(Value::Null, byte_level(false)))),
            ("gpt-2 with a first space", parse(&small_bpe(Value::Null, byte_level(true)))),
            ("llama 3", parse(&small_bpe(Value::Null, split(SPACE_LED_WORDS[0])))),
            ("qwen 2", parse(&small_bpe(json!({"type": "NFC"}), split(SPACE_LED_WORDS[1])))),
        ]
    }

    /// Whether counting by words equals encoding the whole text, with a memo that was used before.
    fn agree(tokens: &TokenCounter, memo: &mut Memo, text: &str) -> bool {
        let whole = tokens.encode(text);
        match tokens.segmentation_of(text) {
            Some(rule) => tokens.count(rule, text, memo) == whole,
            None => true,
        }
    }

    #[test]
    fn every_known_pipeline_is_counted_by_words() {
        for (name, tokens) in counters() {
            assert!(tokens.segmentation_of("plain text").is_some(), "{name}");
        }
        assert!(parse(&small_bert()).segmentation_of("a [MASK] b").is_none(), "added tokens are taken out first");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn counting_by_words_is_encoding_whole(
            parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..60),
            other in "\\PC{0,40}|(?s).{0,40}",
        ) {
            let text = parts.concat() + &other;
            for (name, tokens) in counters() {
                let mut memo = Memo::default();
                prop_assert!(agree(&tokens, &mut memo, &text), "{name}: {text:?}");
                prop_assert!(agree(&tokens, &mut memo, &text), "{name}, from memory: {text:?}");
            }
        }
    }

    #[test]
    fn minilm_counts_of_real_passages_are_those_of_encoding_whole() {
        let (Some(folder), Some(passages)) = (minilm(), passages()) else { return };
        let tokens = TokenCounter::load(&folder.join("tokenizer.json")).unwrap();
        let mut memo = Memo::default();
        for passage in &passages {
            assert!(agree(&tokens, &mut memo, passage), "{passage}");
        }
        let whole = passages.join("\n");
        assert!(tokens.segmentation_of(&whole).is_some());
        assert!(agree(&tokens, &mut memo, &whole), "all passages as one text");
        assert!(tokens.encode(&whole).unwrap() > 128, "the file's truncation is off");
    }

    #[test]
    fn starts_are_the_offsets_of_encoding_whole() {
        let text = "The wörd—is [x] 中文 abc! ".repeat(9000);
        for (name, tokens) in counters() {
            let blocks = tokens.starts(tokens.segmentation_of(&text), &text).unwrap();
            let whole = tokens.starts(None, &text).unwrap();
            assert_eq!(whole.len(), tokens.encode(&text).unwrap(), "{name}");
            assert!(blocks == whole, "{name}");
        }
    }

    #[test]
    fn characters_and_words() {
        let mut memo = Memo::default();
        let text = "zwölf  Boxer\n";
        assert_eq!(Counter::Characters.tally(&mut memo, text).count(text), 13);
        assert_eq!(Counter::Words.tally(&mut memo, text).count(text), 3);
        assert_eq!(Counter::Words.tally(&mut memo, text).starts(text), [0, 7, 8]);
        assert_eq!(Counter::Words.tally(&mut memo, "").count(""), 1);
    }

    #[test]
    fn a_text_without_tokens_for_it_is_a_fault() {
        let mut file = small_bert();
        file["model"]["vocab"].as_object_mut().unwrap().remove("[UNK]");
        let counter = Counter::Tokens(Box::new(parse(&file)));
        let mut memo = Memo::default();
        let mut tally = counter.tally(&mut memo, "the Ω");
        tally.count("the Ω");
        assert!(tally.fault().unwrap().contains("UNK"));
        let mut tally = counter.tally(&mut memo, "the");
        assert_eq!((tally.count("the"), tally.fault()), (1, None));
    }
}
