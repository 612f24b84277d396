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
    let chosen: Vec<Chosen> = comparisons
        .iter()
        .zip(sides)
        .enumerate()
        .flat_map(|(number, (comparison, side))| choose(params, base, side, comparison, number))
        .collect();
    let wanted: BTreeSet<Place> = chosen.iter().flat_map(|chosen| chosen.places).collect();
    let rows = rows(inputs, &wanted, context)?;
    let metrics = params.by.len();
    let shown = |chosen: Chosen| {
        let (id, question) = base.questions.get_index(chosen.pair.0)?;
        let other = &sides[chosen.comparison].questions[chosen.pair.1];
        let [one, two] = chosen.places;
        Some(Shown {
            comparison: chosen.comparison,
            id: id.clone(),
            regressed: chosen.regressed,
            means: (0..metrics).map(|metric| Means::of(question, other, metric)).collect(),
            rows: [rows.get(&one)?.clone(), rows.get(&two)?.clone()],
        })
    };
    Ok(chosen.into_iter().filter_map(shown).collect())
}

/// Returns the questions that lost most, the worst first, then those that gained most.
fn choose(params: &CompareParams, base: &Side, side: &Side, comparison: &Comparison, number: usize) -> Vec<Chosen> {
    let by = params.by();
    let higher = by.first().is_none_or(|by| by.higher);
    let gain = |pair: &(usize, usize)| {
        let means = Means::of(&base.questions[pair.0], &side.questions[pair.1], 0)?;
        Some((means.gain(higher), *pair))
    };
    let mut ranked: Vec<(f64, (usize, usize))> = comparison.matching.both.iter().filter_map(gain).collect();
    // Equal gains stay sorted by id.
    ranked.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let most = params.examples as usize;
    let chosen = |pair: (usize, usize), regressed: bool| {
        let (one, two) = (&base.questions[pair.0].ends, &side.questions[pair.1].ends);
        // The highest value of the baseline and the lowest of the system, or the reverse.
        let end = usize::from(regressed == higher);
        Chosen { comparison: number, pair, regressed, places: [one[end], two[1 - end]] }
    };
    let lost = ranked.iter().take_while(|(gain, _)| *gain < 0.0).take(most);
    let lost: Vec<Chosen> = lost.map(|(_, pair)| chosen(*pair, true)).collect();
    ranked.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let gained = ranked.iter().take_while(|(gain, _)| *gain > 0.0).take(most);
    lost.into_iter().chain(gained.map(|(_, pair)| chosen(*pair, false))).collect()
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
            let here = wanted.range(Place { input, row: start }..Place { input, row: end });
            for place in here {
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
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns()).filter(|(_, column)| column.is_valid(0));
    let cell = |(field, column): (&arrow::datatypes::FieldRef, &arrow::array::ArrayRef)| {
        let text = ArrayFormatter::try_new(column.as_ref(), &options)?.value(0).try_to_string()?;
        Ok((field.name().clone(), text))
    };
    Ok(Row::Cells(columns.map(cell).collect::<Result<_, OperatorError>>()?))
}
