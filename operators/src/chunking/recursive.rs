//! Recursive chunking by the rules of chonkie 1.2.1's `RecursiveChunker` (<https://github.com/chonkie-inc/chonkie>).
//!
//! Five levels, each for what the one before left too large: line ends; sentence ends; pauses (brackets, commas,
//! dashes, …); spaces; tokens. At the first three a delimiter stays with what precedes it, pieces shorter than
//! `min_characters` join the next one, and neighbours are merged while the sum of their counts stays **below** `size`.
//! At spaces each word counts one more (for its space), and all groups but the first start with their space.
//!
//! Two things differ, because the original loses text there: it removes U+2704 (✄), which it uses as a mark, and at the
//! last level it gives the tokenizer's decoded tokens (lower-cased, for BERT); here the text itself is cut at them.

use std::ops::Range;

use super::{Piece, Tally};

/// Recursive chunking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recursive {
    /// Pieces larger than this are cut at the next level.
    pub(crate) size: usize,
    /// Shorter pieces join the next one, at least 1.
    pub(crate) min_characters: usize,
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
    /// Cuts `text`. A piece may be empty: where a space precedes a word that is too large, as in the original.
    pub(crate) fn cut(&self, text: &str, tally: &mut Tally<'_>) -> Vec<Piece> {
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

    /// Splits behind delimiters, joins what is too short, merges up to the size.
    fn delimited(&self, text: &str, range: Range<usize>, level: Level, tally: &mut Tally<'_>) -> Counted {
        let mut splits = Counted::new();
        let (mut start, mut from, mut characters) = (range.start, range.start, 0);
        while from < range.end {
            let end = from + delimiter_end(&text.as_bytes()[from..range.end], level);
            characters += text[from..end].chars().count();
            if characters >= self.min_characters || end == range.end {
                splits.push((start..end, tally.count(&text[start..end])));
                (start, characters) = (end, 0);
            }
            from = end;
        }
        self.merge(&splits, 0)
    }

    /// Splits at spaces and merges; a space belongs to the group behind it.
    fn spaced(&self, text: &str, range: Range<usize>, tally: &mut Tally<'_>) -> Counted {
        let mut words = Counted::new();
        let mut from = range.start;
        for word in text[range].split(' ') {
            words.push((from..from + word.len(), tally.count(word)));
            from += word.len() + 1;
        }
        let all_too_large = words.iter().all(|(_, tokens)| *tokens > self.size);
        let mut groups = if all_too_large { words } else { self.merge(&words, 1) };
        for (range, _) in groups.iter_mut().skip(1) {
            range.start -= 1;
        }
        groups
    }

    /// Merges neighbours from the left while their sum, with `extra` for each, is below the size.
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

    /// Cuts at every `size` tokens. Counts are those of the pieces by themselves.
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

/// End of the first split of `bytes`: behind its first delimiter, or its end.
fn delimiter_end(bytes: &[u8], level: Level) -> usize {
    let found = match level {
        Level::Lines => bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')).map(|at| at + 1),
        Level::Sentences => sentence_end(bytes),
        _ => pause_end(bytes),
    };
    found.unwrap_or(bytes.len())
}

fn sentence_end(bytes: &[u8]) -> Option<usize> {
    let ends = |pair: &[u8]| pair[1] == b' ' && matches!(pair[0], b'.' | b'!' | b'?');
    bytes.windows(2).position(ends).map(|at| at + 2)
}

fn pause_end(bytes: &[u8]) -> Option<usize> {
    const DASH: &[u8] = "—".as_bytes();
    bytes.iter().enumerate().find_map(|(at, byte)| match byte {
        b'{' | b'}' | b'"' | b'[' | b']' | b'<' | b'>' | b'(' | b')' | b':' | b';' | b',' | b'|' | b'~' | b'-'
        | b'`' | b'\'' => Some(at + 1),
        b'.' if bytes[at..].starts_with(b"...") => Some(at + 3),
        0xE2 if bytes[at..].starts_with(DASH) => Some(at + DASH.len()),
        _ => None,
    })
}
