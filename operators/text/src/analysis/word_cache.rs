//! Caches an analyzer's result for each word. Stemming costs far more than a lookup, and real text repeats its words.

use std::collections::HashMap;

use tantivy::tokenizer::{SimpleTokenStream, SimpleTokenizer, TextAnalyzer, Token, TokenStream, Tokenizer};

/// Limit of cached words. The cache is cleared when it is full, which bounds it to about 100 MB.
const MOST_WORDS: usize = 1 << 20;

/// Splits text into words and replaces each by its term from `analyzer` (no term for a stop word).
///
/// Equals `analyzer` on the whole text if `analyzer` treats each word independently and splits words like
/// [`SimpleTokenizer`].
pub(crate) struct CachedWords {
    splitter: SimpleTokenizer,
    words: Words,
}

struct Words {
    analyzer: TextAnalyzer,
    known: HashMap<String, Option<String>>,
}

impl CachedWords {
    pub(crate) fn new(analyzer: TextAnalyzer) -> Self {
        Self { splitter: SimpleTokenizer::default(), words: Words { analyzer, known: HashMap::new() } }
    }
}

/// A clone starts with an empty cache: analyzers are cloned for every query.
impl Clone for CachedWords {
    fn clone(&self) -> Self {
        Self::new(self.words.analyzer.clone())
    }
}

impl Tokenizer for CachedWords {
    type TokenStream<'a> = CachedStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> CachedStream<'a> {
        CachedStream { split: self.splitter.token_stream(text), words: &mut self.words }
    }
}

/// The tokens of one text.
pub(crate) struct CachedStream<'a> {
    split: SimpleTokenStream<'a>,
    words: &'a mut Words,
}

impl TokenStream for CachedStream<'_> {
    fn advance(&mut self) -> bool {
        while self.split.advance() {
            let token = self.split.token_mut();
            if self.words.replace(&mut token.text) {
                return true;
            }
        }
        false
    }

    fn token(&self) -> &Token {
        self.split.token()
    }

    fn token_mut(&mut self) -> &mut Token {
        self.split.token_mut()
    }
}

impl Words {
    /// Replaces a word by its term. Returns false if it has none.
    fn replace(&mut self, word: &mut String) -> bool {
        if let Some(known) = self.known.get(word.as_str()) {
            return put(word, known.as_deref());
        }
        let mut stream = self.analyzer.token_stream(word);
        let term = if stream.advance() { Some(stream.token().text.clone()) } else { None };
        drop(stream);
        // As a whole: the words of the next texts fill it again at once.
        if self.known.len() == MOST_WORDS {
            self.known.clear();
        }
        self.known.insert(word.clone(), term.clone());
        put(word, term.as_deref())
    }
}

fn put(word: &mut String, term: Option<&str>) -> bool {
    word.clear();
    word.push_str(term.unwrap_or_default());
    term.is_some()
}
