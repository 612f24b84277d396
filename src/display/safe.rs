//! Escapes external text (data, server messages, file names) for the terminal: control sequences become visible.

use std::borrow::Cow;

/// Codes of the styles that this program prints: bold, dim, and red to cyan in both brightnesses. Other styles could
/// hide text.
const STYLES: [u8; 15] = [0, 1, 2, 31, 32, 33, 34, 35, 36, 91, 92, 93, 94, 95, 96];

/// Escapes control characters, line separators and direction marks as `\u009b`, the JSON form, so that JSON stays
/// valid. Line breaks, tabs and the program's own styles are kept; other sequences `ESC [ … m` are removed.
pub(super) fn safe(text: &str) -> Cow<'_, str> {
    shown(text, true)
}

/// The same for a purely external text: removes all styles.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    shown(text, false)
}

fn shown(text: &str, styled: bool) -> Cow<'_, str> {
    let (mut shown, mut from, mut at) = (String::new(), 0, 0);
    while let Some(ch) = text[at..].chars().next() {
        let replaced = match style(&text[at..]) {
            Some(codes) if styled && is_own(codes) => None,
            // The codes with the `ESC`, the `[` and the `m` around them.
            Some(codes) => Some((codes.len() + 3, String::new())),
            None if steers(text, at, ch) => Some((ch.len_utf8(), format!("\\u{:04x}", u32::from(ch)))),
            None => None,
        };
        at += match replaced {
            None => ch.len_utf8(),
            Some((length, instead)) => {
                shown.push_str(&text[from..at]);
                shown.push_str(&instead);
                from = at + length;
                length
            }
        };
    }
    if from == 0 { Cow::Borrowed(text) } else { Cow::Owned(shown + &text[from..]) }
}

/// Whether all codes are of styles that this program prints.
fn is_own(codes: &str) -> bool {
    codes.split(';').all(|code| code.parse().is_ok_and(|code| STYLES.contains(&code)))
}

fn steers(text: &str, at: usize, ch: char) -> bool {
    match ch {
        '\n' | '\t' => false,
        '\r' => !text[at + 1..].starts_with('\n'),
        // Direction marks, line and paragraph separators, embeddings, overrides and isolates (Unicode Annexes 9 and
        // 14).
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => ch.is_control(),
    }
}

/// Returns the codes if the text starts with a sequence that only sets styles.
fn style(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("\u{1b}[")?;
    let codes = &rest[..rest.find(|ch: char| !ch.is_ascii_digit() && !";:".contains(ch))?];
    rest[codes.len()..].starts_with('m').then_some(codes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_written_out() {
        assert!(matches!(safe("plain\ttext ü 東\r\n\u{1b}[1;31mred\u{1b}[0m"), Cow::Borrowed(_)));
        assert_eq!(safe("a\u{9b}31mb"), "a\\u009b31mb");
        assert_eq!(safe("\u{202e}gpj.exe\u{2066}"), "\\u202egpj.exe\\u2066");
        assert_eq!(safe("\u{1b}]0;title\u{7}\u{1b}[2J"), "\\u001b]0;title\\u0007\\u001b[2J");
        assert_eq!(safe("over\rwritten\u{7f}"), "over\\u000dwritten\\u007f");
        assert_eq!(safe("a\u{61c}b\u{200e}\u{200f}"), "a\\u061cb\\u200e\\u200f");
        assert_eq!(safe("one\u{2028}two\u{2029}"), "one\\u2028two\\u2029");
        assert_eq!(safe("\u{1b}\u{1b}[2J"), "\\u001b\\u001b[2J");
    }

    #[test]
    fn no_style_hides_text() {
        for codes in ["8", "1;8", "30", "07", "5", "38;5;0", "38:2::0:0:0", "", "48;2;0;0;0", "999"] {
            assert_eq!(safe(&format!("a\u{1b}[{codes}mb")), "ab", "{codes}");
        }
        assert_eq!(safe("\u{1b}[8m\u{1b}[1;31mred\u{1b}[0m"), "\u{1b}[1;31mred\u{1b}[0m");
        assert_eq!(plain("\u{1b}[1;31mred\u{1b}[0m\u{7}"), "red\\u0007");
    }

    #[test]
    fn json_stays_what_it_says() {
        let value = serde_json::json!({"text": "a\u{9b}\u{202e}b"});
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe(&value.to_string())).unwrap(), value);
    }
}
