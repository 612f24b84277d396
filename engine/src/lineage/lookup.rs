//! Finds rows by a text column in large tables. Reads only that column and the id, and skips row groups whose
//! statistics exclude the text.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReaderBuilder, RowSelector};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;
use parquet::schema::types::SchemaDescriptor;
use searchmill_schemas::text_value;

use crate::error::OperatorError;
use crate::operator::{InputArtifact, RowsInput};
use crate::store::{ArtifactId, IoContext, Store};

/// A row that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowPlace {
    /// Row number in the table, from 0.
    pub(crate) row: u64,
    /// Its id, if the table has ids.
    pub(crate) id: Option<String>,
    /// The text that matched.
    pub(crate) matched: String,
}

impl RowPlace {
    /// Returns the id of the row; in a table without ids, the text that matched.
    pub(crate) fn own_id(&self) -> &str {
        self.id.as_deref().unwrap_or(&self.matched)
    }
}

/// Opens the table of an artifact; `None` for folders and missing artifacts.
pub(super) fn table(store: &Store, id: &ArtifactId) -> Option<RowsInput> {
    whole_table(store, id).ok().flatten()
}

/// Opens the table of an artifact; `None` for folders.
///
/// # Errors
/// Fails if the artifact is missing or damaged.
pub(super) fn whole_table(store: &Store, id: &ArtifactId) -> Result<Option<RowsInput>, OperatorError> {
    match store.open_input(id)? {
        InputArtifact::Rows(rows) => Ok(Some(rows)),
        InputArtifact::Tree(_) => Ok(None),
    }
}

pub(crate) type Builder = ParquetRecordBatchReaderBuilder<File>;

/// Returns the rows in which a column contains one of these texts, in table order, one entry per row and text. The path
/// may lead through lists. Empty if the table has no such column.
pub(crate) fn rows_with(
    table: &RowsInput,
    path: &[&str],
    wanted: &BTreeSet<String>,
) -> Result<Vec<RowPlace>, OperatorError> {
    let mut found = Vec::new();
    let mut start = 0;
    if wanted.is_empty() {
        return Ok(found);
    }
    for part in table.parts() {
        let builder = open(part)?;
        let (metadata, schema) = (builder.metadata().clone(), builder.parquet_schema().clone());
        // All parts of a table have the same columns.
        let Some(leaf) = leaf(&schema, path) else { return Ok(found) };
        for (place, group) in metadata.row_groups().iter().enumerate() {
            if may_hold(group, leaf, wanted) {
                let leaves = [Some(leaf), self::leaf(&schema, &["id"])].into_iter().flatten();
                let mask = ProjectionMask::leaves(&schema, leaves);
                let reader = open(part)?.with_projection(mask).with_row_groups(vec![place]).with_batch_size(8192);
                let mut offset = start;
                for batch in reader.build()? {
                    let batch = batch?;
                    search(&batch, path, wanted, offset, &mut found);
                    offset += batch.num_rows() as u64;
                }
            }
            // Rows are numbered in the whole table, so those of skipped groups count too.
            start += u64::try_from(group.num_rows()).unwrap_or(0);
        }
    }
    Ok(found)
}

/// Reads one row with all its columns.
pub(crate) fn read_row(table: &RowsInput, row: u64) -> Result<Option<RecordBatch>, OperatorError> {
    Ok(read_rows(table, &BTreeSet::from([row]))?.pop())
}

/// Reads rows by number with all their columns, each as a batch of one, in table order.
pub(crate) fn read_rows(table: &RowsInput, rows: &BTreeSet<u64>) -> Result<Vec<RecordBatch>, OperatorError> {
    let (mut found, mut start) = (Vec::with_capacity(rows.len()), 0);
    for part in table.parts() {
        let builder = open(part)?;
        let end = start + u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
        let selection = selection(rows.range(start..end).map(|row| (row - start) as usize));
        start = end;
        if selection.is_empty() {
            continue;
        }
        for batch in builder.with_row_selection(selection.into()).with_batch_size(1024).build()? {
            let batch = batch?;
            found.extend((0..batch.num_rows()).map(|row| batch.slice(row, 1)));
        }
    }
    Ok(found)
}

/// Returns the selectors of rows by number, in ascending order.
pub(crate) fn selection(rows: impl Iterator<Item = usize>) -> Vec<RowSelector> {
    let (mut selectors, mut next) = (Vec::new(), 0);
    for row in rows {
        selectors.extend((row > next).then(|| RowSelector::skip(row - next)));
        selectors.push(RowSelector::select(1));
        next = row + 1;
    }
    selectors
}

/// Opens a part of a table.
pub(crate) fn open(part: &Path) -> Result<Builder, OperatorError> {
    Ok(Builder::try_new(File::open(part).context("open", part)?)?)
}

/// Returns the leaf column of a path.
fn leaf(schema: &SchemaDescriptor, path: &[&str]) -> Option<usize> {
    (0..schema.num_columns()).find(|place| {
        let column = schema.column(*place);
        let mut parts = column.path().parts().iter();
        let first = parts.next().map(String::as_str) == path.first().copied();
        // The steps between them name the list and its items.
        first && path[1..].iter().all(|name| parts.any(|part| part == name))
    })
}

/// Whether a row group can contain one of these texts. Bounds of long texts are truncated but still valid.
fn may_hold(group: &RowGroupMetaData, leaf: usize, wanted: &BTreeSet<String>) -> bool {
    let Some(Statistics::ByteArray(bounds)) = group.column(leaf).statistics() else { return true };
    let (Some(low), Some(high)) = (bounds.min_opt(), bounds.max_opt()) else { return true };
    wanted.iter().any(|text| low.data() <= text.as_bytes() && text.as_bytes() <= high.data())
}

fn search(batch: &RecordBatch, path: &[&str], wanted: &BTreeSet<String>, offset: u64, found: &mut Vec<RowPlace>) {
    let mut matches: Vec<(usize, &str)> = Vec::new();
    if let [name] = path
        && let Some(column) = string_column(batch, name)
    {
        for (row, text) in column.iter().enumerate() {
            if let Some(text) = text
                && wanted.contains(text)
            {
                matches.push((row, text));
            }
        }
    } else {
        for row in 0..batch.num_rows() {
            let mut there = texts(batch, row, path);
            there.retain(|text| wanted.contains(*text));
            there.sort_unstable();
            there.dedup();
            matches.extend(there.into_iter().map(|text| (row, text)));
        }
    }
    let ids = string_column(batch, "id");
    for (row, text) in matches {
        let id = ids.and_then(|ids| text_value(ids, row)).map(str::to_owned);
        found.push(RowPlace { row: offset + row as u64, id, matched: text.to_owned() });
    }
}

fn string_column<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a StringArray> {
    batch.column_by_name(name)?.as_string_opt::<i32>()
}

/// Returns the texts at a path of one row, in order, also through lists.
pub(crate) fn texts<'a>(batch: &'a RecordBatch, row: usize, path: &[&str]) -> Vec<&'a str> {
    located(batch, row, path).into_iter().map(|(_, text)| text).collect()
}

/// Returns the texts at a path with their positions in the lists on the way, from 0.
pub(crate) fn located<'a>(batch: &'a RecordBatch, row: usize, path: &[&str]) -> Vec<(Vec<usize>, &'a str)> {
    let mut found = Vec::new();
    if let Some((first, rest)) = path.split_first()
        && let Some(column) = batch.column_by_name(first)
    {
        gather(column.as_ref(), row, rest, &mut Vec::new(), &mut found);
    }
    found
}

fn gather<'a>(
    array: &'a dyn Array,
    row: usize,
    path: &[&str],
    places: &mut Vec<usize>,
    found: &mut Vec<(Vec<usize>, &'a str)>,
) {
    if array.is_null(row) {
        return;
    }
    match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let ends = list.value_offsets();
            for (place, item) in (ends[row]..ends[row + 1]).enumerate() {
                places.push(place);
                gather(list.values().as_ref(), item as usize, path, places, found);
                places.pop();
            }
        }
        DataType::Struct(_) => {
            if let Some((first, rest)) = path.split_first()
                && let Some(column) = array.as_struct().column_by_name(first)
            {
                gather(column.as_ref(), row, rest, places, found);
            }
        }
        DataType::Utf8 if path.is_empty() => found.push((places.clone(), array.as_string::<i32>().value(row))),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;
    use searchmill_schemas::{Chunk, Record, to_batch};

    use super::*;
    use crate::operator::{InputArtifact, OutputSink, PortType};
    use crate::store::{Store, StoreSink};

    fn chunk(number: usize) -> Chunk {
        Chunk {
            id: format!("d{:05}#{}", number / 3, number % 3),
            document_id: format!("d{:05}", number / 3),
            position: 0,
            document_chunks: 3,
            title: None,
            text: String::new(),
            contents: String::new(),
            start: 0,
            end: 0,
            tokens: 0,
            metadata: None,
        }
    }

    fn table(store: &Store) -> RowsInput {
        let ports = IndexMap::from([("rows".to_owned(), PortType::Rows(Chunk::KIND))]);
        let mut sink = StoreSink::new(store, ports);
        for start in (0..9000).step_by(1000) {
            sink.write("rows", &to_batch(&(start..start + 1000).map(chunk).collect::<Vec<_>>()).unwrap()).unwrap();
        }
        let id = sink.commit().unwrap().outputs["rows"].id;
        match store.open_input(&id).unwrap() {
            InputArtifact::Rows(rows) => rows,
            InputArtifact::Tree(_) => unreachable!("rows were written"),
        }
    }

    #[test]
    fn rows_are_found_by_id_and_by_parent() {
        let folder = tempfile::tempdir().unwrap();
        let table = table(&Store::open(folder.path()).unwrap());
        let wanted = BTreeSet::from(["d02000#1".to_owned(), "nobody".to_owned()]);
        let found = rows_with(&table, &["id"], &wanted).unwrap();
        assert_eq!(found.iter().map(|place| place.row).collect::<Vec<_>>(), [6001]);
        let row = read_row(&table, 6001).unwrap().unwrap();
        assert_eq!((row.num_rows(), texts(&row, 0, &["document_id"])), (1, vec!["d02000"]));
        let children = rows_with(&table, &["document_id"], &BTreeSet::from(["d00007".to_owned()])).unwrap();
        let ids: Vec<_> = children.iter().filter_map(|place| place.id.as_deref()).collect();
        assert_eq!(ids, ["d00007#0", "d00007#1", "d00007#2"]);
        assert!(rows_with(&table, &["no", "such"], &wanted).unwrap().is_empty());
        assert_eq!(read_row(&table, 9000).unwrap(), None);
    }
}
