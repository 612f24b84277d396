//! Recursive chunking by the rules of chonkie 1.2.1's `RecursiveChunker` (<https://github.com/chonkie-inc/chonkie>).
//!
//! Five levels; each cuts the pieces that are still too large: line ends, sentence ends, pauses (brackets, commas,
//! dashes, …), spaces, tokens. At the first three levels, a delimiter stays with the text before it. Pieces shorter
//! than `min_characters` join the next piece. Neighbours merge while the sum of their counts stays **below** `size`. At
//! spaces, each word counts one more (for its space), and every group but the first starts with its space.
//!
//! Two deliberate differences, because the original loses text there. It removes U+2704 (✄), which it uses as a marker.
//! At the last level it returns decoded tokens (lower-cased for BERT); this module cuts the original text at token
//! starts.

use std::ops::Range;

use super::{Piece, Tally};

/// Recursive chunking.
#[derive(Clone, Copy, Debug)]
pub struct Recursive {
    /// Larger pieces are cut at the next level.
    pub size: usize,
    /// Shorter pieces join the next piece; at least 1.
    pub min_characters: usize,
}

#[derive(Clone, Copy)]
enum Level {
    Lines,
    Sentences,
    Pauses,
    Spaces,
    Tokens,
}

/// Ranges with their counts.
type Counted = Vec<(Range<usize>, usize)>;

impl Recursive {
    /// Cuts `text`. A piece may be empty where a space precedes a word that is too large, as in the original.
    pub fn cut(&self, text: &str, tally: &mut Tally<'_>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if !text.is_empty() {
            self.descend(text, 0..text.len(), Level::Lines, tally, &mut pieces);
        }
        pieces
    }

    fn descend(&self, text: &str, range: Range<usize>, level: Level, tally: &mut Tally<'_>, pieces: &mut Vec<Piece>) {
        let (groups, next) = match level {
            Level::Lines => (self.delimited(text, range, level, tally), Level::Sentences),
            Level::Sentences => (self.delimited(text, range, level, tally), Level::Pauses),
            Level::Pauses => (self.delimited(text, range, level, tally), Level::Spaces),
            Level::Spaces => (self.spaced(text, range, tally), Level::Tokens),
            Level::Tokens => return self.windows(text, range, tally, pieces),
        };
        for (range, tokens) in groups {
            if tokens > self.size {
                self.descend(text, range, next, tally, pieces);
            } else {
                pieces.push(Piece { start: range.start, end: range.end, tokens });
            }
        }
    }

    /// Splits after delimiters, joins pieces that are too short, and merges neighbours up to the size.
    fn delimited(&self, text: &str, range: Range<usize>, level: Level, tally: &mut Tally<'_>) -> Counted {
        let mut splits = Counted::new();
        let (mut start, mut from, mut characters) = (range.start, range.start, 0);
        while from < range.end {
            let end = from + delimiter_end(&text.as_bytes()[from..range.end], level);
            characters += text[from..end].chars().count();
            // What is left at the end has no next piece to join.
            if characters >= self.min_characters || end == range.end {
                splits.push((start..end, tally.count(&text[start..end])));
                (start, characters) = (end, 0);
            }
            from = end;
        }
        self.merge(&splits, 0)
    }

    /// Splits at spaces and merges; a space belongs to the group after it.
    fn spaced(&self, text: &str, range: Range<usize>, tally: &mut Tally<'_>) -> Counted {
        let mut words = Counted::new();
        let mut from = range.start;
        for word in text[range].split(' ') {
            words.push((from..from + word.len(), tally.count(word)));
            from += word.len() + 1;
        }
        // Then the original returns the words as they are, with their own counts (`_merge_splits`).
        let all_too_large = words.iter().all(|(_, tokens)| *tokens > self.size);
        let mut groups = if all_too_large { words } else { self.merge(&words, 1) };
        for (range, _) in groups.iter_mut().skip(1) {
            range.start -= 1;
        }
        groups
    }

    /// Merges neighbours from the left while their sum, plus `extra` for each, is below the size.
    fn merge(&self, splits: &[(Range<usize>, usize)], extra: usize) -> Counted {
        let mut groups = Counted::new();
        let mut first = 0;
        while first < splits.len() {
            let mut tokens = splits[first].1 + extra;
            let mut last = first;
            while let Some((_, more)) = splits.get(last + 1).filter(|(_, more)| tokens + more + extra < self.size) {
                tokens += more + extra;
                last += 1;
            }
            groups.push((splits[first].0.start..splits[last].0.end, tokens));
            first = last + 1;
        }
        groups
    }

    /// Cuts at every `size` tokens. Each piece is counted by itself.
    fn windows(&self, text: &str, range: Range<usize>, tally: &mut Tally<'_>, pieces: &mut Vec<Piece>) {
        let starts = tally.starts(&text[range.clone()]);
        let inner = starts.iter().skip(self.size).step_by(self.size).map(|at| range.start + at);
        let mut start = range.start;
        for end in inner.chain([range.end]) {
            if start < end {
                pieces.push(Piece { start, end, tokens: tally.count(&text[start..end]) });
                start = end;
            }
        }
    }
}

/// Returns the end of the first split of `bytes`: after its first delimiter, or at the end.
fn delimiter_end(bytes: &[u8], level: Level) -> usize {
    const DASH: &[u8] = "—".as_bytes();
    let found = match level {
        Level::Lines => bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')).map(|at| at + 1),
        Level::Sentences => bytes.windows(2).position(|two| matches!(two, [b'.' | b'!' | b'?', b' '])).map(|at| at + 2),
        _ => bytes.iter().enumerate().find_map(|(at, byte)| match byte {
            b'{' | b'}' | b'"' | b'[' | b']' | b'<' | b'>' | b'(' | b')' | b':' | b';' | b',' | b'|' | b'~' | b'-'
            | b'`' | b'\'' => Some(at + 1),
            b'.' if bytes[at..].starts_with(b"...") => Some(at + 3),
            0xE2 if bytes[at..].starts_with(DASH) => Some(at + DASH.len()),
            _ => None,
        }),
    };
    found.unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use searchmill_fixtures::{shared_text as shared, small_bert};
    use serde_json::Value;

    use super::super::fixture::{PARTS, parse};
    use super::super::{Counter, Memo};
    use super::*;

    fn cut(text: &str, size: usize, min_characters: usize, counter: &Counter) -> Vec<(String, usize)> {
        let mut memo = Memo::default();
        let mut tally = counter.tally(&mut memo, text);
        let pieces = Recursive { size, min_characters }.cut(text, &mut tally);
        assert_eq!(tally.fault(), None);
        pieces.iter().map(|piece| (text[piece.start..piece.end].to_owned(), piece.tokens)).collect()
    }

    #[test]
    fn every_golden_vector_of_chonkie_is_met() {
        let Some(lines) = shared("golden/chunks_recursive.jsonl") else { return };
        for line in lines.lines() {
            let vector: Value = serde_json::from_str(line).unwrap();
            let counter = if vector["tokenizer"] == "word" { Counter::Words } else { Counter::Characters };
            let text = vector["text"].as_str().unwrap();
            let number = |key: &str| vector[key].as_f64().unwrap() as usize;
            let found = cut(text, number("chunk_size"), number("min_characters_per_chunk"), &counter);
            let wanted = vector["chunks"].as_array().unwrap().iter();
            let wanted =
                wanted.map(|c| (c["text"].as_str().unwrap().to_owned(), c["token_count"].as_u64().unwrap() as usize));
            assert_eq!(found, wanted.collect::<Vec<_>>(), "{line}");
        }
        assert!(lines.lines().count() >= 28);
    }

    #[test]
    fn groups_stay_below_the_size_and_single_pieces_may_reach_it() {
        let found = cut("aaaa\nbbbb\ncc", 10, 1, &Counter::Characters);
        assert_eq!(found, [("aaaa\n".to_owned(), 5), ("bbbb\ncc".to_owned(), 7)]);
        assert_eq!(cut("aaaaaaaaa\nb", 10, 1, &Counter::Characters)[0], ("aaaaaaaaa\n".to_owned(), 10));
    }

    #[test]
    fn spaces_count_one_and_lead_their_group() {
        // As chonkie 1.2.1 gives for these settings.
        let found = cut("a. b. c\nd e f  gggggggg", 3, 1, &Counter::Characters);
        let wanted = [
            ("a. ", 3),
            ("b. ", 3),
            ("c\n", 2),
            ("d", 2),
            (" e", 2),
            (" f", 2),
            (" ", 1),
            (" gg", 3),
            ("ggg", 3),
            ("ggg", 3),
        ];
        assert_eq!(found, wanted.map(|(text, tokens)| (text.to_owned(), tokens)));
        assert_eq!(cut(" xxxxxx", 4, 1, &Counter::Characters)[0], (String::new(), 1));
    }

    proptest! {
        #[test]
        fn nothing_is_lost(
            parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..80),
            other in "(?s).{0,30}",
            size in 1..60_usize,
            min_characters in 1..40_usize,
        ) {
            let text = parts.concat() + &other + "✄";
            for counter in [Counter::Characters, Counter::Words, Counter::Tokens(Box::new(parse(&small_bert())))] {
                let found = cut(&text, size, min_characters, &counter);
                prop_assert_eq!(found.iter().map(|(text, _)| text.as_str()).collect::<String>(), text.as_str());
            }
        }
    }
}
