//! Turns text into search terms. Index and query use the same analyzer, so their terms match.

mod cjk;
mod forms;
mod word_cache;

use std::sync::{Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tantivy::tokenizer::{
    Language as Snowball, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, StopWordFilter, TextAnalyzer, Token,
};

use cjk::CjkTokenizer;
pub(crate) use cjk::is_cjk;
use forms::Forms;
use word_cache::CachedWords;

/// Version of the rules by which texts become terms. Indexes record it: an index built by other rules is not searched.
pub const VERSION: usize = 2;

/// Longer words are dropped: text runs of this length are not words.
const LONGEST_WORD_BYTES: usize = 255;

/// How text becomes terms: in one Unicode form (NFKC, soft hyphens removed), lower-cased, without the language's stop words, stemmed by Snowball.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// Lower case only: no stop words, no stemmer.
    Plain,
    /// Chinese, Japanese and Korean: overlapping pairs of characters; words in other scripts stay whole.
    Cjk,
    /// Arabic (no stop-word list).
    Arabic,
    /// Danish.
    Danish,
    /// Dutch.
    Dutch,
    /// English, with Lucene's 33 stop words.
    #[default]
    English,
    /// Finnish.
    Finnish,
    /// French.
    French,
    /// German.
    German,
    /// Greek (no stop-word list).
    Greek,
    /// Hungarian.
    Hungarian,
    /// Italian.
    Italian,
    /// Norwegian.
    Norwegian,
    /// Portuguese.
    Portuguese,
    /// Romanian (no stop-word list).
    Romanian,
    /// Russian.
    Russian,
    /// Spanish.
    Spanish,
    /// Swedish.
    Swedish,
    /// Tamil (no stop-word list).
    Tamil,
    /// Turkish (no stop-word list).
    Turkish,
}

impl Language {
    /// Returns the Snowball language, which has the same name. `None` for languages without stemmer and stop words.
    fn snowball(self) -> Option<Snowball> {
        serde_json::from_value(format!("{self:?}").into()).ok()
    }
}

/// Returns the analyzer of a language.
pub fn analyzer(language: Language) -> TextAnalyzer {
    match language {
        Language::Cjk => {
            let long = RemoveLongFilter::limit(LONGEST_WORD_BYTES);
            TextAnalyzer::builder(Forms::new(CjkTokenizer)).filter(long).filter(LowerCaser).build()
        }
        // The form of the whole text first: it may split a word in two (`™`).
        _ => TextAnalyzer::builder(Forms::new(CachedWords::new(word_analyzer(language)))).build(),
    }
}

/// Returns the analyzer that is applied to each word.
fn word_analyzer(language: Language) -> TextAnalyzer {
    let long = RemoveLongFilter::limit(LONGEST_WORD_BYTES);
    let words = TextAnalyzer::builder(SimpleTokenizer::default()).filter(long).filter(LowerCaser);
    let snowball = language.snowball();
    match (snowball, snowball.and_then(StopWordFilter::new)) {
        // Stop words first: their lists hold words, not stems.
        (Some(snowball), Some(stop)) => words.filter(stop).filter(Stemmer::new(snowball)).build(),
        (Some(snowball), None) => words.filter(Stemmer::new(snowball)).build(),
        _ => words.build(),
    }
}

/// An analyzer for many threads. Each call borrows an analyzer whose word cache is already warm.
pub struct Analyzers {
    fresh: TextAnalyzer,
    idle: Mutex<Vec<TextAnalyzer>>,
}

impl Analyzers {
    pub fn new(language: Language) -> Self {
        Self { fresh: analyzer(language), idle: Mutex::default() }
    }

    /// Returns the terms of a text in text order.
    pub fn terms(&self, text: &str) -> Vec<String> {
        let mut terms = Vec::new();
        self.each_token(text, |token| terms.push(token.text.clone()));
        terms
    }

    /// Calls `take` with every token of a text, in text order. Offsets are those in the text's
    /// [`word_form`](crate::unicode::word_form).
    pub fn each_token(&self, text: &str, mut take: impl FnMut(&Token)) {
        let mut analyzer = self.idle().pop().unwrap_or_else(|| self.fresh.clone());
        let mut stream = analyzer.token_stream(text);
        while let Some(token) = stream.next() {
            take(token);
        }
        drop(stream);
        // With its words: the next text takes it up.
        self.idle().push(analyzer);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<TextAnalyzer>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(language: Language, text: &str) -> Vec<String> {
        Analyzers::new(language).terms(text)
    }

    #[test]
    fn english_is_lower_case_without_stop_words_and_stemmed() {
        assert_eq!(
            of(Language::English, "The Companies were ACQUIRING startups"),
            ["compani", "were", "acquir", "startup"]
        );
    }

    #[test]
    fn other_languages_have_their_own_stemmers() {
        assert_eq!(of(Language::German, "die Häuser"), ["haus"]);
        assert_eq!(of(Language::Russian, "книги"), of(Language::Russian, "книга"));
        assert_eq!(of(Language::Plain, "The Houses"), ["the", "houses"]);
    }

    #[test]
    fn every_language_but_two_is_known_to_snowball() {
        let names = "arabic danish dutch english finnish french german greek hungarian italian norwegian portuguese \
                     romanian russian spanish swedish tamil turkish";
        for name in names.split(' ') {
            let language: Language = serde_json::from_value(name.into()).unwrap();
            assert!(language.snowball().is_some(), "{name}");
        }
        assert!(Language::Plain.snowball().is_none() && Language::Cjk.snowball().is_none());
    }

    #[test]
    fn cjk_gives_pairs_of_characters_and_whole_words() {
        assert_eq!(of(Language::Cjk, "東京都 Tower"), ["東京", "京都", "tower"]);
        assert_eq!(of(Language::Cjk, "水"), ["水"]);
        assert_eq!(of(Language::Cjk, "서울시는2024年"), ["서울", "울시", "시는", "2024", "年"]);
    }

    #[test]
    fn every_form_of_a_word_has_its_terms() {
        for language in [Language::English, Language::Plain, Language::Cjk, Language::Turkish] {
            for (one, other) in [
                ("cafe\u{301}", "CAFÉ"),
                ("ＡＢＣ１２３", "abc123"),
                ("ﾊﾝｶｸｶﾀｶﾅ", "ハンカクカタカナ"),
                ("oﬃce", "office"),
                ("encyclo\u{ad}pedia", "encyclopedia"),
                ("foo\u{200b}bar", "foobar"),
                ("İSTANBUL", "istanbul"),
                ("İSTANBUL", "i\u{307}stanbul"),
            ] {
                assert_eq!(of(language, one), of(language, other), "{language:?} {one}");
                assert!(!of(language, one).is_empty(), "{one}");
            }
        }
        assert_eq!(of(Language::Greek, "ΟΔΟΣ"), of(Language::Greek, "οδος"));
        assert_eq!(of(Language::Plain, "ΟΔΟΣ"), of(Language::Plain, "οδος"));
        assert_eq!(of(Language::Plain, "iPhone™ costs 1½"), ["iphone", "tm", "costs", "1", "1", "2"]);
    }

    #[test]
    fn remembered_words_are_what_the_analyzer_makes_of_the_text() {
        let text =
            "The acquired companies' CEO said: \"We're acquiring, and acquiring…\" Żółć THE the naïve 42nd O'Neill";
        for language in [Language::English, Language::German, Language::Plain, Language::Turkish] {
            let words = Analyzers { fresh: word_analyzer(language), idle: Mutex::default() };
            let whole = words.terms(text);
            assert_eq!(of(language, text), whole);
            assert!(whole.len() > 8);
        }
    }
}
