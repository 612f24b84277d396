//! Texts from outside (data, messages of servers, names of files) for a terminal: what would steer it is written out.

use std::borrow::Cow;

/// The text with control characters and marks that turn the direction of writing as `\u009b`: what JSON has for them,
/// so that JSON stays what it says. Line breaks, tabs and colours (`ESC [ … m`) stay.
pub(super) fn safe(text: &str) -> Cow<'_, str> {
    let Some(first) = text.char_indices().find(|(at, ch)| steers(text, *at, *ch)).map(|(at, _)| at) else {
        return Cow::Borrowed(text);
    };
    let mut shown = text[..first].to_owned();
    for (at, ch) in text[first..].char_indices() {
        if steers(text, first + at, ch) {
            shown.push_str(&format!("\\u{:04x}", u32::from(ch)));
        } else {
            shown.push(ch);
        }
    }
    Cow::Owned(shown)
}

fn steers(text: &str, at: usize, ch: char) -> bool {
    match ch {
        '\n' | '\t' => false,
        '\r' => !text[at + 1..].starts_with('\n'),
        '\u{1b}' => !is_colour(&text[at + 1..]),
        // Embeddings, overrides and isolates (Unicode Annex 9).
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => ch.is_control(),
    }
}

/// Does the rest of a sequence set colours and nothing else?
fn is_colour(rest: &str) -> bool {
    let Some(rest) = rest.strip_prefix('[') else { return false };
    rest.trim_start_matches(|ch: char| ch.is_ascii_digit() || ch == ';').starts_with('m')
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
    }

    #[test]
    fn json_stays_what_it_says() {
        let value = serde_json::json!({"text": "a\u{9b}\u{202e}b"});
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe(&value.to_string())).unwrap(), value);
    }
}
