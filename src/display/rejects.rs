//! Formats rejected rows: the full reason, and the beginning of the last response.

use searchmill_schemas::Reject;

use super::safe::plain;
use super::style::{DIM, ERROR, STRONG};

/// Maximum number of characters shown of the last response.
const DETAIL: usize = 400;

/// Formats one rejected row: kind, message, and the known content of the row or the last response, which is cut unless
/// `full`.
pub(crate) fn reject(row: &Reject, full: bool) -> String {
    let limit = if full { usize::MAX } else { DETAIL };
    let attempts = if row.attempts > 1 { format!(" after {} attempts", row.attempts) } else { String::new() };
    let mut text = format!("{STRONG}{}{STRONG:#}  {ERROR}{}{ERROR:#}{attempts}", plain(&row.id), row.kind);
    for line in plain(row.message.trim()).lines() {
        text.push_str(&format!("\n  {line}"));
    }
    let detail = row.detail.as_deref().unwrap_or_default().trim();
    // Some servers answer with nothing but the message.
    if !detail.is_empty() && detail != row.message.trim() {
        let more = if detail.chars().count() > limit { "…" } else { "" };
        let shown: String = detail.chars().take(limit).collect();
        for line in plain(&shown).lines() {
            text.push_str(&format!("\n    {DIM}{line}{DIM:#}"));
        }
        text.push_str(more);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_whole_and_a_long_response_is_cut() {
        let row = Reject {
            id: "q1@0".to_owned(),
            kind: "server_error".to_owned(),
            message: "500 from the endpoint: ".to_owned() + &"a long story ".repeat(20) + "\nsecond line",
            attempts: 3,
            detail: Some("x".repeat(1000)),
        };
        let shown = anstream::adapter::strip_str(&reject(&row, false)).to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!((lines[0], lines[2]), ("q1@0  server_error after 3 attempts", "  second line"));
        assert!(lines[1].ends_with("a long story ") && lines[3].chars().count() == 4 + DETAIL + 1, "{shown}");
        assert!(reject(&row, true).contains(&"x".repeat(1000)));
        let short = Reject { attempts: 1, detail: None, message: "no".to_owned(), ..row };
        assert_eq!(anstream::adapter::strip_str(&reject(&short, false)).to_string(), "q1@0  server_error\n  no");
    }
}
