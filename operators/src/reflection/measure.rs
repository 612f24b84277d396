//! The figures of checkpoints, with intervals, and the correlations between them.

use std::collections::{BTreeMap, BTreeSet};

use super::checkpoints::{Responses, Row};
use super::correlation::{partial, pearson, spearman};
use super::params::ScoreName;
use crate::shared::html::plot::Estimate;
use crate::shared::statistics::{Bootstrap, Measure, intervals, named};

/// Unit of the length of a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Length {
    /// Completion tokens, as recorded by the rollouts.
    Tokens,
    /// Words, separated by white space.
    Words,
}

impl Length {
    /// Tokens if all responses recorded them, otherwise words: figures in different units cannot be compared.
    pub(crate) fn of(rows: &[Row]) -> Self {
        if rows.iter().all(|row| row.response.tokens > 0) { Self::Tokens } else { Self::Words }
    }

    pub(crate) fn name(self) -> &'static str {
        if self == Self::Tokens { "tokens" } else { "words" }
    }

    fn measure(self, row: &Row) -> f64 {
        if self == Self::Tokens { row.response.tokens as f64 } else { row.response.words as f64 }
    }
}

/// Number of figures of a checkpoint.
const WIDTH: usize = 9;

/// Names of the figures of a checkpoint. `matched_…` figures are means over the questions that have responses of both
/// kinds at the same checkpoint.
pub(crate) fn names(length: Length, score: ScoreName) -> [String; WIDTH] {
    let (length, score) = (length.name(), score.name());
    [
        "rpr".to_owned(),
        format!("hits_per_1000_{length}"),
        length.to_owned(),
        score.to_owned(),
        format!("{score}_reflective"),
        format!("{score}_unreflective"),
        format!("matched_{score}_reflective"),
        format!("matched_{score}_unreflective"),
        format!("matched_{score}_difference"),
    ]
}

/// Sums and weights of the figures: a figure is sum / weight.
type Cells = [(f64, f64); WIDTH];

fn add(sums: &mut Cells, cells: &Cells) {
    for (sum, cell) in sums.iter_mut().zip(cells) {
        *sum = (sum.0 + cell.0, sum.1 + cell.1);
    }
}

/// The responses to one question at one checkpoint.
fn cells(rows: &[&Row], length: Length) -> Cells {
    let mut cells = Cells::default();
    for row in rows {
        let reflective = !row.response.hits.is_empty();
        let size = length.measure(row);
        cells[0] = (cells[0].0 + f64::from(reflective), cells[0].1 + 1.0);
        cells[1] = (cells[1].0 + 1000.0 * row.response.hits.len() as f64, cells[1].1 + size);
        cells[2] = (cells[2].0 + size, cells[2].1 + 1.0);
        if let Some(score) = row.response.score {
            for column in [3, if reflective { 4 } else { 5 }] {
                cells[column] = (cells[column].0 + score, cells[column].1 + 1.0);
            }
        }
    }
    let [with, other] = [cells[4], cells[5]];
    // Only a question with responses of both kinds compares them; it counts once, however many responses it has.
    if with.1 > 0.0 && other.1 > 0.0 {
        let (with, other) = (with.0 / with.1, other.0 / other.1);
        [cells[6], cells[7], cells[8]] = [(with, 1.0), (other, 1.0), (with - other, 1.0)];
    }
    cells
}

/// The questions of some responses: what resampling draws. Responses to one question are not independent.
struct Questions {
    datasets: usize,
    units: Vec<(usize, Cells)>,
}

impl Questions {
    fn new<'r>(rows: impl IntoIterator<Item = &'r Row>, datasets: usize, length: Length) -> Self {
        let mut groups: BTreeMap<(usize, &str, usize), Vec<&Row>> = BTreeMap::new();
        for row in rows {
            groups.entry((row.dataset, &row.response.question_id, row.checkpoint)).or_default().push(row);
        }
        let mut questions: BTreeMap<(usize, &str), Cells> = BTreeMap::new();
        for ((dataset, question, _), rows) in groups {
            add(questions.entry((dataset, question)).or_default(), &cells(&rows, length));
        }
        Self { datasets, units: questions.into_iter().map(|((dataset, _), cells)| (dataset, cells)).collect() }
    }

    /// Returns each figure of the drawn questions: the mean over the data sets that have it.
    fn figures(&self, drawn: impl IntoIterator<Item = usize>) -> Vec<Option<f64>> {
        let mut sums = vec![Cells::default(); self.datasets];
        for place in drawn {
            let (dataset, cells) = &self.units[place];
            add(&mut sums[*dataset], cells);
        }
        let figures = (0..WIDTH).map(|column| {
            let known = sums.iter().map(|cells| cells[column]).filter(|(_, weight)| *weight > 0.0);
            let known: Vec<f64> = known.map(|(sum, weight)| sum / weight).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        });
        figures.collect()
    }

    fn measures(&self, names: &[String; WIDTH], bootstrap: &Bootstrap, stream: u64) -> Vec<Measure> {
        let ends = intervals(self.units.len(), bootstrap, stream, |drawn| self.figures(drawn.iter().copied()));
        let mut measures = Vec::new();
        for (column, (value, (low, high))) in self.figures(0..self.units.len()).into_iter().zip(ends).enumerate() {
            let Some(value) = value else { continue };
            // The weight of hits per 1,000 tokens is not a number of responses.
            let counted = if column == 1 { 0 } else { column };
            let count = self.units.iter().map(|(_, cells)| cells[counted].1).sum::<f64>() as usize;
            measures.push((names[column].clone(), Estimate { value, low, high, count }));
        }
        measures
    }
}

/// A group of responses with its figures.
pub(crate) struct Group {
    /// Name of the checkpoint, or `all`.
    pub(crate) name: String,
    pub(crate) step: Option<f64>,
    pub(crate) measures: Vec<Measure>,
}

impl Group {
    pub(crate) fn measure(&self, name: &str) -> Option<Estimate> {
        named(&self.measures, name)
    }
}

/// Measures each checkpoint, in order, and last all of them together.
pub(crate) fn groups(all: &Responses, length: Length, score: ScoreName, bootstrap: &Bootstrap) -> (Vec<Group>, Group) {
    let names = names(length, score);
    let mut by_checkpoint: Vec<Vec<&Row>> = vec![Vec::new(); all.checkpoints.len()];
    for row in &all.rows {
        by_checkpoint[row.checkpoint].push(row);
    }
    let datasets = all.datasets.len();
    let mut checkpoints = Vec::with_capacity(by_checkpoint.len());
    for (index, ((name, step), rows)) in all.checkpoints.iter().zip(by_checkpoint).enumerate() {
        // Stream 0 is that of the correlations, 1 that of all responses.
        let measures = Questions::new(rows, datasets, length).measures(&names, bootstrap, index as u64 + 2);
        checkpoints.push(Group { name: name.clone(), step: *step, measures });
    }
    let measures = Questions::new(&all.rows, datasets, length).measures(&names, bootstrap, 1);
    (checkpoints, Group { name: "all".to_owned(), step: None, measures })
}

/// What a correlation compares at one checkpoint.
struct Point {
    rpr: f64,
    score: f64,
    length: f64,
    step: Option<f64>,
}

/// Correlations of the reflection ratio with the score, between checkpoints. Intervals draw checkpoints; a resample
/// with too few different ones for a figure does not count for it.
pub(crate) fn correlations(groups: &[Group], length: Length, score: ScoreName, bootstrap: &Bootstrap) -> Vec<Measure> {
    let mut points = Vec::new();
    for group in groups {
        // A checkpoint without scored responses is no point.
        if let (Some(rpr), Some(score), Some(length)) =
            (group.measure("rpr"), group.measure(score.name()), group.measure(length.name()))
        {
            points.push(Point { rpr: rpr.value, score: score.value, length: length.value, step: group.step });
        }
    }
    let ends = intervals(points.len(), bootstrap, 0, |drawn| correlate(&points, drawn));
    let whole: Vec<usize> = (0..points.len()).collect();
    let names = ["pearson", "spearman", "partial_given_length", "partial_given_step", "partial_given_step_and_length"];
    let mut measures = Vec::new();
    for ((name, value), (low, high)) in names.into_iter().zip(correlate(&points, &whole)).zip(ends) {
        if let Some(value) = value {
            measures.push((name.to_owned(), Estimate { value, low, high, count: points.len() }));
        }
    }
    measures
}

fn correlate(points: &[Point], drawn: &[usize]) -> Vec<Option<f64>> {
    let (mut rpr, mut score, mut length) = (Vec::new(), Vec::new(), Vec::new());
    for point in drawn.iter().map(|index| &points[*index]) {
        rpr.push(point.rpr);
        score.push(point.score);
        length.push(point.length);
    }
    let steps: Option<Vec<f64>> = drawn.iter().map(|index| points[*index].step).collect();
    // A checkpoint that is drawn again is no further point.
    let different = drawn.iter().collect::<BTreeSet<_>>().len();
    let mut figures = vec![None; 5];
    if different >= 3 {
        (figures[0], figures[1]) = (pearson(&rpr, &score), spearman(&rpr, &score));
    }
    if different >= 4 {
        figures[2] = partial(&rpr, &score, std::slice::from_ref(&length));
    }
    if let Some(steps) = steps {
        // Each control takes one point more.
        if different >= 4 {
            figures[3] = partial(&rpr, &score, std::slice::from_ref(&steps));
        }
        if different >= 5 {
            figures[4] = partial(&rpr, &score, &[steps, length]);
        }
    }
    figures
}
