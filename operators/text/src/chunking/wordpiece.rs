//! Counts WordPiece tokens of plain ASCII words without building encodings.

use std::collections::HashSet;

/// The vocabulary of a WordPiece model.
pub(crate) struct WordPiece {
    /// Tokens that start a word.
    heads: HashSet<Box<[u8]>>,
    /// Tokens that continue a word, without their prefix (`##`).
    tails: HashSet<Box<[u8]>>,
    longest: usize,
    max_characters: usize,
    lowercase: bool,
}

impl WordPiece {
    /// Returns the WordPiece model of a parsed `tokenizer.json` with BERT's normaliser, if it has one.
    pub(crate) fn of(file: &serde_json::Value) -> Option<Self> {
        let model = &file["model"];
        if model["type"] != "WordPiece" {
            return None;
        }
        let prefix = model["continuing_subword_prefix"].as_str()?;
        let (mut heads, mut tails) = (HashSet::<Box<[u8]>>::new(), HashSet::<Box<[u8]>>::new());
        for token in model["vocab"].as_object()?.keys() {
            tails.extend(token.strip_prefix(prefix).map(|tail| Box::from(tail.as_bytes())));
            heads.insert(Box::from(token.as_bytes()));
        }
        Some(Self {
            longest: heads.iter().map(|token| token.len()).max()?,
            heads,
            tails,
            max_characters: usize::try_from(model["max_input_chars_per_word"].as_u64()?).ok()?,
            lowercase: file["normalizer"]["lowercase"].as_bool()?,
        })
    }

    /// Returns the number of tokens of `word` by longest match first (Wu et al. 2016). Returns `None` if the vocabulary
    /// alone does not decide: characters that the normaliser may change, and words without a match.
    pub(crate) fn count(&self, word: &str) -> Option<usize> {
        let is_plain =
            !word.is_empty() && word.len() <= self.max_characters && word.bytes().all(|b| b.is_ascii_alphanumeric());
        if !is_plain {
            return None;
        }
        // For ASCII, this is all that BERT's normaliser does.
        let lower = if self.lowercase { word.to_ascii_lowercase() } else { word.to_owned() };
        let (mut rest, mut tokens, mut vocabulary) = (lower.as_bytes(), 0, &self.heads);
        while !rest.is_empty() {
            let longest =
                (1..=rest.len().min(self.longest)).rev().find(|&length| vocabulary.contains(&rest[..length]))?;
            (rest, tokens, vocabulary) = (&rest[longest..], tokens + 1, &self.tails);
        }
        Some(tokens)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_longest_match_is_taken_first() {
        let file = json!({"normalizer": {"lowercase": true}, "model": {"type": "WordPiece",
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 12,
            "vocab": {"[UNK]": 0, "un": 1, "una": 2, "##able": 3, "##ffable": 4, "##ff": 5, "a": 6}}});
        let model = WordPiece::of(&file).unwrap();
        assert_eq!([model.count("Unable"), model.count("unffable"), model.count("a")], [None, Some(2), Some(1)]);
        assert_eq!(
            [model.count("unaxyz"), model.count("naïve"), model.count(""), model.count("unffableable2")],
            [None; 4]
        );
    }
}
