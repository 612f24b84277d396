//! `report.html`: one self-contained page, light or dark as the reader's system is.

use std::fmt::Write;

use super::conversation;
use super::dynamics::{ByOutcome, Distribution};
use super::figures::Evaluation;
use super::measure::Group;
use super::plot::{Plot, Series, Unit, escape};
use super::scored::GroupBy;
use super::terminal::{HEADLINE, Table, notes, percent, share, tables};
use crate::text::answer_metrics::AnswerScores;

const STYLE: &str = include_str!("page.css");

/// Colours of score, best constant and majority; of all, success and failure.
const COMPARED: [&str; 3] = ["c1", "c2", "c3"];
const OUTCOMES: [(&str, &str); 3] = [("All", "c1"), ("Success", "c4"), ("Failure", "c5")];

/// The page.
pub(crate) fn render(evaluation: &Evaluation) -> String {
    let title = escape(&evaluation.title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{STYLE}</style></head><body><main>\
         <h1>{title}</h1>"
    );
    out.push_str(&cards(evaluation));
    out.push_str(&list(&notes(evaluation)));
    let (first, others): (Vec<Table>, Vec<Table>) =
        tables(evaluation).into_iter().partition(|table| table.title == HEADLINE);
    out.extend(first.iter().map(html_table));
    out.push_str(&plots(evaluation));
    out.push_str("<h2>Tables</h2><div class=\"tables\">");
    out.extend(others.iter().map(html_table));
    out.push_str("</div>");
    out.push_str(&conversations(evaluation));
    out.push_str(&method(evaluation));
    out.push_str("</main></body></html>\n");
    out
}

/// The figures that a reader looks for first.
fn cards(evaluation: &Evaluation) -> String {
    let mut cards = Vec::new();
    let all = evaluation.all();
    let total = &evaluation.dynamics.total;
    for (name, title) in [("f1", "F1"), ("em", "Exact match")] {
        if let Some(estimate) = all.measure(name) {
            let range = estimate.low.zip(estimate.high).map(|(low, high)| format!("{low:.3} – {high:.3}"));
            cards.push((title, format!("{:.3}", estimate.value), range.unwrap_or_default()));
        }
    }
    if evaluation.has_trajectories {
        cards.push(("Success", share(total.success, total.all), format!("{} of {}", total.success, total.all)));
    }
    if let Some(estimate) = all.measure("grounded") {
        cards.push(("Grounded", format!("{:.1}%", estimate.value * 100.0), "evidence or answer seen".into()));
    }
    for (which, title) in [(0, "Best constant"), (1, "Majority by type")] {
        if let Some(estimate) = all.baseline(which, "f1").filter(|estimate| estimate.count > 0) {
            let detail = if which == 0 {
                format!("F1 of “{}”", evaluation.baselines.constant)
            } else {
                "F1, no retrieval".into()
            };
            cards.push((title, format!("{:.3}", estimate.value), detail));
        }
    }
    if let Some((name, estimate)) = evaluation.retrieval.as_ref().and_then(|r| r.groups.first()?.measures.last()) {
        cards.push((
            "Retrieval",
            format!("{:.3}", estimate.value),
            name.replace("all_found@", "all documents in top "),
        ));
    }
    let card = |(title, value, detail): &(&str, String, String)| {
        format!(
            "<div class=\"card\"><span>{}</span><b>{}</b><small>{}</small></div>",
            escape(title),
            escape(value),
            escape(detail)
        )
    };
    format!("<div class=\"cards\">{}</div>", cards.iter().map(card).collect::<String>())
}

fn plots(evaluation: &Evaluation) -> String {
    let mut figures = Vec::new();
    if evaluation.questions() > 0 {
        figures.push(score_plot(evaluation));
        figures.extend(group_plots(evaluation));
    }
    if evaluation.dynamics.total.all > 0 {
        let dynamics = &evaluation.dynamics;
        figures.push(histogram_plot(evaluation));
        figures.push(distribution_plot("Rounds", "model calls", &dynamics.round_distribution));
        figures.push(distribution_plot("Tool calls", "tool calls", &dynamics.tool_call_distribution));
        figures.push(token_plot(evaluation));
    }
    figures.extend(recall_plot(evaluation));
    if figures.is_empty() {
        return "<p>Nothing was scored.</p>".to_owned();
    }
    format!("<div class=\"plots\">{}</div>", figures.concat())
}

/// Scores and baselines of several groups, as three series.
fn compared<'a>(cells: impl Iterator<Item = (&'a Group, &'a str)> + Clone) -> Vec<Series> {
    let score = cells.clone().map(|(group, name)| group.measure(name)).collect();
    let baseline = |which: usize| {
        let values = cells.clone().map(move |(group, name)| group.baseline(which, name));
        values
            .map(|estimate| estimate.map(|estimate| super::statistics::Estimate { low: None, high: None, ..estimate }))
            .collect()
    };
    let values: [Vec<_>; 3] = [score, baseline(0), baseline(1)];
    let names = ["Score", "Best constant", "Majority by type"];
    let series = names.iter().zip(COMPARED).zip(values);
    let made = series.map(|((name, class), values)| Series { name: (*name).to_owned(), class, values });
    made.filter(|series| series.values.iter().any(Option::is_some)).collect()
}

fn score_plot(evaluation: &Evaluation) -> String {
    let names = AnswerScores::NAMES;
    Plot {
        title: "Scores beside no-retrieval baselines".into(),
        categories: names.map(str::to_owned).to_vec(),
        series: compared(names.into_iter().map(|name| (evaluation.all(), name))),
        unit: Unit::Score,
        x_title: format!("metric ({} intervals)", percent(evaluation.bootstrap.confidence)),
    }
    .bars()
}

/// More groups than this are left to the table.
const PLOTTED_GROUPS: usize = 24;

fn group_plots(evaluation: &Evaluation) -> Vec<String> {
    let mut columns: Vec<GroupBy> = evaluation.groups.iter().filter_map(|group| group.column).collect();
    columns.dedup();
    let plot = |column: GroupBy| {
        let groups: Vec<&Group> = evaluation.groups.iter().filter(|group| group.column == Some(column)).collect();
        let drawn = Plot {
            title: format!("F1 by {}", column.name()),
            categories: groups.iter().map(|group| group.label.clone()).collect(),
            series: compared(groups.iter().map(|group| (*group, "f1"))),
            unit: Unit::Score,
            x_title: column.name().replace('_', " "),
        };
        (groups.len() <= PLOTTED_GROUPS).then(|| drawn.bars())
    };
    columns.into_iter().filter_map(plot).collect()
}

fn histogram_plot(evaluation: &Evaluation) -> String {
    let bins = evaluation.dynamics.f1_histogram;
    let label = |bin: usize| format!(".{bin}–{}", if bin == 9 { "1".into() } else { format!(".{}", bin + 1) });
    Plot {
        title: "F1 of the trajectories".into(),
        categories: (0..10).map(label).collect(),
        series: vec![Series::plain("Trajectories", "c1", bins.map(|count| count as f64))],
        unit: Unit::Count,
        x_title: format!("F1 (success from {})", evaluation.threshold),
    }
    .bars()
}

fn distribution_plot(title: &str, x_title: &str, counts: &ByOutcome<Distribution>) -> String {
    let values: Vec<i32> = counts.all.keys().copied().collect();
    let series = OUTCOMES.iter().zip(counts.parts()).map(|((name, class), part)| {
        let whole: usize = part.values().sum();
        let share = |value: &i32| part.get(value).copied().unwrap_or(0) as f64 / whole.max(1) as f64;
        Series::plain(name, class, values.iter().map(share))
    });
    Plot {
        title: format!("{title} (share of each group)"),
        categories: values.iter().map(i32::to_string).collect(),
        series: series.collect(),
        unit: Unit::Share,
        x_title: x_title.into(),
    }
    .bars()
}

fn token_plot(evaluation: &Evaluation) -> String {
    let dynamics = &evaluation.dynamics;
    let parts = [
        ("prompt, last", &dynamics.last_tokens.prompt),
        ("answer, last", &dynamics.last_tokens.completion),
        ("prompt, all", &dynamics.all_tokens.prompt),
        ("answer, all", &dynamics.all_tokens.completion),
    ];
    let series = OUTCOMES.iter().enumerate().map(|(outcome, (name, class))| {
        Series::plain(name, class, parts.iter().map(|(_, spread)| spread.parts()[outcome].mean))
    });
    Plot {
        title: "Tokens (mean), last turn and all turns".into(),
        categories: parts.iter().map(|(name, _)| (*name).to_owned()).collect(),
        series: series.collect(),
        unit: Unit::Count,
        x_title: "tokens".into(),
    }
    .bars()
}

fn recall_plot(evaluation: &Evaluation) -> Option<String> {
    let curve = &evaluation.retrieval.as_ref()?.curve;
    if curve.is_empty() {
        return None;
    }
    let series = |name: &str, class, which: usize| Series::plain(name, class, curve.iter().map(|point| point[which]));
    let plot = Plot {
        title: "Supporting documents among the first k hits".into(),
        categories: (1..=curve.len()).map(|k| k.to_string()).collect(),
        series: vec![series("Recall", "c1", 0), series("All found", "c4", 1)],
        unit: Unit::Score,
        x_title: "k".into(),
    };
    Some(plot.lines())
}

fn html_table(table: &Table) -> String {
    let cells = |row: &[String], tag: &str| {
        let cells = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
        format!("<tr>{}</tr>", cells.collect::<Vec<_>>().concat())
    };
    let wide = if table.header.len() > 4 { " wide" } else { "" };
    let mut out = format!("<section class=\"table{wide}\"><h3>{}</h3><div><table><thead>", escape(&table.title));
    write!(out, "{}</thead><tbody>", cells(&table.header, "th")).ok();
    out.extend(table.rows.iter().map(|row| cells(row, "td")));
    out + "</tbody></table></div></section>"
}

fn conversations(evaluation: &Evaluation) -> String {
    let mut out = String::new();
    let mut shelf = "";
    for shown in &evaluation.shown {
        if out.is_empty() {
            out.push_str("<h2>Sample trajectories</h2>");
        }
        if shown.why != shelf {
            shelf = shown.why;
            write!(out, "<h3>{}</h3>", escape(shelf)).ok();
        }
        out.push_str(&conversation::render(shown));
    }
    out
}

/// How the figures were made.
fn method(evaluation: &Evaluation) -> String {
    let bootstrap = &evaluation.bootstrap;
    let majority: Vec<_> =
        evaluation.baselines.majority.iter().map(|(kind, answer)| format!("{kind}: “{answer}”")).collect();
    let lines = [
        format!(
            "Intervals: percentile bootstrap over questions, {} resamples, {}, seed {}.",
            bootstrap.resamples,
            percent(bootstrap.confidence),
            bootstrap.seed
        ),
        "Answer metrics are FlashRAG's; each takes its best over the golden answers.".to_owned(),
        format!("Best constant: the golden answer with the highest mean F1 (“{}”).", evaluation.baselines.constant),
        format!("Majority by type: the most frequent golden answer of each question type ({}).", majority.join(", ")),
        "Both baselines see the golden answers of the evaluated questions and nothing else: a score below them shows no retrieval at work.".to_owned(),
    ];
    format!("<h2>How to read this</h2>{}", list(&lines))
}

/// Remarks as a list; nothing where there are none.
fn list(lines: &[String]) -> String {
    let mut out = String::new();
    for line in lines {
        out.push_str(if out.is_empty() { "<ul class=\"notes\"><li>" } else { "<li>" });
        out.push_str(&escape(line));
        out.push_str("</li>");
    }
    if out.is_empty() { out } else { out + "</ul>" }
}
