//! `report.html`.

use std::fmt::Write;

use searchmill_text::answer_metrics::AnswerScores;

use super::dynamics::{ByOutcome, Distribution};
use super::figures::Evaluation;
use super::measure::Group;
use super::terminal::{HEADLINE, notes, tables};
use crate::shared::html;
use crate::shared::html::conversation;
use crate::shared::html::plot::{Estimate, Plot, Series, Unit, escape};
use crate::shared::html::table::{Table, percent, share};
use crate::shared::html::{Card, list};

/// CSS classes of score, best constant and majority. `OUTCOMES`: those of all, success and failure.
const COMPARED: [&str; 3] = ["c1", "c2", "c3"];
const OUTCOMES: [(&str, &str); 3] = [("All", "c1"), ("Success", "c4"), ("Failure", "c5")];

/// Renders the page.
pub(crate) fn render(evaluation: &Evaluation) -> String {
    let mut out = html::cards(&cards(evaluation));
    out.push_str(&list(&notes(evaluation)));
    let (first, others): (Vec<Table>, Vec<Table>) =
        tables(evaluation).into_iter().partition(|table| table.title == HEADLINE);
    out.extend(first.iter().map(Table::html));
    out.push_str(&plots(evaluation));
    if !others.is_empty() {
        out.push_str("<h2>Tables</h2><div class=\"tables\">");
        out.extend(others.iter().map(Table::html));
        out.push_str("</div>");
    }
    out.push_str(&conversations(evaluation));
    out.push_str(&method(evaluation));
    html::page(&evaluation.title, &out)
}

/// The key figures.
fn cards(evaluation: &Evaluation) -> Vec<Card> {
    let mut cards = Vec::new();
    if evaluation.has_answers() {
        cards.extend(answer_cards(evaluation));
        cards.extend(baseline_cards(evaluation));
    }
    cards.extend(retrieval_cards(evaluation));
    cards
}

fn answer_cards(evaluation: &Evaluation) -> Vec<Card> {
    let all = evaluation.all();
    let score = |(name, title): (&str, &'static str)| {
        let estimate = all.measure(name)?;
        let range = estimate.interval().filter(|range| range.contains(' '));
        Some(Card(title.to_owned(), format!("{:.3}", estimate.value), range.unwrap_or_default()))
    };
    let mut cards: Vec<_> = [("f1", "F1"), ("em", "Exact match")].into_iter().filter_map(score).collect();
    let total = &evaluation.dynamics.total;
    if total.all > 0 {
        cards.push(Card(
            "Success".into(),
            share(total.success, total.all),
            format!("{} of {}", total.success, total.all),
        ));
    }
    if let Some(estimate) = all.measure("grounded") {
        let value = format!("{:.1}%", estimate.value * 100.0);
        cards.push(Card("Grounded".into(), value, "evidence or answer seen".into()));
    }
    cards
}

fn baseline_cards(evaluation: &Evaluation) -> Vec<Card> {
    let constant = format!("F1 of “{}”", evaluation.baselines.constant);
    let titled = [("Best constant", constant), ("Majority by type", "F1, no retrieval".to_owned())];
    let card = |(which, (title, detail)): (usize, (&'static str, String))| {
        let estimate = evaluation.all().baseline(which, "f1")?;
        Some(Card(title.to_owned(), format!("{:.3}", estimate.value), detail))
    };
    titled.into_iter().enumerate().filter_map(card).collect()
}

/// Cards of the ranked lists: one card next to answers, the most important ones if only lists were scored.
fn retrieval_cards(evaluation: &Evaluation) -> Vec<Card> {
    let groups = evaluation.retrieval.iter().filter_map(|retrieval| retrieval.groups.first());
    let measures: Vec<_> = groups.flat_map(|group| &group.measures).collect();
    let last = |kind: &str| measures.iter().rev().find(|(name, _)| name.starts_with(kind)).copied();
    let card = |(kind, title, detail): (&str, &str, &str)| {
        let (name, estimate) = last(kind)?;
        let detail = format!("{detail} in the top {}", name.trim_start_matches(kind));
        Some(Card(format!("Retrieval: {title}"), format!("{:.3}", estimate.value), detail))
    };
    let kinds = [
        ("all_found@", "all found", "all supporting documents"),
        ("recall@", "recall", "supporting documents"),
        ("hits@", "hits", "a supporting fact"),
        ("mrr@", "MRR", "1 / rank of the first fact"),
    ];
    let shown = if evaluation.has_answers() { 1 } else { kinds.len() };
    kinds.into_iter().filter_map(card).take(shown).collect()
}

fn plots(evaluation: &Evaluation) -> String {
    let mut figures = Vec::new();
    if evaluation.has_answers() {
        figures.push(score_plot(evaluation));
        figures.extend(group_plots(evaluation));
    }
    if evaluation.dynamics.total.all > 0 {
        let dynamics = &evaluation.dynamics;
        figures.push(histogram_plot(evaluation));
        figures.push(distribution_plot("Turns", "model calls", &dynamics.turn_distribution));
        figures.push(distribution_plot("Tool calls", "tool calls", &dynamics.tool_call_distribution));
        figures.push(token_plot(evaluation));
    }
    figures.extend(recall_plot(evaluation));
    if figures.is_empty() {
        return "<p>Nothing was scored.</p>".to_owned();
    }
    format!("<div class=\"plots\">{}</div>", figures.concat())
}

/// Scores and baselines of several groups as three series.
fn compared<'a>(cells: impl Iterator<Item = (&'a Group, &'a str)> + Clone) -> Vec<Series> {
    let score = cells.clone().map(|(group, name)| group.measure(name)).collect();
    let baseline = |which: usize| {
        let values = cells.clone().map(move |(group, name)| group.baseline(which, name));
        values.map(|estimate| estimate.map(|estimate| Estimate { low: None, high: None, ..estimate })).collect()
    };
    let values: [Vec<_>; 3] = [score, baseline(0), baseline(1)];
    let names = ["Score", "Best constant", "Majority by type"];
    let series = names.iter().zip(COMPARED).zip(values);
    let made = series.map(|((name, class), values)| Series { name: (*name).to_owned(), class, values });
    made.filter(|series| !series.is_empty()).collect()
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

/// Maximum number of groups in a plot; larger groupings appear only in the table.
const PLOTTED_GROUPS: usize = 24;

fn group_plots(evaluation: &Evaluation) -> impl Iterator<Item = String> {
    let plot = |(column, groups): (&str, &[Group])| Plot {
        title: format!("F1 by {column}"),
        categories: groups.iter().map(|group| group.label.clone()).collect(),
        series: compared(groups.iter().map(|group| (group, "f1"))),
        unit: Unit::Score,
        x_title: column.replace('_', " "),
    };
    evaluation.groupings().filter(|(_, groups)| groups.len() <= PLOTTED_GROUPS).map(move |group| plot(group).bars())
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
        let share = |value: &i32| (whole > 0).then(|| part.get(value).copied().unwrap_or(0) as f64 / whole as f64);
        Series::plain(name, class, values.iter().map(share))
    });
    Plot {
        title: format!("{title} (share of each group)"),
        categories: values.iter().map(i32::to_string).collect(),
        series: series.filter(|series| !series.is_empty()).collect(),
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
        series: series.filter(|series| !series.is_empty()).collect(),
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
        let scored = &shown.scored;
        let grounded = if scored.grounded { "grounded" } else { "not grounded" };
        let facts = [format!("F1 {:.3}", scored.scores.f1), format!("EM {:.0}", scored.scores.em), grounded.to_owned()];
        out.push_str(&conversation::render(&shown.trajectory, scored.success, &facts));
    }
    out
}

/// Describes how the figures were computed.
fn method(evaluation: &Evaluation) -> String {
    let bootstrap = &evaluation.bootstrap;
    let mut lines = vec![format!(
        "Intervals: percentile bootstrap over questions, {} resamples, {}, seed {}. A single value instead of an interval: \
         all resamples agree, because all questions score the same.",
        bootstrap.resamples,
        percent(bootstrap.confidence),
        bootstrap.seed
    )];
    if evaluation.has_answers() {
        lines.extend(answer_method(evaluation));
    }
    if evaluation.without_verdict.len() > 1 {
        lines.push(
            "Kappa (Cohen 1960): agreement of two columns of verdicts beyond what their shares of right answers give by \
             chance; 1 is full agreement, 0 that of chance."
                .to_owned(),
        );
    }
    format!("<h2>How to read this</h2>{}", list(&lines))
}

fn answer_method(evaluation: &Evaluation) -> [String; 4] {
    let majority: Vec<_> =
        evaluation.baselines.majority.iter().map(|(kind, answer)| format!("{kind}: “{answer}”")).collect();
    [
        "Answer metrics are FlashRAG's; each takes its best over the golden answers.".to_owned(),
        format!("Best constant: the golden answer with the highest mean F1 (“{}”).", evaluation.baselines.constant),
        format!("Majority by type: the most frequent golden answer of each question type ({}).", majority.join(", ")),
        "Both baselines see the golden answers of the evaluated questions and nothing else: a score below them shows no retrieval at work.".to_owned(),
    ]
}
