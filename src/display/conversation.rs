//! Formats a trajectory as a readable conversation.

use std::fmt::Write;

use searchmill_schemas::{Message, Trajectory};

use super::safe::plain;
use super::style::{DIM, ERROR, GOOD, HELP, STRONG, WARN};
use super::wrap::wrapped;

/// Maximum number of lines shown of a tool response.
const TOOL_LINES: usize = 12;

/// `added`: values of columns beyond the kind, such as `reward`; may be empty. Long tool responses are cut, unless
/// `full`.
pub(crate) fn conversation(trajectory: &Trajectory, added: &str, width: usize, full: bool) -> String {
    let mut text = format!("{STRONG}━━ {}{STRONG:#}", plain(&trajectory.id));
    let model = plain(trajectory.model.as_deref().unwrap_or("-"));
    writeln!(
        text,
        "  {DIM}policy {} · model {model} · {} turns · {} tool calls · {}{DIM:#}",
        trajectory.policy, trajectory.turns, trajectory.tool_calls, trajectory.finish_reason
    )
    .unwrap_or_default();
    for message in &trajectory.messages {
        text.push_str(&render(message, width, full));
    }
    let golden = trajectory.golden_answers.join(" | ");
    let golden = plain(&golden);
    writeln!(text, "{STRONG}prediction{STRONG:#} {}   {DIM}golden {golden}{DIM:#}", plain(&trajectory.prediction))
        .unwrap_or_default();
    if !added.is_empty() {
        writeln!(text, "{DIM}{}{DIM:#}", plain(added)).unwrap_or_default();
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
        write!(text, " {DIM}({prompt} + {completion} tokens){DIM:#}").unwrap_or_default();
    }
    text.push('\n');
    if let Some(reasoning) = &message.reasoning {
        writeln!(text, "{DIM}{}{DIM:#}", indent(reasoning, width, usize::MAX)).unwrap_or_default();
    }
    if !message.content.is_empty() {
        let limit = if message.role == "tool" && !full { TOOL_LINES } else { usize::MAX };
        writeln!(text, "{}", indent(&message.content, width, limit)).unwrap_or_default();
    }
    for call in &message.tool_calls {
        writeln!(text, "  {STRONG}→ {}{STRONG:#} {}", plain(&call.name), plain(&call.arguments)).unwrap_or_default();
    }
    if let Some(error) = &message.error {
        writeln!(text, "  {ERROR}{}{ERROR:#}", plain(error)).unwrap_or_default();
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
        write!(shown, "\n  {DIM}… {hidden} more lines{DIM:#}").unwrap_or_default();
    }
    shown
}
