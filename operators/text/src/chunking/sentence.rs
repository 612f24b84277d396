//! Packs whole sentences into chunks up to a size, with overlap in sentences.

use std::ops::Range;

use super::{Piece, Tally, TokenWindow};

/// Packs as many whole sentences as fit.
#[derive(Clone, Copy, Debug)]
pub struct Sentences {
    /// Limit of units in a chunk, summed over its sentences.
    pub size: usize,
    /// Sentences repeated from the end of the previous chunk, as long as the next sentence still fits.
    pub overlap: usize,
}

impl Sentences {
    /// Packs the sentences of `text`. A sentence over the size is cut into windows, which count as sentences.
    pub fn cut(&self, text: &str, tally: &mut Tally<'_>) -> Vec<Piece> {
        let mut sentences = Vec::new();
        for Range { start, end } in self::sentences(text) {
            let tokens = tally.count(&text[start..end]);
            if tokens <= self.size {
                sentences.push(Piece { start, end, tokens });
                continue;
            }
            for window in (TokenWindow { size: self.size, overlap: 0 }).cut(&text[start..end], tally) {
                sentences.push(Piece { start: start + window.start, end: start + window.end, ..window });
            }
        }
        let mut pieces = Vec::new();
        let (mut first, mut next) = (0, 0);
        while next < sentences.len() {
            let mut tokens: usize = sentences[first..=next].iter().map(|sentence| sentence.tokens).sum();
            // The repeated sentences may leave no room for the next one.
            while tokens > self.size && first < next {
                tokens -= sentences[first].tokens;
                first += 1;
            }
            while let Some(more) = sentences.get(next + 1).filter(|more| tokens + more.tokens <= self.size) {
                tokens += more.tokens;
                next += 1;
            }
            pieces.push(Piece { start: sentences[first].start, end: sentences[next].end, tokens });
            next += 1;
            // At most the whole chunk before is repeated, whatever the overlap.
            first = next.saturating_sub(self.overlap).max(first);
        }
        pieces
    }
}

/// Returns the byte ranges of the sentences of `text`, each with the whitespace after it.
///
/// A sentence ends at a line end. It ends after `.`, `!`, `?` or `…` (closing quotes and brackets included) followed by
/// whitespace, unless the next word starts in lower case or the stop ends a title, an initial or another usual
/// abbreviation. It ends after `。！？｡` (closing quotes included), with or without whitespace.
pub(crate) fn sentences(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(character) = text[at..].chars().next() {
        let behind = at + character.len_utf8();
        match boundary(text, start, at, character) {
            Some(end) => {
                found.push(start..end);
                (start, at) = (end, end);
            }
            None => at = behind,
        }
    }
    if start < text.len() {
        found.push(start..text.len());
    }
    found
}

/// Returns the start of the next sentence if `character` at `at` ends the sentence that starts at `start`.
fn boundary(text: &str, start: usize, at: usize, character: char) -> Option<usize> {
    let behind = at + character.len_utf8();
    match character {
        '\n' | '\r' => Some(skip(text, behind, char::is_whitespace)),
        '。' | '！' | '？' | '｡' => Some(skip(text, skip(text, behind, is_closing), char::is_whitespace)),
        '.' | '!' | '?' | '…' => {
            let closed = skip(text, behind, is_closing);
            let next = skip(text, closed, char::is_whitespace);
            let continues = text[next..].starts_with(char::is_lowercase);
            let ends = next > closed && !continues && !(character == '.' && is_abbreviation(&text[start..at]));
            if ends { Some(next) } else { None }
        }
        _ => None,
    }
}

fn skip(text: &str, from: usize, while_is: impl Fn(char) -> bool) -> usize {
    text.len() - text[from..].trim_start_matches(while_is).len()
}

fn is_closing(character: char) -> bool {
    matches!(character, '"' | '\'' | ')' | ']' | '}' | '”' | '’' | '»' | '」' | '』' | '）' | '】')
}

/// Whether the text before a full stop ends in an abbreviation that seldom ends a sentence.
fn is_abbreviation(before: &str) -> bool {
    const USUAL: [&str; 27] = [
        "Mr", "Mrs", "Ms", "Dr", "Prof", "Rev", "Hon", "Gen", "Col", "Capt", "Lt", "Sgt", "Gov", "Sen", "Rep", "St",
        "Mt", "No", "vs", "cf", "e.g", "i.e", "Fig", "Vol", "Jan", "Feb", "Dec",
    ];
    let word = before.rsplit(|c: char| c.is_whitespace() || c == '(').next().unwrap_or(before);
    let mut letters = word.chars();
    // `I` is a pronoun more often than an initial.
    let initial = letters.next().is_some_and(char::is_uppercase) && letters.next().is_none() && word != "I";
    initial || USUAL.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::super::{Counter, Memo};
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        sentences(text).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn sentences_end_where_a_reader_ends_them() {
        let text = "Dr. J. Smith met (e.g. in Rome) two people. \"Who?\" he asked. \"Me!\" It cost 3.5 m. Fine… Yes.";
        let wanted = [
            "Dr. J. Smith met (e.g. in Rome) two people. ",
            "\"Who?\" he asked. ",
            "\"Me!\" ",
            "It cost 3.5 m. ",
            "Fine… ",
            "Yes.",
        ];
        assert_eq!(split(text), wanted);
    }

    #[test]
    fn lines_and_ideographic_stops_end_sentences() {
        assert_eq!(split("One\r\n\r\nTwo 。「三。」四！\n"), ["One\r\n\r\n", "Two 。", "「三。」", "四！\n"]);
        assert_eq!(split(" \n "), [" \n "]);
        assert!(split("").is_empty());
    }

    fn cut(text: &str, size: usize, overlap: usize) -> Vec<(&str, usize)> {
        let mut memo = Memo::default();
        let mut tally = Counter::Characters.tally(&mut memo, text);
        let pieces = Sentences { size, overlap }.cut(text, &mut tally);
        pieces.iter().map(|piece| (&text[piece.start..piece.end], piece.tokens)).collect()
    }

    #[test]
    fn sentences_are_packed_up_to_the_size() {
        assert_eq!(cut("Aa. Bb. Cc. Dd.", 8, 0), [("Aa. Bb. ", 8), ("Cc. Dd.", 7)]);
        assert_eq!(cut("Aa. Bb. Cc. Dd.", 8, 1), [("Aa. Bb. ", 8), ("Bb. Cc. ", 8), ("Cc. Dd.", 7)]);
        assert_eq!(cut("Aa. Bb. Cc. Dd.", 4, 5), [("Aa. ", 4), ("Bb. ", 4), ("Cc. ", 4), ("Dd.", 3)]);
    }

    #[test]
    fn overlap_gives_way_to_the_next_sentence() {
        assert_eq!(cut("Aa. Bbbbbb. Cccccccc. Dd.", 14, 1), [("Aa. Bbbbbb. ", 12), ("Cccccccc. Dd.", 13)]);
    }

    #[test]
    fn a_long_sentence_is_cut_into_windows() {
        assert_eq!(cut("Aa. Bbbbbbbb. C.", 5, 0), [("Aa. ", 4), ("Bbbbb", 5), ("bbb. ", 5), ("C.", 2)]);
    }
}
