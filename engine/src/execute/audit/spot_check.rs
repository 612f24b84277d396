//! Checks single rows: recomputes rows of row-wise kernels, and derives again what external operators recorded.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::RecordBatch;
use rand::seq::index::sample;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use searchmill_schemas::{RecordKind, to_batch};

use super::{Outcome, Rerun};
use crate::error::OperatorError;
use crate::lineage::{Difference, difference, read_rows, row_difference, rows_with, texts};
use crate::operator::{InputArtifact, MapKernel, MapOutput, RowsInput};
use crate::store::{Store, as_stored};

/// Differences reported one by one (at most).
const TOLD: usize = 100;

/// Draws row numbers without replacement; all rows if the table has no more.
fn draw(table: &RowsInput, rows: u64, seed: u64) -> BTreeSet<u64> {
    let length = usize::try_from(table.rows).unwrap_or(usize::MAX);
    let amount = usize::try_from(rows).unwrap_or(usize::MAX).min(length);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    sample(&mut random, length, amount).into_iter().map(|row| row as u64).collect()
}

/// Rows by the input id they belong to.
type ById = BTreeMap<String, Vec<RecordBatch>>;

/// Maps some rows of the main input again and compares the output with the recorded rows. `None`: rows have no ids, so
/// everything must be recomputed.
pub(super) fn check_rows(
    store: &Store,
    rerun: &Rerun<'_>,
    kernel: &dyn MapKernel,
    rows: u64,
    seed: u64,
) -> Result<Option<Outcome>, OperatorError> {
    let main = rerun.run.main_rows()?;
    if main.schema.index_of("id").is_err() {
        return Ok(None);
    }
    let chosen = read_rows(main, &draw(main, rows, seed))?;
    let ids: BTreeSet<String> = chosen.iter().flat_map(|row| texts(row, 0, &["id"])).map(str::to_owned).collect();
    // Include all rows with the same id: the record does not say which of them an output row belongs to.
    let with_ids: BTreeSet<u64> = rows_with(main, &["id"], &ids)?.into_iter().map(|matched| matched.row).collect();
    let inputs = read_rows(main, &with_ids)?;
    let mut differences = Vec::new();
    let (mut compared, mut differing) = (0, 0);
    let computed = compute(kernel, &inputs)?;
    for (port, output) in &rerun.step.result.outputs {
        // Without a column that names the input row, which output rows belong to the sample is unknown.
        let InputArtifact::Rows(table) = store.open_input(&output.id)? else { return Ok(None) };
        let Some(path) = column(&table, main.kind) else { return Ok(None) };
        let recorded = recorded(&table, path, &ids)?;
        for id in &ids {
            let one = recorded.get(id).map_or(&[][..], Vec::as_slice);
            let other = computed.get(port).and_then(|rows| rows.get(id)).map_or(&[][..], Vec::as_slice);
            compared += one.len();
            // All are counted, but a wrong kernel may differ in every row.
            if let Some(found) = rows_difference(id, one, other, table.kind)? {
                differing += 1;
                if differences.len() < TOLD {
                    differences.push((port.clone(), found, 1));
                }
            }
        }
    }
    if differing > 0 {
        return Ok(Some(Outcome::Differs(differences)));
    }
    let detail = format!("{} of {} input rows, {compared} output rows: equal (seed {seed})", inputs.len(), main.rows);
    Ok(Some(Outcome::Same(detail)))
}

/// Maps the rows; returns the output by port and by the id of the input row.
fn compute(kernel: &dyn MapKernel, inputs: &[RecordBatch]) -> Result<BTreeMap<String, ById>, OperatorError> {
    let mut computed: BTreeMap<String, ById> = BTreeMap::new();
    for row in inputs {
        let id = texts(row, 0, &["id"]).first().copied().unwrap_or_default().to_owned();
        let mut output = MapOutput::default();
        kernel.map(row, &mut output)?;
        if !output.rejects.is_empty() {
            output.batches.push(("rejects".to_owned(), to_batch(&output.rejects)?));
        }
        for (port, batch) in output.batches {
            let rows = computed.entry(port).or_default().entry(id.clone()).or_default();
            rows.extend((0..batch.num_rows()).map(|row| batch.slice(row, 1)));
        }
    }
    Ok(computed)
}

/// Returns the output column that names the input row: the parent column of that kind, else `id`.
fn column(table: &RowsInput, kind: RecordKind) -> Option<&'static [&'static str]> {
    let parent = table.kind.parents().iter().find(|parent| parent.kind == Some(kind));
    match parent {
        Some(parent) if table.kind != RecordKind::Table => Some(parent.path),
        _ => table.schema.index_of("id").is_ok().then_some(&["id"]),
    }
}

fn recorded(table: &RowsInput, path: &[&str], ids: &BTreeSet<String>) -> Result<ById, OperatorError> {
    let matches = rows_with(table, path, ids)?;
    let rows = read_rows(table, &matches.iter().map(|matched| matched.row).collect())?;
    let mut by_id = ById::new();
    for (matched, row) in matches.iter().zip(rows) {
        by_id.entry(matched.matched.clone()).or_default().push(row);
    }
    Ok(by_id)
}

fn rows_difference(
    id: &str,
    recorded: &[RecordBatch],
    computed: &[RecordBatch],
    kind: RecordKind,
) -> Result<Option<Difference>, OperatorError> {
    for (number, (one, other)) in recorded.iter().zip(computed).enumerate() {
        if let Some(found) = row_difference(one, &as_stored(kind, other)?, number as u64) {
            return Ok(Some(Difference { place: format!("of input row `{id}`: {}", found.place), ..found }));
        }
    }
    if recorded.len() == computed.len() {
        return Ok(None);
    }
    let (one, other) = (recorded.len().to_string(), computed.len().to_string());
    Ok(Some(difference(format!("of input row `{id}`: number of rows"), &one, &other)))
}

/// Derives again what an external operator recorded.
pub(super) fn recheck(
    store: &Store,
    rerun: &Rerun<'_>,
    rows: Option<u64>,
    seed: u64,
) -> Result<Outcome, OperatorError> {
    let Some(recheck) = rerun.operator.declaration.recheck(&rerun.run.inputs, &rerun.run.context)? else {
        return Ok(Outcome::NotChecked(
            "its operator asks the outside and records nothing that can be derived".to_owned(),
        ));
    };
    let port = recheck.port().to_owned();
    let Some(output) = rerun.step.result.outputs.get(&port) else {
        return Ok(Outcome::NotChecked(format!("it has no output `{port}`")));
    };
    let InputArtifact::Rows(table) = store.open_input(&output.id)? else {
        return Ok(Outcome::NotChecked(format!("its output `{port}` is not a table")));
    };
    let batches: Box<dyn Iterator<Item = _>> = match rows {
        Some(rows) => Box::new(read_rows(&table, &draw(&table, rows, seed))?.into_iter().map(Ok)),
        None => Box::new(table.batches()),
    };
    let mut differences = Vec::new();
    let (mut compared, mut taken, mut checked) = (0, 0, 0);
    for batch in batches {
        let batch = batch?;
        let found = recheck.check(&batch)?;
        compared += found.compared;
        taken += found.taken;
        checked += batch.num_rows();
        for wrong in found.differences {
            let place = format!("row {}, {}", wrong.row, wrong.what);
            differences.push((port.clone(), difference(place, &wrong.recorded, &wrong.derived), 1));
        }
    }
    if differences.is_empty() {
        let detail = format!("{checked} of {} rows, {compared} things derived again: equal", table.rows);
        let outside = format!("; {taken} observations of tools outside cannot be derived again: taken from the record");
        return Ok(Outcome::Same(detail + if taken > 0 { &outside } else { "" }));
    }
    differences.truncate(TOLD);
    Ok(Outcome::Differs(differences))
}
