//! Summary tables for the terminal, in DeepSearch-RL's layout, with intervals and baselines next to the scores.

use searchmill_text::answer_metrics::AnswerScores;

use super::dynamics::{ByOutcome, Distribution, Tokens};
use super::family::Family;
use super::figures::Evaluation;
use super::measure::Group;
use super::verdicts::is_of_verdicts;
use crate::shared::html::table::{NOTHING, Table, estimate_cells, number, percent, share, value_cell};
use crate::shared::statistics::{Spread, named};

/// Display names of the answer metrics, in the order of [`AnswerScores::NAMES`].
const METRIC_TITLES: [&str; 5] = ["Exact match (EM)", "F1", "Accuracy (substring)", "Precision", "Recall"];

/// Title of the first table.
pub(crate) const HEADLINE: &str = "Scores and No-Retrieval Baselines";

/// Renders all notes and tables of an evaluation.
pub(crate) fn summary(evaluation: &Evaluation) -> String {
    let mut out = format!("{}\n\n", evaluation.title);
    let notes = notes(evaluation);
    if !notes.is_empty() {
        out += &(notes.join("\n") + "\n\n");
    }
    for table in tables(evaluation) {
        out += &(table.render() + "\n");
    }
    out
}

/// The tables, most important first; tables without data are omitted.
pub(crate) fn tables(evaluation: &Evaluation) -> Vec<Table> {
    let mut tables = Vec::new();
    if evaluation.has_answers() {
        tables.push(headline(evaluation));
    }
    tables.push(own(evaluation));
    tables.extend(Family::ALL.map(|family| of_family(evaluation, family)));
    tables.push(verdicts(evaluation));
    // Tables of what was not asked for have no rows.
    tables.retain(|table| !table.rows.is_empty());
    tables.extend(retrieval(evaluation));
    if evaluation.has_trajectories {
        tables.push(dataset(evaluation));
    }
    // All trajectories may lack golden answers; then there are no figures of conversations.
    let any_trajectory = evaluation.dynamics.total.all > 0;
    if any_trajectory {
        let mut table = Table::new("Performance Metrics", &["Mean ± std", "All", "Success", "Failure"]);
        for (title, spread) in METRIC_TITLES.iter().zip(&evaluation.dynamics.metrics) {
            table.row(spread_row(title, spread, 3));
        }
        tables.push(table);
    }
    if evaluation.has_answers() {
        for (column, groups) in evaluation.groupings() {
            tables.push(grouped(column, groups));
        }
    }
    if any_trajectory {
        tables.extend(conversation(evaluation));
    }
    tables
}

/// What golden answers such as `The` or `A` mean for the metrics.
const EMPTIED: &str = "rows have golden answers of nothing but punctuation and articles: as in FlashRAG, only a prediction \
    that is empty after normalisation equals them.";

/// Notes on what the figures exclude, and why.
pub(crate) fn notes(evaluation: &Evaluation) -> Vec<String> {
    let kinds: Vec<_> = evaluation.failed_rollouts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let failed = format!("failed {} are not scored ({}).", failing(evaluation), kinds.join(", "));
    let [no_evidence, no_hits, strangers] = match &evaluation.retrieval {
        Some(lists) => [lists.without_evidence, lists.without_hits, lists.strangers],
        None => [0; 3],
    };
    let counted = [
        ("", evaluation.failed(), failed.as_str()),
        ("", evaluation.dynamics.cut, "rollouts have a message that the limit of tokens cut (`max_tokens`)."),
        ("", evaluation.tool_errors.unwrap_or_default(), "calls of tools failed; the model read an error."),
        ("", evaluation.without_gold, "rows without golden answers are not scored."),
        ("", evaluation.emptied_gold, EMPTIED),
        ("", evaluation.unanswered, "questions have no trajectory."),
        ("Retrieval: ", no_evidence, "questions without gold evidence are left out."),
        ("Retrieval: ", no_hits, "questions have no hits and score 0."),
        ("Retrieval: ", strangers, "hits of unknown questions are ignored."),
    ];
    let mut notes = Vec::new();
    for (part, count, note) in counted {
        if count > 0 {
            notes.push(format!("{part}{count} {note}"));
        }
    }
    for (name, count) in &evaluation.without_verdict {
        if *count > 0 {
            notes.push(format!("{count} rows have no verdict in `{name}`; its figures omit them."));
        }
    }
    notes
}

/// What the rejects are of: with verdicts, also answers that a judge did not judge.
fn failing(evaluation: &Evaluation) -> &'static str {
    if evaluation.without_verdict.is_empty() { "rollouts" } else { "rollouts and judgements" }
}

fn dataset(evaluation: &Evaluation) -> Table {
    let total = &evaluation.dynamics.total;
    let mut table = Table::new("Dataset Summary", &["", "Count", "Share"]);
    let counts = [
        ("Total trajectories".to_owned(), total.all),
        (format!("Success (F1 ≥ {})", evaluation.threshold), total.success),
        (format!("Failure (F1 < {})", evaluation.threshold), total.failure),
        ("Success (EM = 1.0)".to_owned(), evaluation.dynamics.exact),
    ];
    for (name, count) in counts {
        table.row([name, count.to_string(), share(count, total.all)]);
    }
    table.row(["Questions".into(), evaluation.questions().to_string(), String::new()]);
    let failed = format!("Failed {}, not scored", failing(evaluation));
    table.row([failed, evaluation.failed().to_string(), String::new()]);
    table
}

/// The headline: each metric with its interval and both baselines.
fn headline(evaluation: &Evaluation) -> Table {
    let all = evaluation.all();
    let interval = format!("{} interval", percent(evaluation.bootstrap.confidence));
    let mut table = Table::new(HEADLINE, &["Metric", "Score", &interval, "Best constant", "Majority by type"]);
    for (title, name) in METRIC_TITLES.iter().zip(AnswerScores::NAMES) {
        let [score, range] = estimate_cells(all.measure(name));
        let [constant, majority] = [0, 1].map(|which| value_cell(all.baseline(which, name)));
        table.row([(*title).to_owned(), score, range, constant, majority]);
    }
    for (name, estimate) in &all.measures {
        let title = match name.as_str() {
            "success" => "Success",
            "grounded" => "Grounded",
            "f1_over_best_constant" => "F1 over best constant",
            "f1_over_majority_by_type" => "F1 over majority by type",
            "seen_document_recall" => "Gold documents seen",
            "seen_all_documents" => "All gold documents seen",
            name if name.starts_with("pass@") => name,
            // The other measures have tables of their own.
            _ => continue,
        };
        let [score, range] = estimate_cells(Some(*estimate));
        table.row([title.to_owned(), score, range, NOTHING.into(), NOTHING.into()]);
    }
    table
}

/// The metrics of another family; no rows if it was not asked for.
fn of_family(evaluation: &Evaluation, family: Family) -> Table {
    let interval = format!("{} interval", percent(evaluation.bootstrap.confidence));
    let mut table = Table::new(family.title(), &["Metric", "Score", &interval]);
    for (name, estimate) in &evaluation.all().measures {
        if name.strip_prefix(family.name()).is_some_and(|rest| rest.starts_with('/')) {
            let [score, range] = estimate_cells(Some(*estimate));
            // The name in R1-Searcher's tables.
            let title = if name == "r1-searcher/cover_em_1" { format!("{name} (ACC_R)") } else { name.clone() };
            table.row([title, score, range]);
        }
    }
    table
}

/// Verdicts of judges with the rows that they are shares of.
fn verdicts(evaluation: &Evaluation) -> Table {
    let interval = format!("{} interval", percent(evaluation.bootstrap.confidence));
    let mut table = Table::new("Verdicts", &["Verdict", "Score", &interval, "Rows", "Without verdict"]);
    let all = evaluation.all();
    let has_r1_searcher = all.measures.iter().any(|(name, _)| name.starts_with("r1-searcher/"));
    for (name, estimate) in &all.measures {
        if !is_of_verdicts(name) {
            continue;
        }
        let [score, range] = estimate_cells(Some(*estimate));
        let without = all.rows - estimate.count;
        // The name in R1-Searcher's tables, beside its other metrics.
        let is_acc_l = name.starts_with("verdict/") && has_r1_searcher;
        let title = if is_acc_l { format!("{name} (ACC_L)") } else { name.clone() };
        table.row([title, score, range, estimate.count.to_string(), without.to_string()]);
    }
    table
}

/// The user's measures.
fn own(evaluation: &Evaluation) -> Table {
    let interval = format!("{} interval", percent(evaluation.bootstrap.confidence));
    let mut table = Table::new("Measures", &["Measure", "Value", &interval, "Rows", "Definition"]);
    for (name, measure) in &evaluation.own {
        let Some(estimate) = evaluation.all().measure(name) else { continue };
        // Not `Estimate::interval`: a measure of the user may need other digits than a score.
        let range = match (estimate.low, estimate.high) {
            (Some(low), Some(high)) => format!("{} – {}", number(low), number(high)),
            _ => NOTHING.to_owned(),
        };
        table.row([name.clone(), number(estimate.value), range, estimate.count.to_string(), measure.about()]);
    }
    table
}

/// One table per grouping.
fn grouped(column: &str, groups: &[Group]) -> Table {
    let header = [column, "Rows", "F1", "Interval", "EM", "Best constant F1", "Majority by type F1"];
    let mut table = Table::new(&format!("F1 by {column}"), &header);
    for group in groups {
        let [score, range] = estimate_cells(group.measure("f1"));
        let exact = value_cell(group.measure("em"));
        let [constant, majority] = [0, 1].map(|which| value_cell(group.baseline(which, "f1")));
        table.row([group.label.clone(), group.rows.to_string(), score, range, exact, constant, majority]);
    }
    table
}

/// Retrieval figures, one column per group.
fn retrieval(evaluation: &Evaluation) -> Option<Table> {
    let (all, types) = evaluation.retrieval.as_ref()?.groups.split_first()?;
    if all.measures.is_empty() {
        return None;
    }
    let mut header = vec!["Metric", "All", "Interval"];
    header.extend(types.iter().map(|group| group.name.trim_start_matches("question_type=")));
    let mut table = Table::new("Retrieval", &header);
    for (name, estimate) in &all.measures {
        let [score, range] = estimate_cells(Some(*estimate));
        let mut cells = vec![name.clone(), score, range];
        cells.extend(types.iter().map(|group| value_cell(named(&group.measures, name))));
        table.row(cells);
    }
    Some(table)
}

fn conversation(evaluation: &Evaluation) -> Vec<Table> {
    let dynamics = &evaluation.dynamics;
    let mut flow = Table::new("Conversation Dynamics", &["Mean ± std", "All", "Success", "Failure"]);
    flow.row(spread_row("Avg turns (rounds)", &dynamics.turns, 2));
    flow.row(spread_row("Avg tool calls", &dynamics.tool_calls, 2));
    let [all, success, failure] = dynamics.tool_call_total.parts().map(ToString::to_string);
    flow.row(["Total tool calls".to_owned(), all, success, failure]);
    if dynamics.reasoning_rows.all > 0 {
        flow.row(spread_row("Avg reasoning length (characters)", &dynamics.reasoning, 0));
    }
    vec![
        distribution_table("Finish Reasons", "Reason", &dynamics.finish_reasons),
        flow,
        token_table("Token Usage (Last Turn)", &dynamics.last_tokens),
        token_table("Token Usage (All Turns - Cumulative)", &dynamics.all_tokens),
        distribution_table("Turn Distribution (rounds)", "Turns", &dynamics.turn_distribution),
        distribution_table("Tool Calls Distribution", "Tool calls", &dynamics.tool_call_distribution),
    ]
}

fn token_table(title: &str, tokens: &Tokens) -> Table {
    let mut table = Table::new(title, &["Mean ± std", "All", "Success", "Failure"]);
    table.row(spread_row("Total", &tokens.total, 0));
    table.row(spread_row("Prompt", &tokens.prompt, 0));
    table.row(spread_row("Completion", &tokens.completion, 0));
    table
}

/// Each value with `count (share of its group)` for all, success and failure; a dash for a group without rows.
fn distribution_table<K: Ord + ToString>(title: &str, column: &str, counts: &ByOutcome<Distribution<K>>) -> Table {
    let mut table = Table::new(title, &[column, "All", "Success", "Failure"]);
    for value in counts.all.keys() {
        let name = value.to_string();
        let mut cells = vec![if name.is_empty() { NOTHING.to_owned() } else { name }];
        for part in counts.parts() {
            let (count, whole): (usize, usize) = (part.get(value).copied().unwrap_or(0), part.values().sum());
            cells.push(if whole == 0 { NOTHING.to_owned() } else { format!("{count} ({})", share(count, whole)) });
        }
        table.row(cells);
    }
    table
}

fn spread_row(name: &str, spread: &ByOutcome<Spread>, decimals: usize) -> Vec<String> {
    let mut cells = vec![name.to_owned()];
    for part in spread.parts() {
        cells.push(match (part.mean, part.stdev) {
            (Some(mean), Some(stdev)) => format!("{mean:.decimals$} ± {stdev:.decimals$}"),
            _ => NOTHING.to_owned(),
        });
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::html::plot::Estimate;

    #[test]
    fn a_group_without_rows_has_dashes_and_a_constant_one_value() {
        let some = Spread::of([0.5, 1.0]);
        let spread = ByOutcome { all: some, success: some, failure: Spread::of([]) };
        assert_eq!(spread_row("F1", &spread, 2), ["F1", "0.75 ± 0.35", "0.75 ± 0.35", "–"]);
        let counts = ByOutcome { all: [(3, 2)].into(), success: [(3, 2)].into(), failure: Distribution::new() };
        assert_eq!(distribution_table("", "", &counts).rows, [["3", "2 (100.0%)", "2 (100.0%)", "–"]]);
        let estimate = |low, high| Estimate { value: 1.0, low: Some(low), high: Some(high), count: 9 };
        assert_eq!(estimate_cells(Some(estimate(1.0, 1.0))), ["1.000", "1.000"]);
        assert_eq!(estimate_cells(Some(estimate(0.9, 1.0))), ["1.000", "0.900 – 1.000"]);
        assert_eq!(estimate_cells(Some(Estimate { count: 1, ..Estimate::default() })), ["0.000", "–"]);
    }
}
