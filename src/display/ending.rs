//! The end of a run: summaries of the nodes, written files, and totals.

use searchmill_engine::RunSummary;

use super::quoted;
use super::style::{DIM, ERROR, GOOD, STRONG, WARN};
use super::table::duration;

/// Maximum number of summary lines shown per node.
const LINES: usize = 24;
/// Maximum number of nodes whose summaries are shown; further nodes are only named.
const NODES: usize = 12;

/// Formats the summaries of the nodes that ran, each cut to its first lines; for a matrix, only that of one node.
pub(super) fn summaries(told: &[(String, String)]) -> Vec<String> {
    let name = |node: &str| node.split_once('@').map_or(node, |(name, _)| name).to_owned();
    let mut groups: Vec<Vec<&(String, String)>> = Vec::new();
    for one in told {
        match groups.iter_mut().find(|group| name(&group[0].0) == name(&one.0)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    let first = |group: &[&(String, String)]| {
        let (node, text) = group[0];
        let others = match group {
            [] | [_] => String::new(),
            [_, (other, _)] => format!("\n{DIM}… and {other}: searchmill show {}{DIM:#}", quoted(other)),
            [_, (other, _), ..] => {
                let (more, name) = (group.len() - 1, name(node));
                format!("\n{DIM}… and {more} more of {name}@…: searchmill show {}{DIM:#}", quoted(other))
            }
        };
        format!("{}{others}", summary(node, text))
    };
    let mut shown: Vec<String> = groups.iter().take(NODES).map(|group| first(group)).collect();
    let rest: Vec<&str> = groups.iter().skip(NODES).map(|group| group[0].0.as_str()).collect();
    if let Some(first) = rest.first() {
        let (count, names) = (rest.len(), rest.iter().take(NODES).copied().collect::<Vec<_>>().join(", "));
        let more = if count > NODES { ", …" } else { "" };
        shown.push(format!("{DIM}… {count} more nodes have summaries ({names}{more}): searchmill show {first}{DIM:#}"));
    }
    shown
}

fn summary(node: &str, text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let kept = kept(&lines);
    let mut shown = format!("\n{STRONG}{node}{STRONG:#}\n{}", lines[..kept].join("\n").trim_end());
    if kept < lines.len() {
        shown.push_str(&format!("\n{DIM}… {} more lines: searchmill show {node}{DIM:#}", lines.len() - kept));
    }
    shown
}

/// Number of lines to show: all of a short text; of a long one whole blocks, if one is long enough.
fn kept(lines: &[&str]) -> usize {
    // A cut must hide more lines than its note takes.
    if lines.len() <= LINES + 2 {
        return lines.len();
    }
    let blocks = (LINES / 2..=LINES).rev().find(|end| lines[*end].trim().is_empty());
    blocks.unwrap_or(LINES)
}

/// Says how a loop ended, after which round, how many rounds do not run, and which round it hands on.
pub(super) fn of_loop(repeats: &str, (round, left_out, hands_on): (usize, usize, usize), reason: &str) -> String {
    let left_out = match left_out {
        0 => String::new(),
        1 => "; 1 round does not run".to_owned(),
        count => format!("; {count} rounds do not run"),
    };
    let hands_on = if hands_on == round { String::new() } else { format!("; it hands on round {hands_on}") };
    format!("{GOOD}ended{GOOD:#}    the loop `{repeats}` after round {round}: {reason}{left_out}{hands_on}")
}

/// Formats the last line of a run.
pub(super) fn balance(summary: &RunSummary) -> String {
    let mut parts = vec![format!("{} cached", summary.cached), format!("{} ran", summary.finished)];
    if summary.failed > 0 {
        parts.push(format!("{ERROR}{} failed{ERROR:#}", summary.failed));
    }
    if summary.held_back > 0 {
        parts.push(format!("{WARN}{} held back{WARN:#}", summary.held_back));
    }
    let checks = |count: usize, word: &str| {
        let (checks, verb) = if count == 1 { ("check", word.to_owned() + "s") } else { ("checks", word.to_owned()) };
        format!("{WARN}{count} {checks} {verb}{WARN:#}")
    };
    if summary.checks_held > 0 {
        parts.push(checks(summary.checks_held, "hold"));
    }
    if summary.checks_warned > 0 {
        parts.push(checks(summary.checks_warned, "warn"));
    }
    if summary.ended > 0 {
        parts.push(format!("{} ended", summary.ended));
    }
    if summary.skipped > 0 {
        parts.push(format!("{} skipped", summary.skipped));
    }
    let failed = |count: u64, word: &str| {
        let rows = if count == 1 { "row" } else { "rows" };
        format!("{WARN}{count} {rows} {word}{WARN:#} (see `searchmill show NODE --rejects`)")
    };
    if summary.dead_letters > 0 {
        parts.push(failed(summary.dead_letters, "failed"));
    }
    if summary.rejects > 0 {
        parts.push(failed(summary.rejects, "rejected"));
    }
    if summary.emptied > 0 {
        let nodes = if summary.emptied == 1 { "node" } else { "nodes" };
        parts.push(format!("{WARN}{} {nodes} rejected all rows{WARN:#}", summary.emptied));
    }
    if summary.calls > 0 {
        let tokens = summary.prompt_tokens + summary.completion_tokens;
        parts.push(format!("{} calls, {tokens} tokens", summary.calls));
    }
    if summary.cost > 0.0 {
        parts.push(super::money::cost(summary.cost, &summary.currency));
    }
    if summary.released > 0 {
        parts.push(format!("{} of middle rounds released", super::table::bytes(summary.released)));
    }
    let word = match summary {
        _ if summary.interrupted => format!("{WARN}interrupted{WARN:#}"),
        _ if summary.failed > 0 => format!("{ERROR}failed{ERROR:#}"),
        _ if summary.budget.is_some() && summary.skipped == 0 => format!("{WARN}done within the budget{WARN:#}"),
        _ if summary.budget.is_some() => format!("{WARN}stopped by the budget{WARN:#}"),
        _ => format!("{GOOD}done{GOOD:#}"),
    };
    let kept = "\nfinished results and rows are cached: the same command resumes from there";
    let rest = if summary.interrupted { kept } else { "" };
    format!("{word} in {}: {}{rest}", duration(summary.seconds), parts.join(" · "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn lines(count: usize, blank: &[usize]) -> String {
        (0..count).map(|line| if blank.contains(&line) { "\n".to_owned() } else { format!("line {line}\n") }).collect()
    }

    #[test]
    fn short_summaries_are_whole_and_long_ones_say_where_the_rest_is() {
        let whole = plain(&summary("world", &lines(26, &[])));
        assert_eq!(whole.trim_end(), format!("\nworld\n{}", lines(26, &[]).trim_end()));
        let cut = plain(&summary("scores", &lines(100, &[])));
        assert!(cut.contains("line 23\n… 76 more lines: searchmill show scores") && !cut.contains("line 24"), "{cut}");
        let block = plain(&summary("scores", &lines(100, &[1, 20, 40])));
        assert!(block.ends_with("line 19\n… 80 more lines: searchmill show scores"), "{block}");
    }

    #[test]
    fn a_matrix_has_one_table() {
        let mut told: Vec<_> = (0..12).map(|size| (format!("scores@size={size}"), "F1 0.5\n".to_owned())).collect();
        told.push(("report".to_owned(), "fine\n".to_owned()));
        let shown: Vec<String> = summaries(&told).iter().map(|text| plain(text)).collect();
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(shown[0].starts_with("\nscores@size=0\nF1 0.5\n… and 11 more of scores@…"), "{}", shown[0]);
        assert_eq!(shown[0].matches("F1").count(), 1);
    }

    #[test]
    fn many_summaries_are_named() {
        let told: Vec<_> = (0..30).map(|node| (format!("n{node}"), "fine\n".to_owned())).collect();
        let shown = summaries(&told);
        assert_eq!(shown.len(), NODES + 1);
        let last = plain(&shown[NODES]);
        assert!(last.starts_with("… 18 more nodes have summaries (n12, n13,") && last.contains("n23, …"), "{last}");
    }
}
