//! Compares recorded with recomputed output and finds the first difference.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde::Serialize;

use super::lookup::texts;
use crate::error::OperatorError;
use crate::operator::RowsInput;
use crate::store::{Artifact, column_list};

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
pub fn first_difference(recorded: &RowsInput, again: &RowsInput) -> Result<Option<(Difference, u64)>, OperatorError> {
    let (mut one, mut other) = (recorded.batches(), again.batches());
    let (mut left, mut right) = (None, None);
    let (mut row, mut count, mut first) = (0, 0, None);
    // The tables may be cut into batches of other lengths: what is left of the longer one waits for the next turn.
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
    let missing = recorded.rows.abs_diff(again.rows);
    if first.is_none() && missing > 0 {
        first = Some(difference("number of rows".to_owned(), &recorded.rows.to_string(), &again.rows.to_string()));
    }
    if first.is_none() {
        let (one, other) = (column_list(&recorded.schema), column_list(&again.schema));
        if one != other {
            first = Some(difference("columns".to_owned(), &one, &other));
        }
    }
    Ok(first.map(|first| (first, count + missing)))
}

/// Returns the rest of a batch if it has rows, or else the next batch that has.
fn filled(
    rest: Option<RecordBatch>,
    more: &mut impl Iterator<Item = Result<RecordBatch, OperatorError>>,
) -> Result<Option<RecordBatch>, OperatorError> {
    let mut batches = rest.map(Ok).into_iter().chain(more);
    batches.find(|batch| !matches!(batch, Ok(batch) if batch.num_rows() == 0)).transpose()
}

/// Returns the rows that differ between two batches of equal length.
fn differing_rows(one: &RecordBatch, other: &RecordBatch) -> Vec<usize> {
    let mut unequal = columns(one, other);
    // Whole columns first: comparing a column cell by cell is slow, and most columns are equal.
    unequal.retain(|(_, a, b)| b.as_ref().is_none_or(|b| a.to_data() != b.to_data()));
    if unequal.is_empty() {
        return Vec::new();
    }
    (0..one.num_rows()).filter(|row| unequal.iter().any(|(_, a, b)| !same_cell(a, b.as_ref(), *row))).collect()
}

/// Pairs the columns of both batches by name.
fn columns(one: &RecordBatch, other: &RecordBatch) -> Vec<(String, ArrayRef, Option<ArrayRef>)> {
    let mut pairs = Vec::with_capacity(one.num_columns());
    for (field, column) in one.schema().fields().iter().zip(one.columns()) {
        pairs.push((field.name().clone(), ArrayRef::clone(column), other.column_by_name(field.name()).cloned()));
    }
    pairs
}

fn same_cell(one: &ArrayRef, other: Option<&ArrayRef>, row: usize) -> bool {
    other.is_some_and(|other| one.slice(row, 1).to_data() == other.slice(row, 1).to_data())
}

/// Returns the difference of two rows (batches of one).
pub(crate) fn row_difference(one: &RecordBatch, other: &RecordBatch, number: u64) -> Option<Difference> {
    let (name, a, b) = columns(one, other).into_iter().find(|(_, a, b)| !same_cell(a, b.as_ref(), 0))?;
    let id = texts(one, 0, &["id"]).first().map(|id| format!(" ({id})")).unwrap_or_default();
    let computed = b.as_ref().map_or_else(|| "no such column".to_owned(), cell);
    Some(difference(format!("row {number}{id}, column `{name}`"), &cell(&a), &computed))
}

fn cell(column: &ArrayRef) -> String {
    let options = FormatOptions::default().with_null("null");
    let text = ArrayFormatter::try_new(column.as_ref(), &options);
    text.and_then(|text| text.value(0).try_to_string()).unwrap_or_default()
}

/// Shows two texts from where they start to differ.
pub(crate) fn difference(place: String, recorded: &str, computed: &str) -> Difference {
    /// Cuts a text that is too long on either side.
    fn shown(text: &str, start: usize) -> String {
        let cut: String = text.chars().skip(start).take(SHOWN).collect();
        let rest = text.chars().count() > start + SHOWN;
        format!("{}{}{}", if start > 0 { "…" } else { "" }, cut, if rest { "…" } else { "" })
    }
    let mut start = 0;
    if recorded.chars().count().max(computed.chars().count()) > SHOWN {
        let common = recorded.chars().zip(computed.chars()).take_while(|(a, b)| a == b).count();
        start = common.saturating_sub(BEFORE);
    }
    Difference { place, recorded: shown(recorded, start), computed: shown(computed, start) }
}

/// Returns the first file in which two folders differ.
pub(crate) fn file_difference(recorded: &Artifact, computed: &Artifact) -> Option<Difference> {
    let (one, other) = (files(recorded), files(computed));
    let name = one.keys().chain(other.keys()).find(|name| one.get(*name) != other.get(*name))?;
    let missing = "not there".to_owned();
    let (recorded, computed) = (one.get(name).unwrap_or(&missing), other.get(name).unwrap_or(&missing));
    Some(Difference { place: format!("file `{name}`"), recorded: recorded.clone(), computed: computed.clone() })
}

/// Describes the files of a folder by name.
fn files(artifact: &Artifact) -> BTreeMap<&str, String> {
    let parts = artifact.parts.iter();
    parts.map(|part| (part.name.as_str(), format!("{} ({} bytes)", part.digest.short(), part.bytes))).collect()
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
