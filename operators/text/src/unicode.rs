//! One form for texts that Unicode can write in several ways.
//!
//! Search (BM25, the hashing encoder) and comparisons of texts (`dedup`, `decontaminate`, `ngram_jaccard`, grounding,
//! titles of gold documents) use these forms. Answer metrics and rewards do not: they equal published code, for which two
//! forms are two texts.
//!
//! Rules: NFKC (Unicode Standard Annex 15), and no code points that Unicode ignores by default (soft hyphens, joiners,
//! zero-width spaces, variation selectors, direction marks), as in `NFKC_Casefold` (Unicode Standard, section 3.13). ASCII
//! text is unchanged and costs one scan.

use std::borrow::Cow;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfkc_quick};

/// A soft hyphen: the word goes on, also on the next line.
const SOFT_HYPHEN: char = '\u{ad}';
const ZERO_WIDTH_SPACE: char = '\u{200b}';
/// What `i` and NFKC leave of the capital letter of Turkish when it is lower-cased.
const DOT_ABOVE: char = '\u{307}';

/// Returns a text in NFKC, without invisible code points.
///
/// A soft hyphen at the end of a line joins the two halves of the word. A zero-width space between letters of Thai, Lao,
/// Khmer or Burmese separates words, so it becomes a space.
pub fn nfkc(text: &str) -> Cow<'_, str> {
    convert(text, false)
}

/// Returns the form of a text whose words are compared: [`nfkc`], with two additions.
///
/// A symbol that stands for letters (`™`, `㎏`, `½`) is separated from the word beside it: `iPhone™` is still found as
/// `iPhone`. Letters whose lower case has two forms have one: `İ` is `I` (as in Lucene), final sigma is `σ`.
pub fn word_form(text: &str) -> Cow<'_, str> {
    convert(text, true)
}

/// Returns the [`word_form`] of a text in lower case. Final sigma is `σ`.
pub fn folded(text: &str) -> String {
    let lower = word_form(text).to_lowercase();
    if lower.is_ascii() { lower } else { lower.replace('ς', "σ") }
}

/// Copies ASCII, and converts what lies between. A mark composes with the ASCII character before it, never with one behind
/// it: so a part is one ASCII character and all others up to the next one.
fn convert(text: &str, words: bool) -> Cow<'_, str> {
    let mut out: Option<String> = None;
    let mut copied = 0;
    let mut at = 0;
    while let Some(offset) = text.as_bytes()[at..].iter().position(|byte| !byte.is_ascii()) {
        let first = at + offset;
        let start = first.saturating_sub(1).max(at);
        let end = text.as_bytes()[first..].iter().position(u8::is_ascii).map_or(text.len(), |length| first + length);
        let part = &text[start..end];
        at = end;
        // Most parts have their form already: they are copied with what precedes them.
        if is_nfkc_quick(part.chars()) == IsNormalized::Yes
            && !part.chars().any(|c| is_ignorable(c) || (words && matches!(c, 'İ' | 'ς' | DOT_ABOVE)))
        {
            continue;
        }
        let out = out.get_or_insert_with(|| String::with_capacity(text.len()));
        out.push_str(&text[copied..start]);
        convert_part(part, words, out);
        if part.ends_with(SOFT_HYPHEN) {
            // With the hyphen, the line feed behind it goes.
            at += ["\n", "\r\n"].iter().find(|feed| text[end..].starts_with(**feed)).map_or(0, |feed| feed.len());
        }
        copied = at;
    }
    let Some(mut out) = out else { return Cow::Borrowed(text) };
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

fn convert_part(part: &str, words: bool, out: &mut String) {
    let mut visible = String::with_capacity(part.len());
    let mut last = ' ';
    for c in part.chars() {
        if is_ignorable(c) {
            if c == ZERO_WIDTH_SPACE && needs_no_spaces(last) {
                visible.push(' ');
            }
            continue;
        }
        last = c;
        if words && stands_for_letters(c) {
            visible.extend([' ', c, ' ']);
        } else {
            visible.push(c);
        }
    }
    if !words {
        out.extend(visible.nfkc());
        return;
    }
    for c in visible.nfkc() {
        match c {
            'İ' => out.push('I'),
            'ς' => out.push('σ'),
            DOT_ABOVE if out.ends_with(['i', 'I']) => {}
            _ => out.push(c),
        }
    }
}

/// Whether a character is a symbol or a fraction that NFKC spells with letters or digits: `™` is `TM`. Ideographs in
/// another guise (the radicals that PDF files contain) stay in their words.
fn stands_for_letters(c: char) -> bool {
    let mut spelt = std::iter::once(c).nfkc();
    if c.is_alphanumeric() {
        return spelt.any(|part| part == '\u{2044}');
    }
    spelt.any(|part| part != c && part.is_alphanumeric() && !crate::analysis::is_cjk(part))
}

/// Whether the script of a character is written without spaces between words, and marks them with zero-width spaces if at
/// all: Thai, Lao, Burmese, Khmer.
fn needs_no_spaces(c: char) -> bool {
    matches!(u32::from(c), 0x0E00..=0x0EFF | 0x1000..=0x109F | 0x1780..=0x17FF | 0xA9E0..=0xA9FF | 0xAA60..=0xAA7F)
}

/// The property `Default_Ignorable_Code_Point` of Unicode 17 (`DerivedCoreProperties.txt`).
fn is_ignorable(c: char) -> bool {
    matches!(u32::from(c),
        0xAD | 0x34F | 0x61C | 0x115F..=0x1160 | 0x17B4..=0x17B5 | 0x180B..=0x180F | 0x200B..=0x200F | 0x202A..=0x202E
        | 0x2060..=0x206F | 0x3164 | 0xFE00..=0xFE0F | 0xFEFF | 0xFFA0 | 0xFFF0..=0xFFF8 | 0x1BCA0..=0x1BCA3
        | 0x1D173..=0x1D17A | 0xE0000..=0xE0FFF)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms_of_one_word_are_equal() {
        for (one, other) in [
            ("cafe\u{301}", "café"),
            ("Zu\u{308}rich", "Zürich"),
            ("ＡＢＣ１２３", "ABC123"),
            ("ﾊﾝｶｸｶﾞﾊﾟ", "ハンカクガパ"),
            ("oﬃce ﬁrst", "office first"),
            ("encyclo\u{ad}pedia", "encyclopedia"),
            ("encyclo\u{ad}\npedia", "encyclopedia"),
            ("encyclo\u{ad}\r\npedia", "encyclopedia"),
            ("foo\u{200b}bar\u{feff}", "foobar"),
            ("e\u{ad}\u{301}", "é"),
            ("\u{110b}\u{1161}", "아"),
            ("H₂O x² Ⅳ", "H2O x2 IV"),
            ("می\u{200c}خواهم", "میخواهم"),
            ("❤\u{fe0f}", "❤"),
        ] {
            assert_eq!(nfkc(one), other);
            assert_eq!(word_form(one), word_form(other));
        }
    }

    #[test]
    fn texts_in_their_form_are_not_copied() {
        for text in ["", "plain text\n", "Zürich, “quoted” – naïve", "東京は2024年", "книга"] {
            assert!(matches!(nfkc(text), Cow::Borrowed(_)) && matches!(word_form(text), Cow::Borrowed(_)), "{text}");
        }
    }

    #[test]
    fn symbols_are_words_of_their_own() {
        assert_eq!(word_form("iPhone™ 10㎏ 1½ №5"), "iPhone TM  10 kg  1 1⁄2   No 5");
        assert_eq!(word_form("⽇本 ㍿トヨタ"), "日本 株式会社トヨタ");
        assert_eq!(word_form("①② Ⓐ"), "12 A");
        assert_eq!(nfkc("iPhone™"), "iPhoneTM");
    }

    #[test]
    fn letters_with_two_lower_cases_have_one() {
        assert_eq!(word_form("İstanbul I\u{307}stanbul i\u{307}stanbul"), "Istanbul Istanbul istanbul");
        assert_eq!(word_form("ΟΔΟΣ οδος"), "ΟΔΟΣ οδοσ");
        assert_eq!(folded("ΟΔΟΣ οδος İ ＡÉ"), "οδοσ οδοσ i aé");
    }

    #[test]
    fn zero_width_spaces_separate_words_of_scripts_without_spaces() {
        assert_eq!(nfkc("ភាសា\u{200b}ខ្មែរ"), "ភាសា ខ្មែរ");
        assert_eq!(nfkc("東\u{200b}京"), "東京");
    }

    proptest! {
        #[test]
        fn parts_are_what_the_whole_is(text in "[a-ce i\u{301}\u{307}\u{323}é가\u{1100}\u{1161}ｶﾞ\u{ad}ﬁ½]{0,12}") {
            let visible: String = text.chars().filter(|c| !is_ignorable(*c)).collect();
            prop_assert_eq!(nfkc(&text).into_owned(), visible.nfkc().collect::<String>());
        }

        #[test]
        fn a_form_has_its_form(text in "\\PC{0,30}") {
            for form in [nfkc, word_form] {
                let once = form(&text);
                prop_assert_eq!(form(&once), once.clone());
            }
        }
    }
}
