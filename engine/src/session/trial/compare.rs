//! Compares the rows of an output with the expected ones. Only the columns that are written count.

use std::fmt;

use arrow::json::LineDelimitedWriter;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::operator::{OperatorError, RowsInput};
use crate::session::failure::Failure;
use crate::spec::{Expected, suggest};

/// A difference between expected and found rows. Rows count from 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "mismatch", rename_all = "snake_case")]
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
pub(super) fn compare(expected: &Expected, rows: &RowsInput) -> Result<Vec<Mismatch>, Failure> {
    let output = &expected.rows.output;
    let mut columns: Vec<&String> = Vec::new();
    for column in expected.rows.rows.iter().filter_map(Value::as_object).flat_map(Map::keys) {
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    let names: Vec<&str> = rows.schema.fields().iter().map(|field| field.name().as_str()).collect();
    let unknown = columns.iter().filter(|column| !names.contains(&column.as_str()));
    let unknown: Vec<Mismatch> = unknown
        .map(|column| Mismatch::Column {
            output: output.clone(),
            column: (*column).clone(),
            help: suggest(column, &names, "columns"),
        })
        .collect();
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
    let extra = |place: usize| {
        let values = columns.iter().map(|column| ((*column).clone(), value(&found[place], column).clone()));
        Mismatch::Extra { output: output.clone(), row: place + 1, found: Value::Object(values.collect()) }
    };
    let missing =
        |place: usize| Mismatch::Missing { output: output.clone(), row: place + 1, expected: wanted[place].clone() };
    if expected.unordered {
        let mut free: Vec<usize> = (0..found.len()).collect();
        for (place, row) in wanted.iter().enumerate() {
            let fits = |other: &usize| unequal(row, &found[*other], expected.tolerance).next().is_none();
            match free.iter().position(fits) {
                Some(at) => drop(free.remove(at)),
                None => differences.push(missing(place)),
            }
        }
        differences.extend(free.into_iter().map(extra));
        return Ok(differences);
    }
    for (place, (row, other)) in wanted.iter().zip(&found).enumerate() {
        differences.extend(unequal(row, other, expected.tolerance).map(|column| Mismatch::Value {
            output: output.clone(),
            row: place + 1,
            column: column.clone(),
            expected: row[column].clone(),
            found: value(other, column).clone(),
        }));
    }
    differences.extend((found.len()..wanted.len()).map(missing));
    differences.extend((wanted.len()..found.len()).map(extra));
    Ok(differences)
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
        (Value::Number(one), Value::Number(other)) => match (one.as_i64(), other.as_i64()) {
            (Some(one), Some(other)) => one == other,
            _ => match (one.as_f64(), other.as_f64()) {
                (Some(one), Some(other)) => (one - other).abs() <= tolerance * 1.0_f64.max(one.abs()),
                _ => one == other,
            },
        },
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

fn json_rows(rows: &RowsInput) -> Result<Vec<Value>, OperatorError> {
    let mut text = Vec::new();
    let mut writer = LineDelimitedWriter::new(&mut text);
    for batch in rows.batches() {
        writer.write(&batch?)?;
    }
    writer.finish()?;
    drop(writer);
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).map_err(|error| OperatorError::data(error.to_string()))).collect()
}
