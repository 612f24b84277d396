//! Windows of a fixed number of units, with overlap.

use super::{Piece, Tally};

/// Windows of `size` units; each starts `size - overlap` units after the previous one.
#[derive(Clone, Copy, Debug)]
pub struct TokenWindow {
    /// Units per window.
    pub size: usize,
    /// Units shared with the previous window; less than `size`.
    pub overlap: usize,
}

impl TokenWindow {
    /// Cuts `text` where units start; text between two units belongs to the first. The last window ends with the text,
    /// and no window lies inside the previous one.
    pub fn cut(&self, text: &str, tally: &mut Tally<'_>) -> Vec<Piece> {
        let starts = tally.starts(text);
        let mut pieces = Vec::new();
        let mut first = 0;
        loop {
            let last = (first + self.size).min(starts.len());
            // What precedes the first unit belongs to it.
            let start = if first == 0 { 0 } else { starts.get(first).copied().unwrap_or(text.len()) };
            let end = starts.get(last).copied().unwrap_or(text.len());
            if start < end {
                pieces.push(Piece { start, end, tokens: last - first });
            }
            if last == starts.len() {
                return pieces;
            }
            first += self.size - self.overlap;
        }
    }
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::small_bert;

    use super::super::fixture::parse;
    use super::super::{Counter, Memo};
    use super::*;

    fn cut(text: &str, size: usize, overlap: usize, counter: &Counter) -> Vec<(String, usize)> {
        let mut memo = Memo::default();
        let pieces = TokenWindow { size, overlap }.cut(text, &mut counter.tally(&mut memo, text));
        pieces.iter().map(|piece| (text[piece.start..piece.end].to_owned(), piece.tokens)).collect()
    }

    fn owned<const N: usize>(wanted: [(&str, usize); N]) -> Vec<(String, usize)> {
        wanted.map(|(text, tokens)| (text.to_owned(), tokens)).to_vec()
    }

    #[test]
    fn windows_of_words_overlap() {
        assert_eq!(cut("a b c d e", 3, 1, &Counter::Words), owned([("a b c ", 3), ("c d e", 3)]));
        assert_eq!(cut("a b c d e", 2, 0, &Counter::Words), owned([("a b ", 2), ("c d ", 2), ("e", 1)]));
        assert_eq!(cut("ab", 9, 3, &Counter::Characters), owned([("ab", 2)]));
    }

    #[test]
    fn windows_of_tokens_start_where_tokens_start() {
        let counter = Counter::Tokens(Box::new(parse(&small_bert())));
        assert_eq!(
            cut("  The words, thé wörding", 2, 0, &counter),
            owned([("  The word", 2), ("s, ", 2), ("thé wörd", 2), ("ing", 1),])
        );
    }

    #[test]
    fn a_text_without_tokens_is_one_piece() {
        let counter = Counter::Tokens(Box::new(parse(&small_bert())));
        assert_eq!(cut("\u{200b}", 2, 0, &counter), owned([("\u{200b}", 0)]));
    }
}
