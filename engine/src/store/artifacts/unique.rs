//! Checks that no two rows of a table share an id, for record kinds that require unique ids.
//!
//! The check runs over the finished parts, so it covers every row: from a kernel, a worker, or a linked part of an
//! earlier run. Memory is bounded: at most [`HASHES`] hashes at a time; a longer table is read several times.

use std::fs::File;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use searchmill_schemas::{RecordKind, text_column, text_value};

use super::artifact::Part;
use crate::error::OperatorError;
use crate::fingerprint::mark;
use crate::store::error::IoContext;

/// Limit of id hashes in memory (64 MiB).
const HASHES: u64 = 8 << 20;
/// Limit of characters of a column in an error.
const SHOWN: usize = 60;
const HELP: &str = "give each source its own ids: `id_prefix: NAME-` in `read`, or `'NAME-' || id AS id` in `sql`; \
                    rows that are equal are merged by `dedup` with `by: [id]`";

/// A finished table.
pub(crate) struct Table<'a> {
    pub(crate) port: &'a str,
    pub(crate) kind: RecordKind,
    pub(crate) folder: &'a Path,
    pub(crate) parts: &'a [Part],
}

impl Table<'_> {
    /// Fails if two rows share an id.
    ///
    /// # Errors
    /// With the id, both rows and advice. Also if a part cannot be read.
    pub(crate) fn check_ids(&self) -> Result<(), OperatorError> {
        self.check_with(HASHES)
    }

    fn check_with(&self, most: u64) -> Result<(), OperatorError> {
        let Some(column) = self.kind.id_column() else { return Ok(()) };
        let rows: u64 = self.parts.iter().map(|part| part.rows).sum();
        let passes = rows.div_ceil(most).max(1);
        // A pass looks at the ids whose hashes have one remainder: two equal ids are in the same pass.
        for pass in 0..passes {
            let mut hashes = Vec::with_capacity(usize::try_from(rows / passes).unwrap_or_default());
            self.for_each_id(column, |id| {
                let hash = mark(id.as_bytes());
                if hash % passes == pass {
                    hashes.push(hash);
                }
                Ok(())
            })?;
            hashes.sort_unstable();
            let pairs = hashes.windows(2).filter(|pair| pair[0] == pair[1]);
            let repeated: Vec<u64> = pairs.map(|pair| pair[0]).collect();
            if repeated.is_empty() {
                continue;
            }
            // Not needed any more, and they may be 64 MiB.
            drop(hashes);
            // In row order: the first id that occurs again is reported. Hashes rarely collide: few ids are looked up.
            self.for_each_id(column, |id| match repeated.binary_search(&mark(id.as_bytes())) {
                Ok(_) => self.check_id(column, id),
                Err(_) => Ok(()),
            })?;
        }
        Ok(())
    }

    fn check_id(&self, column: &str, id: &str) -> Result<(), OperatorError> {
        let (kind, port) = (self.kind, self.port);
        let rows = self.rows_with(column, id)?;
        if rows.len() < 2 {
            return Ok(());
        }
        let message = format!("two {kind} rows of `{port}` have the id `{}`: {}", shorten(id), rows.join("; "));
        Err(OperatorError::data(message).with_help(HELP))
    }

    /// Describes the first two rows with an id, numbered from 1.
    fn rows_with(&self, column: &str, id: &str) -> Result<Vec<String>, OperatorError> {
        let (mut rows, mut before) = (Vec::new(), 0);
        for part in self.parts {
            for batch in reader(&self.folder.join(&part.name), None)? {
                let batch = batch?;
                let ids = text_column(&batch, column)?;
                for row in 0..ids.len() {
                    if ids.value(row) == id {
                        rows.push(format!("row {}: {}", before + row + 1, describe(&batch, column, row)));
                    }
                    if rows.len() == 2 {
                        return Ok(rows);
                    }
                }
                before += batch.num_rows();
            }
        }
        Ok(rows)
    }

    /// Passes the ids to `each`, in row order, until it fails.
    fn for_each_id(
        &self,
        column: &str,
        mut each: impl FnMut(&str) -> Result<(), OperatorError>,
    ) -> Result<(), OperatorError> {
        for part in self.parts {
            for batch in reader(&self.folder.join(&part.name), Some(column))? {
                for id in text_column(&batch?, column)?.iter().flatten() {
                    each(id)?;
                }
            }
        }
        Ok(())
    }
}

fn reader(path: &Path, column: Option<&str>) -> Result<ParquetRecordBatchReader, OperatorError> {
    let file = File::open(path).context("open", path)?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)?.with_batch_size(8192);
    let Some(column) = column else { return Ok(builder.build()?) };
    let mask = ProjectionMask::columns(builder.parquet_schema(), [column]);
    Ok(builder.with_projection(mask).build()?)
}

/// Returns the first texts of a row besides its id: enough to see whether two rows are equal.
fn describe(batch: &RecordBatch, id: &str, row: usize) -> String {
    let mut shown = Vec::new();
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        if field.name() == id || *field.data_type() != DataType::Utf8 || shown.len() == 2 {
            continue;
        }
        match text_value(column.as_string::<i32>(), row) {
            Some(text) if !text.is_empty() => shown.push(format!("{} `{}`", field.name(), shorten(text))),
            _ => {}
        }
    }
    if shown.is_empty() { "no text".to_owned() } else { shown.join(", ") }
}

fn shorten(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;
    use searchmill_schemas::{Hit, Question, Record, to_batch};

    use super::*;
    use crate::fingerprint::hash_bytes;
    use crate::operator::{OutputSink, PortType};
    use crate::store::{Store, StoreSink};

    fn question(number: usize, text: &str) -> Question {
        Question {
            id: format!("dev_{number}"),
            question: text.to_owned(),
            golden_answers: Vec::new(),
            question_type: None,
            evidence: Vec::new(),
            metadata: None,
        }
    }

    fn commit<R: Record>(batches: &[Vec<R>]) -> Result<(), OperatorError> {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let ports = IndexMap::from([("rows".to_owned(), PortType::Rows(R::KIND))]);
        let mut sink = StoreSink::new(&store, ports);
        for batch in batches {
            sink.write("rows", &to_batch(batch).unwrap())?;
        }
        sink.commit().map(drop)
    }

    #[test]
    fn two_rows_with_one_id_are_not_committed() {
        let hotpot: Vec<_> = (0..5000).map(|number| question(number, "Which band?")).collect();
        let wiki = vec![question(5000, "Who?"), question(17, "When did\nshe die?")];
        commit(&[hotpot.clone(), wiki[..1].to_vec()]).expect("ids differ");
        let error = commit(&[hotpot, wiki]).expect_err("dev_17 comes twice");
        assert_eq!(
            error.message,
            "two question rows of `rows` have the id `dev_17`: row 18: question `Which band?`; row 5002: question \
             `When did she die?`"
        );
        assert!(error.help.is_some_and(|help| help.contains("id_prefix") && help.contains("dedup")));
    }

    #[test]
    fn parts_of_earlier_artifacts_are_looked_at_too() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let sink =
            || StoreSink::new(&store, IndexMap::from([("rows".to_owned(), PortType::Rows(RecordKind::Question))]));
        let rows: Vec<_> = (0..3000).map(|number| question(number, "?")).collect();
        let key = |part: &[u8]| crate::fingerprint::block_key(&hash_bytes(b"base"), &hash_bytes(part));
        let mut first = sink();
        first.write("rows", &to_batch(&rows).unwrap()).unwrap();
        first.end_block(key(b"one"), 3000).unwrap();
        let (_, block) = first.commit().unwrap().blocks.remove(0);
        let mut again = sink();
        assert!(again.adopt_block(key(b"one"), &block).unwrap() && again.adopt_block(key(b"two"), &block).unwrap());
        let error = again.commit().expect_err("the same part twice");
        assert!(error.message.contains("`dev_0`: row 1") && error.message.contains("row 3001"), "{}", error.message);
    }

    #[test]
    fn kinds_without_ids_of_their_own_are_not_looked_at() {
        let hit = Hit {
            id: "q@1".to_owned(),
            question_id: "q".to_owned(),
            query: String::new(),
            rank: 1,
            score: 0.0,
            chunk_id: "c".to_owned(),
            document_id: "d".to_owned(),
            title: None,
            contents: String::new(),
            sources: Vec::new(),
        };
        commit(&[vec![hit.clone(), hit]]).expect("a chunk may be found twice");
    }

    #[test]
    fn a_table_longer_than_memory_is_looked_through_in_passes() {
        let folder = tempfile::tempdir().unwrap();
        let rows =
            |repeat: usize| (0..3000).map(move |number| question(if number == 2999 { repeat } else { number }, "?"));
        for (repeat, unique) in [(2999, true), (0, false), (1500, false)] {
            let batch = to_batch(&rows(repeat).collect::<Vec<_>>()).unwrap();
            let name = "part-00000.parquet".to_owned();
            let part =
                crate::store::artifacts::table::write_part(folder.path(), name, &batch.schema(), &[batch]).unwrap();
            let table = Table { port: "rows", kind: RecordKind::Question, folder: folder.path(), parts: &[part] };
            for most in [7, 500, 2999, 3000, HASHES] {
                assert_eq!(table.check_with(most).is_ok(), unique, "{repeat} {most}");
            }
        }
    }
}
