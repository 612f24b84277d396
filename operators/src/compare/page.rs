//! The report: figures, what regressed first, and what improved, with both rows of a question side by side.

use std::collections::BTreeMap;

use searchmill_engine::operator::{OperatorError, Outputs};
use serde_json::{Value, json};

use super::figures::{Comparison, Figure};
use super::matched::Means;
use super::params::{By, CompareParams, REPORT};
use super::shown::{Row, Shown};
use super::side::{Place, Side};
use crate::shared::html::plot::escape;
use crate::shared::html::table::{self, NOTHING, Table, percent};
use crate::shared::html::{self, Card, conversation, list};
use crate::shared::statistics::Bootstrap;

/// Most key figures at the top.
const CARDS: usize = 8;
/// Characters of a value in a row without a conversation.
const CELL: usize = 600;

/// All that the report shows.
pub(super) struct Page<'a> {
    pub(super) params: &'a CompareParams,
    /// Said before the figures.
    pub(super) about: &'a [String],
    pub(super) by: &'a [By],
    pub(super) base: &'a Side,
    pub(super) sides: &'a [Side],
    pub(super) comparisons: &'a [Comparison],
    pub(super) shown: &'a [Shown],
    /// The rows of `shown`.
    pub(super) rows: &'a BTreeMap<Place, Row>,
}

impl Page<'_> {
    /// Writes the report, the summary and the figures of the node.
    pub(super) fn publish(&self, bootstrap: &Bootstrap, outputs: &mut Outputs) -> Result<(), OperatorError> {
        let folder = outputs.tree(REPORT)?;
        html::write(&folder.join("report.html"), &self.html(bootstrap))?;
        html::write_json(&folder.join("report.json"), &self.json(bootstrap))?;
        let notes = self.notes().iter().map(|note| format!("{note}\n")).collect::<String>();
        let tables = self.tables().iter().map(|table| table.render() + "\n").collect::<String>();
        outputs.summary(&format!("{}\n\n{notes}\n{tables}", self.params.title));
        for comparison in self.comparisons {
            // The first group is that of all questions.
            for (figure, by) in comparison.groups[0].figures.iter().zip(self.by) {
                if figure.delta.count > 0 {
                    outputs.figure(&format!("{}/{}", comparison.system, by.key), figure.delta.value);
                }
            }
            let unmatched = comparison.matching.base_only.len() + comparison.matching.side_only.len();
            outputs.figure(&format!("{}/unmatched", comparison.system), unmatched as f64);
        }
        Ok(())
    }

    fn html(&self, bootstrap: &Bootstrap) -> String {
        let mut out = list(self.about);
        out.push_str(&html::cards(&self.cards()));
        out.push_str(&list(&self.notes()));
        out.extend(self.tables().iter().map(Table::html));
        for (number, comparison) in self.comparisons.iter().enumerate() {
            let metric = self.by.first().map_or("", |by| &by.key);
            // What regressed first: a better mean may hide it.
            for (regressed, title, none) in
                [(true, "What regressed", "No question regressed"), (false, "What improved", "No question improved")]
            {
                let shown: Vec<&Shown> =
                    self.shown.iter().filter(|one| one.comparison == number && one.regressed == regressed).collect();
                let of = escape(&format!("{} beside {}, by {metric}", comparison.system, self.base.name));
                out.push_str(&format!("<h2>{title}: {of}</h2>"));
                if shown.is_empty() {
                    let none = if self.params.examples == 0 { "No examples are shown" } else { none };
                    out.push_str(&format!("<p>{none}.</p>"));
                }
                out.extend(shown.into_iter().map(|shown| self.question(shown, &comparison.system)));
            }
        }
        out.push_str(&format!("<h2>How to read this</h2>{}", list(&self.method(bootstrap))));
        html::styled_page(&self.params.title, include_str!("compare.css"), &out)
    }

    fn cards(&self) -> Vec<Card> {
        let mut cards = Vec::new();
        for comparison in self.comparisons {
            for (by, figure) in self.by.iter().zip(&comparison.groups[0].figures) {
                let detail = match figure.test {
                    Some(_) => format!("{} · p {}", interval(figure), p_value(figure.holm)),
                    None => interval(figure),
                };
                cards.push(Card(escape(&format!("{}: {}", comparison.system, by.key)), signed(figure), detail));
            }
        }
        cards.truncate(CARDS);
        cards
    }

    fn notes(&self) -> Vec<String> {
        let (base, on) = (&self.base.name, &self.params.on);
        let mut notes = Vec::new();
        for (side, comparison) in self.sides.iter().zip(self.comparisons) {
            let (name, matching) = (&side.name, &comparison.matching);
            notes.push(format!("{} questions of {name} are compared with {base}.", matching.both.len()));
            if matching.both.is_empty() {
                notes.push(format!(
                    "warning: nothing is compared: no value of `on: {on}` is in both (`on: question` matches texts)."
                ));
            }
            let mut others = 0;
            for (one, other) in &matching.both {
                let texts = self.base.questions[*one].text.zip(side.questions[*other].text);
                others += usize::from(texts.is_some_and(|(one, other)| one != other));
            }
            if others > 0 {
                notes.push(format!(
                    "warning: {others} of them have another text in {name} than in {base}: is `on: {on}` the same question \
                     in both? (`on: question` matches texts.)"
                ));
            }
            for (count, of) in [(matching.base_only.len(), base), (matching.side_only.len(), name)] {
                if count > 0 {
                    notes.push(format!("{count} questions of {of} alone are not compared ({name})."));
                }
            }
        }
        for Side { name, questions, rows, missing } in std::iter::once(self.base).chain(self.sides) {
            let questions = questions.len();
            if *rows > questions as u64 {
                notes.push(format!(
                    "{name} has {rows} samples of {questions} questions: each question counts with its mean."
                ));
            }
            for (By { key, .. }, missing) in self.by.iter().zip(missing) {
                if *missing > 0 {
                    notes.push(format!("{missing} rows of {name} have no finite `{key}`; they do not count."));
                }
            }
        }
        notes
    }

    /// All questions first, then a table for each column of `group_by`.
    fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.table(None)];
        tables.extend((0..self.params.group_by.len()).map(|column| self.table(Some(column))));
        tables
    }

    fn table(&self, column: Option<usize>) -> Table {
        let interval_of = format!("{} interval", percent(self.params.confidence));
        let by = column.map(|column| self.params.group_by[column].as_str());
        let title = by.map_or("Differences".to_owned(), |by| format!("Differences by {by}"));
        let header = [
            by.unwrap_or_default(),
            "Metric",
            "System",
            "Questions",
            &self.base.name,
            "Mean",
            "Difference",
            &interval_of,
            "Wins",
            "Losses",
            "Ties",
            "p",
            "p (Holm)",
        ];
        // The table of all questions has no column of groups.
        let skipped = usize::from(column.is_none());
        let mut table = Table::new(&title, &header[skipped..]);
        for (metric, by) in self.by.iter().enumerate() {
            for comparison in self.comparisons {
                for group in comparison.groups.iter().filter(|group| group.column == column) {
                    let cells = cells(&group.label, by, &comparison.system, &group.figures[metric]);
                    table.row(cells.into_iter().skip(skipped));
                }
            }
        }
        table
    }

    fn question(&self, shown: &Shown, system: &str) -> String {
        let mut figures = Vec::new();
        for (by, means) in self.by.iter().zip(&shown.means) {
            if let Some(Means { base, side }) = means {
                figures.push(format!("{} {} → {}", by.key, number(*base), number(*side)));
            }
        }
        let [Some(base), Some(other)] = shown.places.map(|place| self.rows.get(&place)) else { return String::new() };
        format!(
            "<section class=\"question\"><h4>{} <code>{}</code></h4><div class=\"sides\">{}{}</div></section>",
            escape(&figures.join(" · ")),
            escape(&shown.id),
            side_html(&self.base.name, base, shown.regressed),
            side_html(system, other, !shown.regressed)
        )
    }

    fn method(&self, bootstrap: &Bootstrap) -> Vec<String> {
        let (base, permutations) = (&self.base.name, self.params.permutations);
        let Bootstrap { resamples, seed, .. } = bootstrap;
        let confidence = percent(bootstrap.confidence);
        vec![
            format!("A difference is the mean of the system less that of {base}, over the questions of both."),
            format!(
                "Intervals: paired percentile bootstrap over questions, {resamples} resamples, {confidence}, seed {seed}."
            ),
            format!(
                "p: two-sided paired permutation test, which flips the signs of the differences; exact for up to 20 \
                 questions that differ, else {permutations} random flips."
            ),
            "p (Holm): corrected for all tests of the table (Holm 1979). The key figures show it.".to_owned(),
            "Of several samples of a question, the two that differ most are shown.".to_owned(),
        ]
    }

    fn json(&self, bootstrap: &Bootstrap) -> Value {
        let mut samples = Vec::new();
        for shown in self.shown {
            let system = &self.comparisons[shown.comparison].system;
            samples.push(json!({"system": system, "question": shown.id, "regressed": shown.regressed}));
        }
        json!({
            "title": self.params.title,
            "base": self.base.name,
            "confidence": bootstrap.confidence,
            "resamples": bootstrap.resamples,
            "permutations": self.params.permutations,
            "seed": bootstrap.seed,
            "comparisons": self.comparisons.iter().map(|one| self.comparison_json(one)).collect::<Vec<_>>(),
            "samples": samples,
        })
    }

    fn comparison_json(&self, comparison: &Comparison) -> Value {
        let mut groups = Vec::new();
        for group in &comparison.groups {
            let mut metrics = Vec::new();
            for (by, figure) in self.by.iter().zip(&group.figures) {
                metrics.push(json!({
                    "metric": by.key, "higher_is_better": by.higher, "base": figure.base, "mean": figure.side,
                    "difference": figure.delta, "wins": figure.wins, "losses": figure.losses, "ties": figure.ties,
                    "p_value": figure.test.map(|test| test.p), "p_holm": figure.holm,
                    "exact": figure.test.map(|test| test.exact),
                }));
            }
            groups.push(json!({"group": group.name(self.params), "metrics": metrics}));
        }
        json!({
            "system": comparison.system,
            "questions": comparison.matching.both.len(),
            "only_in_base": comparison.matching.base_only.len(),
            "only_in_system": comparison.matching.side_only.len(),
            "groups": groups,
        })
    }
}

/// Cells of a row of the tables.
fn cells(label: &str, by: &By, system: &str, figure: &Figure) -> [String; 13] {
    let metric = if by.higher { by.key.clone() } else { format!("{} (lower is better)", by.key) };
    let means = [figure.base, figure.side];
    // Without questions, the means are no figures.
    let [base, side] = means.map(|mean| if figure.delta.count > 0 { number(mean) } else { NOTHING.to_owned() });
    [
        label.to_owned(),
        metric,
        system.to_owned(),
        figure.delta.count.to_string(),
        base,
        side,
        signed(figure),
        interval(figure),
        figure.wins.to_string(),
        figure.losses.to_string(),
        figure.ties.to_string(),
        p_value(figure.test.map(|test| test.p)),
        p_value(figure.holm),
    ]
}

/// Renders a conversation, or the columns of another row, below the name of its system.
fn side_html(name: &str, row: &Row, good: bool) -> String {
    let content = match row {
        Row::Trajectory(row) => conversation::render(row, good, &[if good { "better" } else { "worse" }.to_owned()]),
        Row::Cells(cells) => {
            let mut out = String::from("<article class=\"conversation\"><dl>");
            for (name, value) in cells {
                let shown: String = value.chars().take(CELL).collect();
                let rest = if shown.len() < value.len() { "…" } else { "" };
                out += &format!("<dt>{}</dt><dd>{}{rest}</dd>", escape(name), escape(&shown));
            }
            out + "</dl></article>"
        }
    };
    format!("<div><h5>{}</h5>{content}</div>", escape(name))
}

/// Differences that only rounding leaves between equal sums.
const ROUNDING: f64 = 1e-12;

fn number(value: f64) -> String {
    table::number(if value.abs() < ROUNDING { 0.0 } else { value })
}

fn signed(figure: &Figure) -> String {
    if figure.delta.count == 0 {
        return NOTHING.to_owned();
    }
    let sign = if figure.delta.value > 0.0 { "+" } else { "" };
    format!("{sign}{}", number(figure.delta.value))
}

fn interval(figure: &Figure) -> String {
    match (figure.delta.low, figure.delta.high) {
        (Some(low), Some(high)) => format!("{} – {}", number(low), number(high)),
        _ => NOTHING.to_owned(),
    }
}

fn p_value(p: Option<f64>) -> String {
    match p {
        None => NOTHING.to_owned(),
        // Four decimals would show a p-value of 0, which no test gives.
        Some(p) if p < 0.0001 => "< 0.0001".to_owned(),
        Some(p) => format!("{p:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_are_shown_and_rounding_is_not() {
        assert_eq!(
            [2.5e-5, -0.25, 0.1 + 0.2 - 0.3, -0.0, 1.0 / 3.0].map(number),
            ["2.500e-5", "-0.25", "0", "0", "0.3333"]
        );
    }
}
