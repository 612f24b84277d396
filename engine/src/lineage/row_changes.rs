//! Compares the numbers of two tables question by question, or row by row.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, SchemaRef};
use parquet::arrow::ProjectionMask;
use searchmill_schemas::RecordKind;
use serde::Serialize;

use super::lookup::open;
use crate::error::OperatorError;
use crate::operator::RowsInput;

/// Largest tables that are compared.
const MOST_ROWS: u64 = 2_000_000;
/// Changes of a column that are listed.
const LISTED: usize = 200;
/// Standard errors on each side of a 95 % interval (normal distribution).
const INTERVAL: f64 = 1.959_964;

/// How the numbers of a table differ between two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableChange {
    /// Port of the table.
    pub port: String,
    /// Column that pairs the rows: `question_id`, whose rows are averaged, or `id`.
    pub by: String,
    /// Number of ids in both tables.
    pub both: u64,
    /// Numbers of ids in the first and in the second table alone.
    pub only_in: [u64; 2],
    /// Columns with changed values.
    pub columns: Vec<ColumnChange>,
}

/// How one column differs, over the ids of both tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColumnChange {
    /// Name of the column.
    pub column: String,
    /// Means over the ids of both tables.
    pub means: [f64; 2],
    /// Half of the 95 % interval of the mean of the paired differences: 1.96 of its standard errors. `None` for one id.
    pub margin: Option<f64>,
    /// Number of ids whose value rose.
    pub up: u64,
    /// Number of ids whose value fell.
    pub down: u64,
    /// The largest changes, at most 200: what fell most first.
    pub largest: Vec<ValueChange>,
}

/// A changed value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueChange {
    /// The question, or the row.
    pub id: String,
    /// Value in the first run.
    pub from: f64,
    /// Value in the second run.
    pub to: f64,
}

/// Sum and count of a column's numbers.
#[derive(Clone, Copy, Default)]
struct Sum {
    total: f64,
    count: u32,
}

/// Sums of each column by id.
struct Numbers {
    rows: BTreeMap<String, Vec<Sum>>,
    /// Whether several rows have one id.
    repeats: bool,
}

/// Compares the tables of a port. `None` if they have no ids and numbers in common, nothing differs, or a table is larger
/// than two million rows.
///
/// # Errors
/// Fails if a table cannot be read.
pub(super) fn compared(port: &str, one: &RowsInput, other: &RowsInput) -> Result<Option<TableChange>, OperatorError> {
    if one.kind != other.kind || one.kind == RecordKind::Metric || one.rows.max(other.rows) > MOST_ROWS {
        return Ok(None);
    }
    let columns = common(&one.schema, &other.schema, |kind| kind.is_numeric() || *kind == DataType::Boolean);
    let ids = common(&one.schema, &other.schema, |kind| *kind == DataType::Utf8);
    for by in ["question_id", "id"] {
        if !ids.iter().any(|name| name == by) {
            continue;
        }
        let (from, to) = (Numbers::read(one, by, &columns)?, Numbers::read(other, by, &columns)?);
        // Rows of other kinds may repeat an id for other reasons than samples.
        let samples = by == "question_id" && matches!(one.kind, RecordKind::Trajectory | RecordKind::Score);
        if samples || !(from.repeats || to.repeats) {
            return Ok(change(port, by, &columns, &from, &to));
        }
    }
    Ok(None)
}

/// Returns the names of the columns that both tables have and that are of such a type.
fn common(one: &SchemaRef, other: &SchemaRef, fits: fn(&DataType) -> bool) -> Vec<String> {
    let fields = one.fields().iter().filter(|field| fits(field.data_type()));
    let mut names: Vec<String> = fields.map(|field| field.name().clone()).collect();
    names.retain(|name| other.field_with_name(name).is_ok_and(|field| fits(field.data_type())));
    names
}

impl Numbers {
    /// Reads only these columns.
    fn read(table: &RowsInput, by: &str, columns: &[String]) -> Result<Self, OperatorError> {
        let mut numbers = Self { rows: BTreeMap::new(), repeats: false };
        for part in table.parts() {
            let builder = open(part)?;
            let names = std::iter::once(by).chain(columns.iter().map(String::as_str));
            let mask = ProjectionMask::columns(builder.parquet_schema(), names);
            for batch in builder.with_projection(mask).with_batch_size(8192).build()? {
                numbers.add(&batch?, by, columns)?;
            }
        }
        Ok(numbers)
    }

    fn add(&mut self, batch: &RecordBatch, by: &str, columns: &[String]) -> Result<(), OperatorError> {
        let mut values = Vec::with_capacity(columns.len());
        for column in columns.iter().filter_map(|name| batch.column_by_name(name)) {
            values.push(cast(column, &DataType::Float64)?);
        }
        let Some(ids) = batch.column_by_name(by).and_then(|ids| ids.as_string_opt::<i32>()) else { return Ok(()) };
        for (row, id) in ids.iter().enumerate() {
            let Some(id) = id else { continue };
            let sums = match self.rows.get_mut(id) {
                Some(sums) => {
                    self.repeats = true;
                    sums
                }
                None => self.rows.entry(id.to_owned()).or_insert_with(|| vec![Sum::default(); columns.len()]),
            };
            for (sum, column) in sums.iter_mut().zip(&values) {
                let value = column.as_primitive::<Float64Type>().value(row);
                // One value that is not a number would hide all others of its id.
                if column.is_valid(row) && value.is_finite() {
                    sum.total += value;
                    sum.count += 1;
                }
            }
        }
        Ok(())
    }
}

fn change(port: &str, by: &str, columns: &[String], from: &Numbers, to: &Numbers) -> Option<TableChange> {
    let both = from.rows.iter().filter_map(|(id, from)| Some((id.as_str(), from, to.rows.get(id)?)));
    let both: Vec<_> = both.collect();
    let shared = both.len() as u64;
    // Column by column: the values of all columns of a large table need too much memory.
    let mut changed = Vec::new();
    for (index, name) in columns.iter().enumerate() {
        let mut values = Vec::new();
        for (id, from, to) in &both {
            let (Some(from), Some(to)) = (from.get(index), to.get(index)) else { continue };
            if from.count > 0 && to.count > 0 {
                let means = [from, to].map(|sum| sum.total / f64::from(sum.count));
                values.push((*id, means[0], means[1]));
            }
        }
        changed.extend(column_change(name, values));
    }
    let only_in = [from.rows.len() as u64 - shared, to.rows.len() as u64 - shared];
    let differs = !changed.is_empty() || only_in != [0, 0];
    differs.then(|| TableChange { port: port.to_owned(), by: by.to_owned(), both: shared, only_in, columns: changed })
}

/// Compares the values of a column: id, value in the first table, value in the second.
fn column_change(name: &str, mut values: Vec<(&str, f64, f64)>) -> Option<ColumnChange> {
    fn rise(value: &(&str, f64, f64)) -> f64 {
        value.2 - value.1
    }
    let count = values.len().max(1) as f64;
    let means = [values.iter().map(|value| value.1).sum::<f64>(), values.iter().map(|value| value.2).sum()];
    let mean = (means[1] - means[0]) / count;
    let squares: f64 = values.iter().map(|value| (rise(value) - mean).powi(2)).sum();
    let margin = (values.len() > 1).then(|| INTERVAL * (squares / (count - 1.0) / count).sqrt());
    values.retain(|(_, from, to)| from.to_bits() != to.to_bits());
    let up = values.iter().filter(|value| rise(value) > 0.0).count() as u64;
    let down = values.iter().filter(|value| rise(value) < 0.0).count() as u64;
    if up + down == 0 {
        return None;
    }
    // Once to choose the largest changes, and once for the order in which they are listed.
    values.sort_by(|a, b| rise(b).abs().total_cmp(&rise(a).abs()).then_with(|| a.0.cmp(b.0)));
    values.truncate(LISTED);
    values.sort_by(|a, b| rise(a).total_cmp(&rise(b)).then_with(|| a.0.cmp(b.0)));
    let largest = values.into_iter().map(|(id, from, to)| ValueChange { id: id.to_owned(), from, to }).collect();
    Some(ColumnChange { column: name.to_owned(), means: means.map(|sum| sum / count), margin, up, down, largest })
}
