//! `report.html`.

use searchmill_text::answer_metrics::AnswerScores;
use searchmill_text::baseline::Baselines;

use super::dynamics::{ByOutcome, Distribution};
use super::figures::Evaluation;
use super::measure::Group;
use super::terminal::{HEADLINE, notes, tables};
use crate::shared::html::plot::{Estimate, Plot, Series, Unit, escape};
use crate::shared::html::table::{Table, percent, share};
use crate::shared::html::{self, Card, conversation, list};
use crate::shared::statistics::{Bootstrap, Measure};

/// All, success and failure with their CSS classes.
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
        let all = evaluation.all();
        for (name, title) in [("f1", "F1"), ("em", "Exact match")] {
            if let Some(estimate) = all.measure(name) {
                // A single value instead of an interval would only repeat the figure.
                let range = estimate.interval().filter(|range| range.contains(' '));
                cards.push(Card(title.into(), format!("{:.3}", estimate.value), range.unwrap_or_default()));
            }
        }
        let total = &evaluation.dynamics.total;
        if total.all > 0 {
            let detail = format!("{} of {}", total.success, total.all);
            cards.push(Card("Success".into(), share(total.success, total.all), detail));
        }
        if let Some(estimate) = all.measure("grounded") {
            let value = format!("{:.1}%", estimate.value * 100.0);
            cards.push(Card("Grounded".into(), value, "evidence or answer seen".into()));
        }
        let constant = format!("F1 of “{}”", evaluation.baselines.constant);
        let baselines = [("Best constant", constant), ("Majority by type", "F1, no retrieval".to_owned())];
        for (which, (title, detail)) in baselines.into_iter().enumerate() {
            if let Some(estimate) = all.baseline(which, "f1") {
                cards.push(Card(title.into(), format!("{:.3}", estimate.value), detail));
            }
        }
    }
    if let Some(all) = evaluation.retrieval.as_ref().and_then(|retrieval| retrieval.groups.first()) {
        cards.extend(retrieval_cards(&all.measures, evaluation.has_answers()));
    }
    cards
}

/// Cards of the ranked lists: one card next to answers, the most important ones if only lists were scored.
fn retrieval_cards(measures: &[Measure], has_answers: bool) -> Vec<Card> {
    let kinds = [
        ("all_found@", "all found", "all supporting documents"),
        ("recall@", "recall", "supporting documents"),
        ("hits@", "hits", "a supporting fact"),
        ("mrr@", "MRR", "1 / rank of the first fact"),
    ];
    let mut cards = Vec::new();
    for (kind, title, detail) in kinds {
        // The last of a kind has the largest k.
        let Some((name, estimate)) = measures.iter().rev().find(|(name, _)| name.starts_with(kind)) else { continue };
        let detail = format!("{detail} in the top {}", name.trim_start_matches(kind));
        cards.push(Card(format!("Retrieval: {title}"), format!("{:.3}", estimate.value), detail));
    }
    cards.truncate(if has_answers { 1 } else { kinds.len() });
    cards
}

fn plots(evaluation: &Evaluation) -> String {
    let mut figures = Vec::new();
    if evaluation.has_answers() {
        figures.push(score_plot(evaluation));
        for (column, groups) in evaluation.groupings() {
            if groups.len() <= PLOTTED_GROUPS {
                figures.push(group_plot(column, groups));
            }
        }
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
fn compared(cells: &[(&Group, &str)]) -> Vec<Series> {
    let [mut score, mut constant, mut majority] =
        [("Score", "c1"), ("Best constant", "c2"), ("Majority by type", "c3")]
            .map(|(name, class)| Series::plain(name, class, [0.0; 0]));
    for (group, name) in cells {
        score.values.push(group.measure(name));
        for (which, series) in [&mut constant, &mut majority].into_iter().enumerate() {
            // Without its interval: the error bar of the score is the one to look at.
            let value = group.baseline(which, name).map(|estimate| estimate.value);
            series.values.push(value.map(|value| Estimate { value, ..Estimate::default() }));
        }
    }
    let mut series = vec![score, constant, majority];
    series.retain(|series| !series.is_empty());
    series
}

fn score_plot(evaluation: &Evaluation) -> String {
    let names = AnswerScores::NAMES;
    Plot {
        title: "Scores beside no-retrieval baselines".into(),
        categories: names.map(str::to_owned).to_vec(),
        series: compared(&names.map(|name| (evaluation.all(), name))),
        unit: Unit::Score,
        x_title: format!("metric ({} intervals)", percent(evaluation.bootstrap.confidence)),
    }
    .bars()
}

/// Maximum number of groups in a plot; larger groupings appear only in the table.
const PLOTTED_GROUPS: usize = 24;

fn group_plot(column: &str, groups: &[Group]) -> String {
    Plot {
        title: format!("F1 by {column}"),
        categories: groups.iter().map(|group| group.label.clone()).collect(),
        series: compared(&groups.iter().map(|group| (group, "f1")).collect::<Vec<_>>()),
        unit: Unit::Score,
        x_title: column.replace('_', " "),
    }
    .bars()
}

fn histogram_plot(evaluation: &Evaluation) -> String {
    let bins = evaluation.dynamics.f1_histogram;
    // The last bin includes its upper end.
    let mut categories: Vec<String> = (0..9).map(|bin| format!(".{bin}–.{}", bin + 1)).collect();
    categories.push(".9–1".to_owned());
    Plot {
        title: "F1 of the trajectories".into(),
        categories,
        series: vec![Series::plain("Trajectories", "c1", bins.map(|count| count as f64))],
        unit: Unit::Count,
        x_title: format!("F1 (success from {})", evaluation.threshold),
    }
    .bars()
}

fn distribution_plot(title: &str, x_title: &str, counts: &ByOutcome<Distribution>) -> String {
    let mut series = Vec::new();
    for ((name, class), part) in OUTCOMES.iter().zip(counts.parts()) {
        let whole: usize = part.values().sum();
        // A group without rows has no series.
        if whole > 0 {
            let counts = counts.all.keys().map(|value| part.get(value).copied().unwrap_or(0));
            series.push(Series::plain(name, class, counts.map(|count| count as f64 / whole as f64)));
        }
    }
    Plot {
        title: format!("{title} (share of each group)"),
        categories: counts.all.keys().map(i32::to_string).collect(),
        series,
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
    let outcomes = OUTCOMES.iter().enumerate().map(|(outcome, (name, class))| {
        Series::plain(name, class, parts.iter().map(|(_, spread)| spread.parts()[outcome].mean))
    });
    Plot {
        title: "Tokens (mean), last turn and all turns".into(),
        categories: parts.iter().map(|(name, _)| (*name).to_owned()).collect(),
        series: outcomes.filter(|series| !series.is_empty()).collect(),
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
    let recall = Series::plain("Recall", "c1", curve.iter().map(|point| point[0]));
    let all_found = Series::plain("All found", "c4", curve.iter().map(|point| point[1]));
    let plot = Plot {
        title: "Supporting documents among the first k hits".into(),
        categories: (1..=curve.len()).map(|k| k.to_string()).collect(),
        series: vec![recall, all_found],
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
        // Trajectories come shelf by shelf: a heading for the first of each.
        if shown.why != shelf {
            shelf = shown.why;
            out += &format!("<h3>{}</h3>", escape(shelf));
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
    let Bootstrap { resamples, confidence, seed } = evaluation.bootstrap;
    let confidence = percent(confidence);
    let mut lines = vec![format!(
        "Intervals: percentile bootstrap over questions, {resamples} resamples, {confidence}, seed {seed}. A single value \
         instead of an interval: all resamples agree, because all questions score the same."
    )];
    if evaluation.has_answers() {
        let Baselines { constant, majority, .. } = &evaluation.baselines;
        let majority: Vec<_> = majority.iter().map(|(kind, answer)| format!("{kind}: “{answer}”")).collect();
        lines.extend([
            "Answer metrics are FlashRAG's; each takes its best over the golden answers.".to_owned(),
            format!("Best constant: the golden answer with the highest mean F1 (“{constant}”)."),
            format!("Majority by type: the most frequent golden answer of each question type ({}).", majority.join(", ")),
            "Both baselines see the golden answers of the evaluated questions and nothing else: a score below them shows no retrieval at work.".to_owned(),
        ]);
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
