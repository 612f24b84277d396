//! Words of a text and its n-grams, for the comparison of whole texts (near duplicates, contamination).

use std::sync::LazyLock;

use regex::Regex;

use crate::unicode::folded;

/// The words of a text, joined by single spaces.
pub struct Words {
    joined: String,
    /// Start and end of each word in `joined`.
    bounds: Vec<(usize, usize)>,
}

impl Words {
    /// Splits a text into lower-case words: runs of letters, marks and digits. An ideograph, kana or Hangul syllable
    /// is a word, because most texts in these scripts have no spaces.
    pub fn normalized(text: &str) -> Self {
        Self::of_lower(&text.to_lowercase())
    }

    /// Splits a text as [`Self::normalized`] does; the Unicode forms of a word are one word.
    pub fn folded(text: &str) -> Self {
        Self::of_lower(&folded(text))
    }

    fn of_lower(lower: &str) -> Self {
        let mut words = Self { joined: String::with_capacity(lower.len() + 1), bounds: Vec::new() };
        // The same words, without the regular expression.
        if lower.is_ascii() {
            lower.split(|c: char| !c.is_ascii_alphanumeric()).for_each(|word| words.push(word));
            return words;
        }
        for found in WORD.iter().flat_map(|word| word.find_iter(lower)) {
            let (run, mut start) = (found.as_str(), 0);
            for (at, c) in run.char_indices().filter(|(_, c)| crate::analysis::is_cjk(*c)) {
                words.push(&run[start..at]);
                start = at + c.len_utf8();
                words.push(&run[at..start]);
            }
            words.push(&run[start..]);
        }
        words
    }

    /// Splits a text at white space.
    pub fn plain(text: &str) -> Self {
        let mut words = Self { joined: String::with_capacity(text.len() + 1), bounds: Vec::new() };
        text.split_whitespace().for_each(|word| words.push(word));
        words
    }

    fn push(&mut self, word: &str) {
        if word.is_empty() {
            return;
        }
        if !self.joined.is_empty() {
            self.joined.push(' ');
        }
        let start = self.joined.len();
        self.joined.push_str(word);
        self.bounds.push((start, self.joined.len()));
    }

    /// Returns the number of words.
    pub fn count(&self) -> usize {
        self.bounds.len()
    }

    /// Returns each run of `n` words; none if the text has fewer words.
    pub fn windows(&self, n: usize) -> impl Iterator<Item = &str> {
        self.bounds.windows(n.max(1)).map(|run| &self.joined[run[0].0..run[run.len() - 1].1])
    }

    /// Returns each run of `n` words. A text of fewer words is a single run; an empty one has none.
    pub fn grams(&self, n: usize) -> impl Iterator<Item = &str> {
        self.windows(n.min(self.count()))
    }
}

static WORD: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[\p{L}\p{M}\p{N}]+").ok());

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grams(text: &str, n: usize) -> Vec<String> {
        Words::normalized(text).grams(n).map(str::to_owned).collect()
    }

    #[test]
    fn case_punctuation_and_space_do_not_count() {
        assert_eq!(
            grams("The  quick—brown FOX's\u{a0}den.", 2),
            ["the quick", "quick brown", "brown fox", "fox s", "s den"]
        );
        assert_eq!(grams("Zoe\u{301} ΟΔΟΣ İ x²", 9), ["zoe\u{301} οδος i\u{307} x²"]);
        let folded = Words::folded("Zoe\u{301} ΟΔΟΣ İ x² oﬃce");
        assert_eq!(folded.grams(9).collect::<Vec<_>>(), ["zoé οδοσ i x2 office"]);
        let plain = Words::plain(" The  quick—brown\u{a0}FOX's ");
        assert_eq!(plain.grams(2).collect::<Vec<_>>(), ["The quick—brown", "quick—brown FOX's"]);
    }

    #[test]
    fn texts_without_spaces_have_words() {
        assert_eq!(grams("東京は2024年のHost city", 3)[..3], ["東 京 は", "京 は 2024", "は 2024 年"]);
        assert_eq!(grams("東京は2024年のHost city", 3).last().map(String::as_str), Some("の host city"));
    }

    #[test]
    fn short_and_empty_texts() {
        assert_eq!(grams("Two words", 5), ["two words"]);
        for empty in ["", " \t\n", "?! …"] {
            assert!(grams(empty, 5).is_empty() && Words::plain("").grams(5).next().is_none());
        }
        assert_eq!(Words::normalized("two words").windows(5).count(), 0);
        assert_eq!(Words::normalized("two words").windows(2).count(), 1);
    }
    proptest! {
        #[test]
        fn ascii_is_split_like_other_texts(text in "[ -~\t\n]{0,60}") {
            let other = Words::normalized(&format!("{text} é"));
            let (ascii, words) = (Words::normalized(&text), other.windows(1).collect::<Vec<_>>());
            prop_assert_eq!(ascii.windows(1).collect::<Vec<_>>(), &words[..words.len() - 1]);
        }
    }
}
