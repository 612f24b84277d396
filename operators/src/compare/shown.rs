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

/// A question whose rows are shown side by side.
pub(super) struct Shown {
    /// Number of the comparison.
    pub(super) comparison: usize,
    pub(super) id: String,
    pub(super) regressed: bool,
    /// Means of each metric.
    pub(super) means: Vec<Option<Means>>,
    /// Where the row of the baseline is, and that of the system.
    pub(super) places: [Place; 2],
}

/// A row to show.
pub(super) enum Row {
    /// A conversation.
    Trajectory(Box<Trajectory>),
    /// Names and values of columns.
    Cells(Vec<(String, String)>),
}

/// Chooses questions of each system by the first metric: those that lost most, the worst first, then those that gained
/// most. Of several samples, those are shown that differ most.
pub(super) fn choose(params: &CompareParams, base: &Side, sides: &[Side], comparisons: &[Comparison]) -> Vec<Shown> {
    let (most, higher) = (params.examples as usize, params.by().first().is_none_or(|by| by.higher));
    let mut shown = Vec::new();
    for (number, (comparison, side)) in comparisons.iter().zip(sides).enumerate() {
        let (mut lost, mut gained) = (Vec::new(), Vec::new());
        for &(one, other) in &comparison.matching.both {
            let Some(means) = Means::of(&base.questions[one], &side.questions[other], 0) else { continue };
            let gain = means.gain(higher);
            if gain < 0.0 {
                lost.push((gain, one, other));
            } else if gain > 0.0 {
                gained.push((gain, one, other));
            }
        }
        // Stable sorts: equal gains stay sorted by id.
        lost.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
        gained.sort_by(|(one, ..), (other, ..)| other.total_cmp(one));
        for (gain, one, other) in lost.into_iter().take(most).chain(gained.into_iter().take(most)) {
            let (Some((id, one)), other) = (base.questions.get_index(one), &side.questions[other]) else { continue };
            let regressed = gain < 0.0;
            let means = (0..params.by.len()).map(|metric| Means::of(one, other, metric)).collect();
            // The highest value of the baseline and the lowest of the system, or the reverse.
            let end = usize::from(regressed == higher);
            let places = [one.ends[end], other.ends[1 - end]];
            shown.push(Shown { comparison: number, id: id.clone(), regressed, means, places });
        }
    }
    shown
}

/// Reads the rows to show.
pub(super) fn rows(inputs: &Inputs, shown: &[Shown], context: &Context) -> Result<BTreeMap<Place, Row>, OperatorError> {
    let wanted: BTreeSet<Place> = shown.iter().flat_map(|shown| shown.places).collect();
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
