//! Lexicons: lists of regular expressions whose occurrences are counted in texts, whatever their case, hyphens,
//! apostrophes and white space.

use regex::{Regex, RegexBuilder};

/// Phrases with which a model takes back, doubts or checks what it said; version 1. The phrases extend the examples of
/// Seungyoun's reproduction of Search-R1 (think again, re-verify, let's reconsider, upon closer inspection), whose own
/// list is not published.
pub const REFLECTION: [&str; 11] = [
    "think(?:ing)? again",
    r"re-?(?:verify|check|examin\w*|evaluat\w*|consider\w*|think|assess\w*|visit)",
    "let'?s (?:reconsider|re-?check|double-?check|verify)",
    "double-?check",
    "upon (?:closer?|further|careful) (?:inspection|review|examination)",
    "on second thought",
    "wait,",
    "actually,",
    "i (?:made|was) (?:a )?(?:mistake|wrong)",
    "that(?:'s| is) (?:not right|incorrect)",
    "let me (?:verify|re-?check|reconsider)",
];

/// Regular expressions, compiled into one.
#[derive(Clone, Debug)]
pub struct Lexicon(Regex);

impl Lexicon {
    /// Compiles the expressions. They match whole words, ignoring case: a match starts at the start of a word, and ends
    /// at the end of one or after another character.
    ///
    /// # Errors
    /// Place of the first invalid expression, and what is wrong with it.
    pub fn new(expressions: &[String]) -> Result<Self, (usize, String)> {
        for (index, expression) in expressions.iter().enumerate() {
            // Alone: the error names its place, and an open group cannot swallow the next expression.
            let alone = compile(&whole_words(expression)).map_err(|message| (index, message))?;
            if alone.is_match("") || alone.is_match("a") && alone.is_match("-") {
                return Err((index, "matches everything".to_owned()));
            }
        }
        let all: Vec<String> = expressions.iter().map(|expression| whole_words(expression)).collect();
        compile(&all.join("|")).map(Self).map_err(|message| (0, message))
    }

    /// Returns the matches in a text that [`unify`] returned, without overlaps. Where several expressions match, the
    /// first one of the list counts.
    pub fn hits<'t>(&self, unified: &'t str) -> impl Iterator<Item = &'t str> {
        self.0.find_iter(unified).map(|found| found.as_str())
    }
}

/// The two assertions look left and right: the position follows or precedes what is no word character.
fn whole_words(expression: &str) -> String {
    format!(r"(?:\b{{start-half}}(?:{expression})(?:\b{{end-half}}|\b{{start-half}}))")
}

fn compile(expression: &str) -> Result<Regex, String> {
    // Texts are in lower case (`unify`), the user's expressions need not be.
    let compiled = RegexBuilder::new(expression).case_insensitive(true).build();
    compiled.map_err(|error| error.to_string().lines().last().unwrap_or("invalid").trim().to_owned())
}

/// Unifies a text for counting: NFKC, lower case, one kind of apostrophe (`'`) and hyphen (`-`), single spaces.
pub fn unify(text: &str) -> String {
    // Before NFKC, which makes a space and a combining accent of `´`.
    let marks = text.chars().map(|c| match c {
        '’' | '‘' | 'ʼ' | 'ʹ' | '′' | '´' | '`' | '‛' | '＇' => '\'',
        '\u{ad}' | '\u{2010}'..='\u{2015}' | '−' | '﹣' | '－' => '-',
        other => other,
    });
    let plain: String = marks.collect();
    let composed = if plain.is_ascii() { plain } else { nfkc(plain) };
    let mut out = String::with_capacity(composed.len());
    for word in composed.to_lowercase().split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

fn nfkc(text: String) -> String {
    let mut normalized = tokenizers::NormalizedString::from(text);
    normalized.nfkc();
    normalized.get().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reflection() -> Lexicon {
        Lexicon::new(&REFLECTION.map(str::to_owned)).unwrap()
    }

    fn hits(text: &str) -> Vec<String> {
        reflection().hits(&unify(text)).map(str::to_owned).collect()
    }

    #[test]
    fn phrases_are_found_whatever_their_marks() {
        assert_eq!(
            hits("Wait, LET’S re‑check: upon\n closer  inspection"),
            ["wait,", "let's re-check", "upon closer inspection"]
        );
        assert_eq!(
            hits("I was wrong. That's incorrect; that is not right."),
            ["i was wrong", "that's incorrect", "that is not right"]
        );
        assert_eq!(
            hits("Thinking again, I re-examined, reconsidering; ﬁrst Ｗａｉｔ， no"),
            ["thinking again", "re-examined", "reconsidering", "wait,"]
        );
        assert_eq!(hits("wait,what"), ["wait,"], "the phrase ends with a comma");
    }

    #[test]
    fn parts_of_words_are_no_phrases() {
        for text in [
            "",
            "I think against it",
            "await, sir",
            "factually, it is",
            "rethinking",
            "prethink again st",
            "double checks",
        ] {
            assert_eq!(hits(text), [""; 0], "{text}");
        }
        assert_eq!(hits("Let me verify: rethink"), ["let me verify", "rethink"]);
    }

    #[test]
    fn texts_are_unified() {
        assert_eq!(unify("  Don´t\u{a0}‘Re—Visit’ ² "), "don't 're-visit' 2");
        assert_eq!(unify("\t\n"), "");
    }

    #[test]
    fn expressions_are_checked() {
        let refused =
            |list: &[&str]| Lexicon::new(&list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).unwrap_err();
        let (place, message) = refused(&["fine", "(open"]);
        assert!(place == 1 && message.contains("unclosed group"), "{message}");
        assert_eq!(refused(&["a*"]), (0, "matches everything".to_owned()));
        assert_eq!(refused(&[""]), (0, "matches everything".to_owned()));
        assert_eq!(refused(&["."]), (0, "matches everything".to_owned()));
    }
}
