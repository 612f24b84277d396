//! FlashRAG's answer normalisation (the SQuAD rule): lower-case, drop ASCII punctuation, drop articles, single spaces
//! between words.
//!
//! Source: FlashRAG `flashrag/evaluator/utils.py` at 1ee5249; Rajpurkar et al. 2016 for the rule.
//!
//! Unicode follows Python, with which the published figures were computed: `str.lower` (full case mapping, final
//! sigma), `str.split` (white space includes U+001C to U+001F and NBSP, but not ZWSP) and the regex class `\w`
//! (categories L and N and the underscore). Unicode forms stay apart, as in Python: `é` and `e` with an accent differ.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

/// Normalises an answer: lower-case words without punctuation and without `a`, `an`, `the`, separated by single spaces.
///
/// Only ASCII punctuation is removed, and no space replaces it (`Bankman-Fried` becomes `bankmanfried`).
pub fn normalize_answer(text: &str) -> String {
    // ASCII without the control characters that are neither white space nor word characters.
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'..=b'\r' | 0x1c..=0x1f));
    if is_plain { normalize_ascii(text) } else { normalize_unicode(text) }
}

/// Normalises a text in which an answer is looked for: [`normalize_answer`] of its NFKC form. A score of published code does
/// not know forms and takes [`normalize_answer`].
pub fn normalize_sought(text: &str) -> String {
    normalize_answer(&crate::unicode::nfkc(text))
}

/// Whether `needle` occurs in `haystack` as whole words. Both must be normalised; an empty needle never occurs.
pub fn contains_words(haystack: &str, needle: &str) -> bool {
    if needle.is_empty() {
        return false;
    }
    haystack.match_indices(needle).any(|(start, found)| {
        let before = haystack[..start].chars().next_back();
        let after = haystack[start + found.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

fn normalize_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 1);
    let mut word = 0;
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            out.push(char::from(byte.to_ascii_lowercase()));
        } else if !byte.is_ascii_punctuation() {
            word = end_word(&mut out, word);
        }
    }
    let end = end_word(&mut out, word);
    out.truncate(end.saturating_sub(1));
    out
}

/// Closes the word that starts at `start` with a space, or removes it if it is empty or an article. Returns the start
/// of the next word.
fn end_word(out: &mut String, start: usize) -> usize {
    match &out.as_bytes()[start..] {
        b"" => {}
        b"a" | b"an" | b"the" => out.truncate(start),
        _ => out.push(' '),
    }
    out.len()
}

fn normalize_unicode(text: &str) -> String {
    let mut lower = text.to_lowercase();
    lower.retain(|c| !c.is_ascii_punctuation());
    join_words(&without_articles(&lower))
}

/// Joins the words of a text with single spaces: Python's `" ".join(text.split())`.
pub(crate) fn join_words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split(is_python_space).filter(|word| !word.is_empty()) {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

/// Replaces every run of word characters that is an article by one space: the matches of `\b(a|an|the)\b`.
pub(crate) fn without_articles(text: &str) -> Cow<'_, str> {
    // Most answers have none: they are not copied.
    if !["a", "an", "the"].iter().any(|article| text.contains(article)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let run = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        out.push_str(if matches!(&rest[..run], "a" | "an" | "the") { " " } else { &rest[..run] });
        let gap = rest[run..].find(is_word).map_or(rest.len(), |offset| run + offset);
        out.push_str(&rest[run..gap]);
        rest = &rest[gap..];
    }
    Cow::Owned(out)
}

/// Strips white space as Python's `str.strip` does.
pub fn python_trim(text: &str) -> &str {
    text.trim_matches(is_python_space)
}

/// Python's `str.isspace`.
pub fn is_python_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Python's regex `\w`.
fn is_word(c: char) -> bool {
    static LETTER_OR_NUMBER: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^[\p{L}\p{N}]").ok());
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || c == '_';
    }
    // `is_alphanumeric` also accepts combining marks and circled letters, which Python's `\w` does not match.
    let mut buffer = [0; 4];
    c.is_alphanumeric() && LETTER_OR_NUMBER.as_ref().is_none_or(|regex| regex.is_match(c.encode_utf8(&mut buffer)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn articles_are_whole_words_and_punctuation_joins() {
        assert_eq!(normalize_answer("The U.S. a  theatre, An anthem"), "us theatre anthem");
        assert_eq!(normalize_answer("Sam Bankman-Fried"), "sam bankmanfried");
        assert_eq!(normalize_answer("a"), "");
        assert_eq!(normalize_answer(" \t\n "), "");
    }

    #[test]
    fn white_space_is_pythons() {
        assert_eq!(normalize_answer("Sam\u{a0}Altman\u{1f}x\u{3000}y"), "sam altman x y");
        assert_eq!(normalize_answer("Sam\u{1c}Altman"), "sam altman");
        assert_eq!(normalize_answer("Sam\u{200b}Altman"), "sam\u{200b}altman");
    }

    #[test]
    fn word_boundaries_are_pythons() {
        // Expected values printed by CPython 3.11 with FlashRAG's function.
        assert_eq!(normalize_answer("x’a’y"), "x’ ’y");
        assert_eq!(normalize_answer("a\u{301} cafe"), "\u{301} cafe", "a combining mark is no word character");
        assert_eq!(normalize_answer("aé an\u{24d0}"), "aé \u{24d0}", "a circled letter is no word character");
        assert_eq!(normalize_answer("a\u{7}b an\u{0}"), "\u{7}b \u{0}");
        assert_eq!(normalize_answer("THE ΟΔΟΣ İ"), "οδος i\u{307}");
        assert_eq!(normalize_answer("a\u{b2} a谷"), "a\u{b2} a谷");
    }

    #[test]
    fn forms_differ_in_scores_and_not_in_searches() {
        assert_ne!(normalize_answer("cafe\u{301}"), normalize_answer("café"));
        assert_eq!(normalize_sought("The Cafe\u{301}, oﬃce"), "café office");
    }

    #[test]
    fn whole_words_only() {
        assert!(contains_words("the second world war", "world war"));
        assert!(contains_words("world", "world"));
        assert!(!contains_words("nothing is known", "no"));
        assert!(contains_words("nothing, no", "no"));
        assert!(!contains_words("anything", ""));
    }

    proptest! {
        #[test]
        fn both_paths_agree_on_ascii(text in "[ -~\t\n]{0,60}") {
            prop_assert_eq!(normalize_ascii(&text), normalize_unicode(&text));
        }

        #[test]
        fn output_is_lower_trimmed_and_free_of_punctuation(text in "\\PC{0,40}") {
            let out = normalize_answer(&text);
            prop_assert_eq!(out.trim(), out.as_str());
            prop_assert!(!out.chars().any(|c| c.is_ascii_punctuation() || c.is_ascii_uppercase()));
            prop_assert!(!out.contains("  "));
        }
    }
}
