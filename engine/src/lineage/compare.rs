//! Compares recorded with recomputed output and finds the first difference.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde::Serialize;

use super::lookup::texts;
use crate::error::OperatorError;
use crate::operator::RowsInput;
use crate::store::Artifact;

/// Characters of a value that are shown.
const SHOWN: usize = 100;
/// How many of them precede the first difference.
const BEFORE: usize = 30;

/// The first difference of two tables or folders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The location: `row 7 (q3@0), column prediction`, or a file.
    pub place: String,
    /// The recorded value.
    pub recorded: String,
    /// The computed value.
    pub computed: String,
}

/// Returns the first row and column in which two tables differ, and the number of differing rows.
///
/// # Errors
/// Fails if a table cannot be read.
pub fn first_difference(
    recorded: &RowsInput,
    computed: &RowsInput,
) -> Result<Option<(Difference, u64)>, OperatorError> {
    let (mut one, mut other) = (recorded.batches(), computed.batches());
    let (mut left, mut right) = (None, None);
    let (mut row, mut count, mut first) = (0, 0, None);
    while let (Some(a), Some(b)) = (filled(left.take(), &mut one)?, filled(right.take(), &mut other)?) {
        let rows = a.num_rows().min(b.num_rows());
        let differing = differing_rows(&a.slice(0, rows), &b.slice(0, rows));
        if first.is_none()
            && let Some(place) = differing.first()
        {
            first = row_difference(&a.slice(*place, 1), &b.slice(*place, 1), row + *place as u64);
        }
        count += differing.len() as u64;
        row += rows as u64;
        left = Some(a.slice(rows, a.num_rows() - rows));
        right = Some(b.slice(rows, b.num_rows() - rows));
    }
    let missing = recorded.rows.abs_diff(computed.rows);
    let of_length = || Difference {
        place: "number of rows".to_owned(),
        recorded: recorded.rows.to_string(),
        computed: computed.rows.to_string(),
    };
    let first = first.or_else(|| (missing > 0).then(of_length));
    let first = first.or_else(|| schema_difference(recorded, computed));
    Ok(first.map(|first| (first, count + missing)))
}

/// Returns the rest of a batch if it has rows, or else the next batch that has.
fn filled(
    rest: Option<RecordBatch>,
    more: &mut impl Iterator<Item = Result<RecordBatch, OperatorError>>,
) -> Result<Option<RecordBatch>, OperatorError> {
    let has_rows = |batch: &Result<RecordBatch, _>| batch.as_ref().map_or(true, |batch| batch.num_rows() > 0);
    rest.map(Ok).into_iter().chain(more).find(has_rows).transpose()
}

fn schema_difference(recorded: &RowsInput, computed: &RowsInput) -> Option<Difference> {
    let columns = |table: &RowsInput| {
        let column = |field: &arrow::datatypes::FieldRef| format!("{} {}", field.name(), field.data_type());
        table.schema.fields().iter().map(column).collect::<Vec<_>>().join(", ")
    };
    let (one, other) = (columns(recorded), columns(computed));
    (one != other).then(|| difference("columns".to_owned(), &one, &other))
}

/// Returns the rows that differ between two batches of equal length.
fn differing_rows(one: &RecordBatch, other: &RecordBatch) -> Vec<usize> {
    let unequal: Vec<(ArrayRef, Option<ArrayRef>)> = columns(one, other)
        .into_iter()
        .filter(|(_, a, b)| b.as_ref().is_none_or(|b| a.to_data() != b.to_data()))
        .map(|(_, a, b)| (a, b))
        .collect();
    if unequal.is_empty() {
        return Vec::new();
    }
    let differs = |row: &usize| unequal.iter().any(|(a, b)| !same_cell(a, b.as_ref(), *row));
    (0..one.num_rows()).filter(differs).collect()
}

/// Pairs the columns of both batches by name.
fn columns(one: &RecordBatch, other: &RecordBatch) -> Vec<(String, ArrayRef, Option<ArrayRef>)> {
    let schema = one.schema();
    let column = |(field, column): (&arrow::datatypes::FieldRef, &ArrayRef)| {
        (field.name().clone(), ArrayRef::clone(column), other.column_by_name(field.name()).cloned())
    };
    schema.fields().iter().zip(one.columns()).map(column).collect()
}

fn same_cell(one: &ArrayRef, other: Option<&ArrayRef>, row: usize) -> bool {
    other.is_some_and(|other| one.slice(row, 1).to_data() == other.slice(row, 1).to_data())
}

/// Returns the difference of two rows (batches of one).
pub(crate) fn row_difference(one: &RecordBatch, other: &RecordBatch, number: u64) -> Option<Difference> {
    let columns = columns(one, other);
    let (name, a, b) = columns.into_iter().find(|(_, a, b)| !same_cell(a, b.as_ref(), 0))?;
    let id = texts(one, 0, &["id"]).first().map_or_else(String::new, |id| format!(" ({id})"));
    let place = format!("row {number}{id}, column `{name}`");
    Some(difference(place, &cell(&a), &b.as_ref().map_or_else(|| "no such column".to_owned(), cell)))
}

fn cell(column: &ArrayRef) -> String {
    let options = FormatOptions::default().with_null("null");
    let text = ArrayFormatter::try_new(column.as_ref(), &options).ok();
    text.and_then(|text| text.value(0).try_to_string().ok()).unwrap_or_default()
}

/// Shows two texts from where they start to differ.
pub(crate) fn difference(place: String, recorded: &str, computed: &str) -> Difference {
    let common = recorded.chars().zip(computed.chars()).take_while(|(a, b)| a == b).count();
    let start =
        if recorded.chars().count().max(computed.chars().count()) > SHOWN { common.saturating_sub(BEFORE) } else { 0 };
    let shown = |text: &str| {
        let cut: String = text.chars().skip(start).take(SHOWN).collect();
        let rest = text.chars().count() > start + SHOWN;
        format!("{}{}{}", if start > 0 { "…" } else { "" }, cut, if rest { "…" } else { "" })
    };
    Difference { place, recorded: shown(recorded), computed: shown(computed) }
}

/// Returns the first file in which two folders differ.
pub(crate) fn file_difference(recorded: &Artifact, computed: &Artifact) -> Option<Difference> {
    let files = |artifact: &Artifact| -> BTreeMap<String, String> {
        let digest =
            |part: &crate::store::Part| (part.name.clone(), format!("{} ({} bytes)", part.digest.short(), part.bytes));
        artifact.parts.iter().map(digest).collect()
    };
    let (one, other) = (files(recorded), files(computed));
    let name = one.keys().chain(other.keys()).find(|name| one.get(*name) != other.get(*name))?;
    let shown = |files: &BTreeMap<String, String>| files.get(name).cloned().unwrap_or_else(|| "not there".to_owned());
    Some(Difference { place: format!("file `{name}`"), recorded: shown(&one), computed: shown(&other) })
}

#[cfg(test)]
mod tests {
    use searchmill_schemas::{Document, RecordKind, to_batch};

    use super::*;

    fn table(texts: &[&str], cut: usize) -> RowsInput {
        let row = |(place, text): (usize, &&str)| Document {
            id: format!("d{place}"),
            title: None,
            text: (*text).to_owned(),
            metadata: None,
        };
        let batch = to_batch(&texts.iter().enumerate().map(row).collect::<Vec<_>>()).unwrap();
        let pieces = (0..texts.len()).step_by(cut).map(|at| batch.slice(at, cut.min(texts.len() - at))).collect();
        RowsInput::from_batches(RecordKind::Document, RecordKind::Document.schema(), pieces)
    }

    #[test]
    fn the_first_differing_cell_is_named_however_the_tables_are_cut() {
        let same = first_difference(&table(&["a", "b", "c"], 2), &table(&["a", "b", "c"], 1)).unwrap();
        assert_eq!(same, None);
        let (first, count) =
            first_difference(&table(&["a", "b", "c"], 2), &table(&["a", "x", "y"], 3)).unwrap().unwrap();
        assert_eq!((first.place.as_str(), count), ("row 1 (d1), column `text`", 2));
        assert_eq!((first.recorded.as_str(), first.computed.as_str()), ("b", "x"));
        let (shorter, count) = first_difference(&table(&["a", "b"], 2), &table(&["a"], 1)).unwrap().unwrap();
        assert_eq!((shorter.place.as_str(), count), ("number of rows", 1));
    }

    #[test]
    fn long_values_are_shown_where_they_differ() {
        let (one, other) = (format!("{}one", "x".repeat(500)), format!("{}two", "x".repeat(500)));
        let found = difference("here".to_owned(), &one, &other);
        assert_eq!(found.recorded, format!("…{}one", "x".repeat(30)));
        assert_eq!(found.computed, format!("…{}two", "x".repeat(30)));
    }
}
