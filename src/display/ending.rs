//! The end of a run: summaries of the nodes, written files, and totals.

use searchmill_engine::operator::FailedCalls;
use searchmill_engine::{NodeId, RejectReason, Round, RunSummary};

use super::quoted;
use super::style::{DIM, ERROR, GOOD, STRONG, WARN};
use super::table::duration;

/// Number of summary lines up to which all summaries are shown whole.
const WHOLE: usize = 400;
/// Maximum number of summary lines shown per node otherwise, but for the last one.
const LINES: usize = 24;
/// Maximum number of nodes whose summaries are shown; further nodes are only named.
const NODES: usize = 12;

/// Maximum length of a reject reason, in characters.
const REASON: usize = 240;

/// Formats reasons with the number of rows of each: `31 × refused: …; 6 × timeout: …`. The number of a single reason
/// for all `rows` is left out.
pub(super) fn reasons(reasons: &[RejectReason], rows: u64) -> String {
    let mut shown = Vec::with_capacity(reasons.len());
    for reason in reasons {
        // Answers of servers have line breaks and indents: all reasons are one line.
        let text = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        let cut = text.char_indices().nth(REASON).map_or(text.len(), |(end, _)| end);
        let count = if reason.rows == rows { String::new() } else { format!("{} × ", reason.rows) };
        shown.push(format!("{count}{}{}", &text[..cut], if cut < text.len() { "…" } else { "" }));
    }
    shown.join("; ")
}

/// Returns the calls of models that were answered, and those of other services.
pub(super) fn answered(calls: u64, of_services: u64, failed: &FailedCalls) -> (u64, u64) {
    let failed_models = failed.failed_calls.saturating_sub(failed.failed_service_calls);
    let of_models = calls.saturating_sub(of_services);
    (of_models.saturating_sub(failed_models), of_services.saturating_sub(failed.failed_service_calls))
}

/// Formats calls that ask no model.
pub(super) fn services(calls: u64) -> String {
    let word = if calls == 1 { "call" } else { "calls" };
    format!("{} {word} of tools and functions", super::money::count(calls))
}

/// Formats attempts that failed: `40 calls failed · 21 retried: 11 × 500, 10 × 429`.
pub(super) fn attempts(failed: &FailedCalls) -> Vec<String> {
    let mut parts = Vec::new();
    if failed.failed_calls > 0 {
        let calls = if failed.failed_calls == 1 { "call" } else { "calls" };
        parts.push(format!("{} {calls} failed", failed.failed_calls));
    }
    let mut labels: Vec<(&String, u64)> = failed.retried.iter().map(|(label, count)| (label, *count)).collect();
    labels.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let retried: u64 = labels.iter().map(|(_, count)| count).sum();
    if retried > 0 {
        let labels: Vec<String> = labels.iter().map(|(label, count)| format!("{count} × {label}")).collect();
        parts.push(format!("{retried} retried: {}", labels.join(", ")));
    }
    parts
}

/// Formats the summaries of the nodes that ran; for a matrix, only that of one node. All are whole if that is not too
/// much to read; otherwise the last one is, and the others are cut to their first lines.
pub(super) fn summaries(told: &[(NodeId, String)]) -> Vec<String> {
    let mut groups: Vec<Vec<&(NodeId, String)>> = Vec::new();
    for one in told {
        match groups.iter_mut().find(|group| group[0].0.name() == one.0.name()) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    let total: usize = groups.iter().map(|group| group[0].1.lines().count()).sum();
    let last = groups.len().min(NODES).saturating_sub(1);
    let mut shown = Vec::new();
    for (place, group) in groups.iter().enumerate().take(NODES) {
        let (node, text) = group[0];
        let others = match group.as_slice() {
            [] | [_] => String::new(),
            [_, (other, _)] => format!("\n{DIM}… and {other}: searchmill show {}{DIM:#}", quoted(other)),
            [_, (other, _), ..] => {
                let (more, name) = (group.len() - 1, node.name());
                format!("\n{DIM}… and {more} more of {name}@…: searchmill show {}{DIM:#}", quoted(other))
            }
        };
        let most = if total <= WHOLE || place == last { usize::MAX } else { LINES };
        shown.push(format!("{}{others}", summary(node, text, most)));
    }
    let rest: Vec<&str> = groups.iter().skip(NODES).map(|group| group[0].0.as_str()).collect();
    if let Some(first) = rest.first() {
        let (count, names) = (rest.len(), rest.iter().take(NODES).copied().collect::<Vec<_>>().join(", "));
        let more = if count > NODES { ", …" } else { "" };
        shown.push(format!("{DIM}… {count} more nodes have summaries ({names}{more}): searchmill show {first}{DIM:#}"));
    }
    shown
}

fn summary(node: &str, text: &str, most: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    // A cut must hide more lines than its note takes.
    let kept = if lines.len() <= most.saturating_add(2) {
        lines.len()
    } else {
        // Whole blocks, if one is long enough.
        let block = (most / 2..=most).rev().find(|end| lines[*end].trim().is_empty());
        block.unwrap_or(most)
    };
    let mut shown = format!("\n{STRONG}{node}{STRONG:#}\n{}", lines[..kept].join("\n").trim_end());
    if kept < lines.len() {
        shown.push_str(&format!("\n{DIM}… {} more lines: searchmill show {node}{DIM:#}", lines.len() - kept));
    }
    shown
}

/// Says how a loop ended, after which round, how many rounds do not run, and which round it hands on.
pub(super) fn of_loop(repeats: &str, last: Round, left_out: usize, hands_on: Round, reason: &str) -> String {
    let left_out = match left_out {
        0 => String::new(),
        1 => "; 1 round does not run".to_owned(),
        count => format!("; {count} rounds do not run"),
    };
    let hands_on = if hands_on == last { String::new() } else { format!("; it hands on round {hands_on}") };
    format!("{GOOD}ended{GOOD:#}    the loop `{repeats}` after round {last}: {reason}{left_out}{hands_on}")
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
    for (count, verb) in [(summary.checks_held, "hold"), (summary.checks_warned, "warn")] {
        match count {
            0 => {}
            1 => parts.push(format!("{WARN}1 check {verb}s{WARN:#}")),
            count => parts.push(format!("{WARN}{count} checks {verb}{WARN:#}")),
        }
    }
    if summary.ended > 0 {
        parts.push(format!("{} ended", summary.ended));
    }
    if summary.skipped > 0 {
        parts.push(format!("{} skipped", summary.skipped));
    }
    parts.extend(lost_rows(summary));
    if summary.emptied > 0 {
        let nodes = if summary.emptied == 1 { "node" } else { "nodes" };
        parts.push(format!("{WARN}{} {nodes} rejected all rows{WARN:#}", summary.emptied));
    }
    let (asked, of_services) = answered(summary.calls, summary.service_calls, &summary.failed_calls);
    if summary.calls > summary.service_calls {
        let tokens = summary.prompt_tokens + summary.completion_tokens;
        parts.push(format!("{asked} calls, {tokens} tokens"));
    }
    if summary.service_calls > 0 {
        parts.push(services(of_services));
    }
    parts.extend(attempts(&summary.failed_calls));
    if summary.cost > 0.0 {
        parts.push(super::money::cost(summary.cost, &summary.currency));
    }
    if summary.released > 0 {
        parts.push(format!("{} of middle rounds released", super::table::bytes(summary.released)));
    }
    // The first that holds: an interruption outweighs failures, and these outweigh the budget.
    let word = match summary {
        _ if summary.interrupted => format!("{WARN}interrupted{WARN:#}"),
        _ if summary.failed > 0 => format!("{ERROR}failed{ERROR:#}"),
        _ if summary.budget.is_some() && summary.skipped == 0 => format!("{WARN}done within the budget{WARN:#}"),
        _ if summary.budget.is_some() => format!("{WARN}stopped by the budget{WARN:#}"),
        _ if summary.dead_letters + summary.rejects > 0 => format!("{WARN}done with rejected rows{WARN:#}"),
        _ if summary.exit_code() != 0 => format!("{WARN}done{WARN:#}"),
        _ => format!("{GOOD}done{GOOD:#}"),
    };
    let kept = "\nfinished results and rows are cached: the same command resumes from there";
    let rest = if summary.interrupted { kept } else { "" };
    format!("{word} in {}: {}{rest}", duration(summary.seconds), parts.join(" · "))
}

/// Formats the rows of this run that failed or were rejected, and the most frequent reasons.
fn lost_rows(summary: &RunSummary) -> Vec<String> {
    let counts = [(summary.dead_letters, "failed"), (summary.rejects, "rejected")];
    let mut parts = Vec::new();
    for (count, word) in counts.into_iter().filter(|(count, _)| *count > 0) {
        let rows = if count == 1 { "row" } else { "rows" };
        parts.push(format!("{WARN}{count} {rows} {word}{WARN:#}"));
    }
    let reasons = reasons(&summary.reject_reasons, summary.dead_letters + summary.rejects);
    if let Some(last) = parts.last_mut() {
        let reasons = if reasons.is_empty() { reasons } else { format!("{reasons}; ") };
        last.push_str(&format!(" ({reasons}see `searchmill show NODE --rejects`)"));
    }
    parts
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
        let whole = plain(&summary("world", &lines(26, &[]), LINES));
        assert_eq!(whole.trim_end(), format!("\nworld\n{}", lines(26, &[]).trim_end()));
        let cut = plain(&summary("scores", &lines(100, &[]), LINES));
        assert!(cut.contains("line 23\n… 76 more lines: searchmill show scores") && !cut.contains("line 24"), "{cut}");
        let block = plain(&summary("scores", &lines(100, &[1, 20, 40]), LINES));
        assert!(block.ends_with("line 19\n… 80 more lines: searchmill show scores"), "{block}");
        let told: Vec<_> = (0..5).map(|node| (format!("n{node}").into(), lines(100, &[]))).collect();
        let counts = |told: &[(NodeId, String)]| -> Vec<usize> {
            summaries(told).iter().map(|text| plain(text).matches("line ").count()).collect()
        };
        assert_eq!(counts(&told[..4]), [100; 4]);
        assert_eq!(counts(&told), [24, 24, 24, 24, 100], "the last one is whole");
    }

    #[test]
    fn a_matrix_has_one_table() {
        let mut told: Vec<_> =
            (0..12).map(|size| (format!("scores@size={size}").into(), "F1 0.5\n".to_owned())).collect();
        told.push(("report".into(), "fine\n".to_owned()));
        let shown: Vec<String> = summaries(&told).iter().map(|text| plain(text)).collect();
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(shown[0].starts_with("\nscores@size=0\nF1 0.5\n… and 11 more of scores@…"), "{}", shown[0]);
        assert_eq!(shown[0].matches("F1").count(), 1);
    }

    #[test]
    fn many_summaries_are_named() {
        let told: Vec<_> = (0..30).map(|node| (format!("n{node}").into(), "fine\n".to_owned())).collect();
        let shown = summaries(&told);
        assert_eq!(shown.len(), NODES + 1);
        let last = plain(&shown[NODES]);
        assert!(last.starts_with("… 18 more nodes have summaries (n12, n13,") && last.contains("n23, …"), "{last}");
    }

    #[test]
    fn rejected_rows_are_no_plain_success_and_say_why() {
        let reason = |rows, kind: &str, message: &str| RejectReason {
            rows,
            kind: kind.to_owned(),
            message: message.to_owned(),
            place: None,
        };
        let failed_calls = FailedCalls {
            failed_calls: 40,
            failed_service_calls: 3,
            retried: [("429".into(), 10), ("500".into(), 11)].into_iter().collect(),
        };
        let summary = RunSummary {
            finished: 2,
            dead_letters: 8,
            rejects: 1,
            reject_reasons: vec![reason(6, "refused", "no"), reason(3, "timeout", "late")],
            calls: 1146,
            service_calls: 1009,
            prompt_tokens: 5,
            failed_calls,
            ..RunSummary::default()
        };
        let told = plain(&balance(&summary));
        assert_eq!(
            told,
            "done with rejected rows in 0 ms: 0 cached · 2 ran · 8 rows failed · 1 row rejected (6 × refused: no; 3 × \
             timeout: late; see `searchmill show NODE --rejects`) · 100 calls, 5 tokens · 1,006 calls of tools and \
             functions · 40 calls failed · 21 retried: 11 × 500, 10 × 429"
        );
        assert!(!balance(&summary).starts_with(&GOOD.to_string()));
        assert!(balance(&RunSummary::default()).starts_with(&GOOD.to_string()));
    }
}
