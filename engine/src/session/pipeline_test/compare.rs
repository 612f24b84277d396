//! Compares the rows of an output with the expected ones. Only the columns that are written count.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use arrow::json::LineDelimitedWriter;
use serde::Serialize;
use serde_json::{Map, Number, Value};

use crate::error::OperatorError;
use crate::operator::RowsInput;
use crate::session::failure::Failure;
use crate::spec::{Expected, suggest};

/// A difference between expected and found rows. Rows count from 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "mismatch", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mismatch {
    /// The output does not exist: its node failed or did not run.
    NoRows {
        /// The output.
        output: String,
    },
    /// Another number of rows.
    Count {
        /// The output.
        output: String,
        /// Expected number.
        expected: usize,
        /// Found number.
        found: usize,
    },
    /// A column that the output does not have.
    Column {
        /// The output.
        output: String,
        /// The column.
        column: String,
        /// The columns that it has.
        help: String,
    },
    /// Another value.
    Value {
        /// The output.
        output: String,
        /// Number of the row.
        row: usize,
        /// The column.
        column: String,
        /// Expected value.
        expected: Value,
        /// Found value.
        found: Value,
    },
    /// An expected row that is not there.
    Missing {
        /// The output.
        output: String,
        /// Number of the expected row.
        row: usize,
        /// Its values.
        expected: Value,
    },
    /// A row that is not expected.
    Extra {
        /// The output.
        output: String,
        /// Number of the found row.
        row: usize,
        /// Its values in the columns that the test names.
        found: Value,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRows { output } => write!(f, "{output}: no rows, because a node failed"),
            Self::Count { output, expected, found } => write!(f, "{output}: expected {expected} rows, found {found}"),
            Self::Column { output, column, help } => write!(f, "{output}: there is no column `{column}` ({help})"),
            Self::Value { output, row, column, expected, found } => {
                write!(f, "{output} row {row}, {column}: expected {expected}, found {found}")
            }
            Self::Missing { output, row, expected } => {
                write!(f, "{output}: expected row {row} is missing: {expected}")
            }
            Self::Extra { output, row, found } => write!(f, "{output} row {row} is not expected: {found}"),
        }
    }
}

/// Returns the differences.
pub(crate) fn compare(expected: &Expected, rows: &RowsInput) -> Result<Vec<Mismatch>, Failure> {
    let output = &expected.rows.output;
    let names: Vec<&str> = rows.schema.fields().iter().map(|field| field.name().as_str()).collect();
    let (mut columns, mut unknown): (Vec<&String>, Vec<Mismatch>) = (Vec::new(), Vec::new());
    for column in expected.rows.rows.iter().filter_map(Value::as_object).flat_map(Map::keys) {
        if columns.contains(&column) {
            continue;
        }
        columns.push(column);
        if !names.contains(&column.as_str()) {
            let help = suggest(column, &names, "columns");
            unknown.push(Mismatch::Column { output: output.clone(), column: column.clone(), help });
        }
    }
    // Every row would differ in such a column. An empty output may lack columns: then only the number of rows counts.
    if !unknown.is_empty() && rows.rows > 0 {
        return Ok(unknown);
    }
    let found = json_rows(rows)?;
    let wanted = &expected.rows.rows;
    let mut differences = Vec::new();
    if wanted.len() != found.len() {
        let (expected, found) = (wanted.len(), found.len());
        differences.push(Mismatch::Count { output: output.clone(), expected, found });
    }
    let (mut missing, mut extra) = (Vec::new(), Vec::new());
    if expected.unordered {
        let (lacking, owners) = pair(wanted.len(), found.len(), |row, other| {
            unequal(&wanted[row], &found[other], expected.tolerance).next().is_none()
        });
        missing = lacking;
        extra.extend((0..found.len()).filter(|row| owners[*row].is_none()));
    } else {
        for (index, (row, other)) in wanted.iter().zip(&found).enumerate() {
            for column in unequal(row, other, expected.tolerance) {
                differences.push(Mismatch::Value {
                    output: output.clone(),
                    row: index + 1,
                    column: column.clone(),
                    expected: row[column].clone(),
                    found: value(other, column).clone(),
                });
            }
        }
        missing.extend(found.len()..wanted.len());
        extra.extend(wanted.len()..found.len());
    }
    for row in missing {
        let expected = wanted[row].clone();
        differences.push(Mismatch::Missing { output: output.clone(), row: row + 1, expected });
    }
    for row in extra {
        // Only the columns that the test writes: a row may have many others.
        let mut values = Map::new();
        for column in &columns {
            values.insert((*column).clone(), value(&found[row], column).clone());
        }
        differences.push(Mismatch::Extra { output: output.clone(), row: row + 1, found: Value::Object(values) });
    }
    Ok(differences)
}

/// Pairs as many wanted rows as possible with found ones that fit, by augmenting paths: a wanted row names only some
/// columns, so that several found rows may fit it. Returns the wanted rows without a partner, and the partner of each
/// found row.
fn pair(wanted: usize, found: usize, fits: impl Fn(usize, usize) -> bool) -> (Vec<usize>, Vec<Option<usize>>) {
    let mut owners: Vec<Option<usize>> = vec![None; found];
    let mut lacking = Vec::new();
    for row in 0..wanted {
        if let Some(free) = (0..found).find(|other| owners[*other].is_none() && fits(row, *other)) {
            owners[free] = Some(row);
        } else if !augment(row, &mut owners, &fits) {
            lacking.push(row);
        }
    }
    (lacking, owners)
}

/// Finds a partner for a row by moving others to another partner (breadth first); returns whether it has one now.
fn augment(row: usize, owners: &mut [Option<usize>], fits: impl Fn(usize, usize) -> bool) -> bool {
    // The wanted row from which each found row was reached, and the found row that each wanted row would leave.
    let mut reached: Vec<Option<usize>> = vec![None; owners.len()];
    let mut pending = VecDeque::from([(row, None)]);
    let mut leaves = BTreeMap::new();
    while let Some((row, left)) = pending.pop_front() {
        leaves.insert(row, left);
        for other in 0..owners.len() {
            if reached[other].is_some() || !fits(row, other) {
                continue;
            }
            reached[other] = Some(row);
            if let Some(owner) = owners[other] {
                pending.push_back((owner, Some(other)));
                continue;
            }
            let mut taken = Some(other);
            // Back along the path: the slot that a wanted row leaves goes to the wanted row that reached it.
            while let Some(slot) = taken {
                owners[slot] = reached[slot];
                taken = reached[slot].and_then(|row| leaves.get(&row).copied().flatten());
            }
            return true;
        }
    }
    false
}

fn value<'v>(row: &'v Value, column: &str) -> &'v Value {
    row.get(column).unwrap_or(&Value::Null)
}

/// Returns the columns of `wanted` that have another value in `found`.
fn unequal<'v>(wanted: &'v Value, found: &'v Value, tolerance: f64) -> impl Iterator<Item = &'v String> {
    let entries = wanted.as_object().into_iter().flatten();
    entries.filter(move |(column, wanted)| !equal(wanted, value(found, column), tolerance)).map(|(column, _)| column)
}

/// Whether two values are equal. JSON text equals the value that it stands for; a map is compared by its own keys.
fn equal(wanted: &Value, found: &Value, tolerance: f64) -> bool {
    match (wanted, found) {
        (Value::Number(one), Value::Number(other)) => near(one, other, tolerance),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other, tolerance))
        }
        (Value::Object(_), Value::Object(_)) => unequal(wanted, found, tolerance).next().is_none(),
        (Value::Object(_) | Value::Array(_), Value::String(text)) => {
            serde_json::from_str::<Value>(text).is_ok_and(|found| equal(wanted, &found, tolerance))
        }
        _ => wanted == found,
    }
}

/// Whether the difference of two numbers is at most the tolerance.
fn near(one: &Number, other: &Number, tolerance: f64) -> bool {
    if let (Some(one), Some(other)) = (one.as_i128(), other.as_i128()) {
        return one == other || one.abs_diff(other) as f64 <= tolerance;
    }
    let (Some(one), Some(other)) = (one.as_f64(), other.as_f64()) else { return one == other };
    // 0.68 - 0.67 is not exactly 0.01: the error of the numbers themselves does not count, unless they must be equal.
    let error = if tolerance > 0.0 { f64::EPSILON * one.abs().max(other.abs()) } else { 0.0 };
    (one - other).abs() <= tolerance + error
}

fn json_rows(rows: &RowsInput) -> Result<Vec<Value>, OperatorError> {
    let mut text = Vec::new();
    let mut writer = LineDelimitedWriter::new(&mut text);
    for batch in rows.batches() {
        writer.write(&batch?)?;
    }
    writer.finish()?;
    drop(writer);
    let values = serde_json::Deserializer::from_slice(&text).into_iter::<Value>().collect::<serde_json::Result<_>>();
    values.map_err(|error| OperatorError::data(error.to_string()))
}
