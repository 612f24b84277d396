//! Formats a row that is read whole: a trajectory as a conversation, a rejected row, a passage that a search found.

use searchmill_retrieval::Found;
use searchmill_schemas::{Message, Reject, Trajectory};

use super::safe::plain;
use super::style::{DIM, ERROR, GOOD, HELP, STRONG, WARN};
use super::wrap::wrapped;

/// Maximum number of lines shown of a tool response.
const TOOL_LINES: usize = 12;
/// Maximum number of characters shown of the last response of a rejected row.
const DETAIL: usize = 400;
/// Lines of a passage (at most), unless all of it is wanted.
const PASSAGE_LINES: usize = 4;

/// Formats a trajectory as a readable conversation. `added`: values of columns beyond the kind, such as `reward`; may be
/// empty. Long tool responses are cut, unless `full`.
pub(crate) fn conversation(trajectory: &Trajectory, added: &str, width: usize, full: bool) -> String {
    let Trajectory { policy, turns, tool_calls, finish_reason, .. } = trajectory;
    let (id, model) = (plain(&trajectory.id), plain(trajectory.model.as_deref().unwrap_or("-")));
    let about = format!("policy {policy} · model {model} · {turns} turns · {tool_calls} tool calls · {finish_reason}");
    let mut text = format!("{STRONG}━━ {id}{STRONG:#}  {DIM}{about}{DIM:#}\n");
    for message in &trajectory.messages {
        text.push_str(&render(message, width, full));
    }
    let golden = trajectory.golden_answers.join(" | ");
    let (prediction, golden) = (plain(&trajectory.prediction), plain(&golden));
    text.push_str(&format!("{STRONG}prediction{STRONG:#} {prediction}   {DIM}golden {golden}{DIM:#}\n"));
    if !added.is_empty() {
        text.push_str(&format!("{DIM}{}{DIM:#}\n", plain(added)));
    }
    text
}

fn render(message: &Message, width: usize, full: bool) -> String {
    let style = match message.role.as_str() {
        "assistant" => GOOD,
        "tool" => WARN,
        "user" => HELP,
        _ => DIM,
    };
    let mut text = format!("{style}{}{style:#}", message.role);
    if let (Some(prompt), Some(completion)) = (message.prompt_tokens, message.completion_tokens) {
        text.push_str(&format!(" {DIM}({prompt} + {completion} tokens){DIM:#}"));
    }
    text.push('\n');
    if let Some(reasoning) = &message.reasoning {
        text.push_str(&format!("{DIM}{}{DIM:#}\n", indent(reasoning, width, usize::MAX)));
    }
    if !message.content.is_empty() {
        let limit = if message.role == "tool" && !full { TOOL_LINES } else { usize::MAX };
        text.push_str(&format!("{}\n", indent(&message.content, width, limit)));
    }
    for call in &message.tool_calls {
        text.push_str(&format!("  {STRONG}→ {}{STRONG:#} {}\n", plain(&call.name), plain(&call.arguments)));
    }
    if let Some(error) = &message.error {
        text.push_str(&format!("  {ERROR}{}{ERROR:#}\n", plain(error)));
    }
    text
}

/// Wraps text at `width`, indented by two spaces, with at most `limit` lines.
fn indent(text: &str, width: usize, limit: usize) -> String {
    let text = plain(text);
    let mut lines: Vec<String> = text.lines().flat_map(|paragraph| wrapped(paragraph, 2, 2, width)).collect();
    let hidden = lines.len().saturating_sub(limit);
    lines.truncate(limit);
    let mut shown = lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n");
    if hidden > 0 {
        shown.push_str(&format!("\n  {DIM}… {hidden} more lines{DIM:#}"));
    }
    shown
}

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

/// Formats rank, title, score, ids and the beginning of a passage; all of it if `full`.
pub(crate) fn passage(rank: usize, found: &Found, width: usize, full: bool) -> String {
    let (title, body) = found.parts();
    let title = plain(if title.is_empty() { &found.document_id } else { title });
    let mut text =
        format!("{STRONG}{rank}. {title}{STRONG:#}  {DIM}{:.4} · {}{DIM:#}", found.score, plain(&found.chunk_id));
    let body = plain(body);
    let lines: Vec<String> = body.lines().flat_map(|paragraph| wrapped(paragraph, 3, 3, width)).collect();
    let shown = if full { lines.len() } else { lines.len().min(PASSAGE_LINES) };
    for line in &lines[..shown] {
        text.push_str(&format!("\n   {line}"));
    }
    if lines.len() > shown {
        text.push_str(&format!("\n   {DIM}… {} more lines{DIM:#}", lines.len() - shown));
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
