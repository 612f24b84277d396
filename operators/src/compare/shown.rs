//! The questions that the report shows in full: those that regressed most, and those that improved most.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{Array, RecordBatch};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use searchmill_engine::operator::{Context, InputArtifact, Inputs, OperatorError};
use searchmill_schemas::{RecordKind, Trajectory, from_batch};

use super::figures::Comparison;
use super::matched::Means;
use super::params::CompareParams;
use super::side::{Place, Side};

/// Rows of one question side by side.
pub(super) struct Shown {
    /// Number of the comparison.
    pub(super) comparison: usize,
    pub(super) id: String,
    pub(super) regressed: bool,
    /// Means of each metric.
    pub(super) means: Vec<Option<Means>>,
    /// Row of the baseline, and of the system.
    pub(super) rows: [Row; 2],
}

/// A row to show.
#[derive(Clone)]
pub(super) enum Row {
    /// A conversation.
    Trajectory(Box<Trajectory>),
    /// Names and values of columns.
    Cells(Vec<(String, String)>),
}

/// A question to show, before its rows are read.
struct Chosen {
    comparison: usize,
    pair: (usize, usize),
    regressed: bool,
    places: [Place; 2],
}

/// Chooses questions by the first metric and reads their rows. Of several samples, those are shown that differ most.
pub(super) fn read(
    params: &CompareParams,
    inputs: &Inputs,
    base: &Side,
    sides: &[Side],
    comparisons: &[Comparison],
    context: &Context,
) -> Result<Vec<Shown>, OperatorError> {
    let systems = comparisons.iter().zip(sides).enumerate();
    let chosen: Vec<Chosen> =
        systems.flat_map(|(number, (comparison, side))| choose(params, base, side, comparison, number)).collect();
    let wanted: BTreeSet<Place> = chosen.iter().flat_map(|chosen| chosen.places).collect();
    let rows = rows(inputs, &wanted, context)?;
    let mut shown = Vec::with_capacity(chosen.len());
    for Chosen { comparison, pair, regressed, places: [one, two] } in chosen {
        let (Some((id, question)), Some(one), Some(two)) =
            (base.questions.get_index(pair.0), rows.get(&one), rows.get(&two))
        else {
            continue;
        };
        let other = &sides[comparison].questions[pair.1];
        let means = (0..params.by.len()).map(|metric| Means::of(question, other, metric)).collect();
        // Cloned: a row of the baseline may stand beside several systems.
        shown.push(Shown { comparison, id: id.clone(), regressed, means, rows: [one.clone(), two.clone()] });
    }
    Ok(shown)
}

/// Returns the questions that lost most, the worst first, then those that gained most.
fn choose(params: &CompareParams, base: &Side, side: &Side, comparison: &Comparison, number: usize) -> Vec<Chosen> {
    let by = params.by();
    let higher = by.first().is_none_or(|by| by.higher);
    let (mut lost, mut gained) = (Vec::new(), Vec::new());
    for &pair in &comparison.matching.both {
        let (one, two) = (&base.questions[pair.0], &side.questions[pair.1]);
        let Some(means) = Means::of(one, two, 0) else { continue };
        let gain = means.gain(higher);
        let regressed = gain < 0.0;
        // The highest value of the baseline and the lowest of the system, or the reverse.
        let end = usize::from(regressed == higher);
        let chosen = Chosen { comparison: number, pair, regressed, places: [one.ends[end], two.ends[1 - end]] };
        if regressed {
            lost.push((gain, chosen));
        } else if gain > 0.0 {
            gained.push((gain, chosen));
        }
    }
    // Stable sorts: equal gains stay sorted by id.
    lost.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    gained.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let most = params.examples as usize;
    lost.into_iter().take(most).chain(gained.into_iter().take(most)).map(|(_, chosen)| chosen).collect()
}

fn rows(inputs: &Inputs, wanted: &BTreeSet<Place>, context: &Context) -> Result<BTreeMap<Place, Row>, OperatorError> {
    let mut found = BTreeMap::new();
    for (input, (_, artifacts)) in inputs.iter().enumerate() {
        let Some(InputArtifact::Rows(table)) = artifacts.first() else { continue };
        let mut start = 0;
        for batch in table.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let end = start + batch.num_rows() as u64;
            // Only the rows to show are decoded; the tables may be large.
            for place in wanted.range(Place { input, row: start }..Place { input, row: end }) {
                found.insert(*place, row(table.kind, &batch.slice((place.row - start) as usize, 1))?);
            }
            start = end;
        }
    }
    Ok(found)
}

/// Reads a batch of one row.
fn row(kind: RecordKind, batch: &RecordBatch) -> Result<Row, OperatorError> {
    if kind == RecordKind::Trajectory
        && let Some(row) = from_batch::<Trajectory>(batch)?.pop()
    {
        return Ok(Row::Trajectory(Box::new(row)));
    }
    let options = FormatOptions::default();
    let mut cells = Vec::new();
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        if column.is_valid(0) {
            let text = ArrayFormatter::try_new(column.as_ref(), &options)?.value(0).try_to_string()?;
            cells.push((field.name().clone(), text));
        }
    }
    Ok(Row::Cells(cells))
}
