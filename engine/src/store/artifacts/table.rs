//! Writes one output table as Parquet parts. The rows alone determine where it is cut.
//!
//! Equal rows give equal bytes, however the kernel batches them and however many threads encode them. A changed row
//! changes only its own part.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::BatchCoalescer;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use searchmill_schemas::RecordKind;

use super::artifact::Part;
use crate::error::OperatorError;
use crate::fingerprint::{hash_file, is_boundary};
use crate::store::error::IoContext;
use crate::store::nofollow;

/// Rows per batch passed to the encoder.
const BATCH_ROWS: usize = 1024;
/// Minimum rows of a part, unless it is the last one or its rows are large.
pub(super) const PART_LEAST_ROWS: usize = 2048;
/// Maximum rows of a part.
const PART_MOST_ROWS: usize = 16_384;
/// A part ends after the batch in which its values exceed this many bytes, before encoding.
const PART_BYTES: usize = 32 << 20;

/// A part that was written, or why it was not.
type Encoded = Result<Part, OperatorError>;

/// A table being written.
pub(super) struct TableWriter {
    pub(crate) folder: PathBuf,
    kind: RecordKind,
    pub(crate) schema: SchemaRef,
    coalescer: BatchCoalescer,
    /// Batches of the current part, their bytes and rows (including those in the coalescer).
    part: Vec<RecordBatch>,
    part_bytes: usize,
    part_rows: usize,
    /// Number of rows written so far.
    pub(crate) rows: u64,
    /// The first parts.
    finished: Vec<Part>,
    /// The parts after them, some of which are being encoded.
    encoding: VecDeque<Receiver<Encoded>>,
    /// Whether a batch was adapted since the end of the last block.
    pub(super) refitted: bool,
}

impl TableWriter {
    /// Creates a table. Its folder is created with the first part.
    pub(crate) fn new(folder: PathBuf, kind: RecordKind, schema: &SchemaRef) -> Self {
        Self {
            folder,
            kind,
            schema: Arc::clone(schema),
            coalescer: BatchCoalescer::new(Arc::clone(schema), BATCH_ROWS),
            part: Vec::new(),
            part_bytes: 0,
            part_rows: 0,
            rows: 0,
            finished: Vec::new(),
            encoding: VecDeque::new(),
            refitted: false,
        }
    }

    /// Returns the number of parts before the current one.
    fn next_part(&self) -> usize {
        self.finished.len() + self.encoding.len()
    }

    /// Returns the number of parts, including the current one if it has rows.
    pub(super) fn part_count(&self) -> usize {
        self.next_part() + usize::from(self.part_rows > 0)
    }

    pub(crate) fn write(&mut self, port: &str, batch: &RecordBatch) -> Result<(), OperatorError> {
        let batch = self.fit(port, batch)?;
        self.rows += batch.num_rows() as u64;
        let mut start = 0;
        while start < batch.num_rows() {
            let (end, boundary) = self.next_step(&batch, start);
            self.part_rows += end - start;
            self.coalescer.push_batch(batch.slice(start, end - start))?;
            self.take_completed();
            if self.part_rows >= PART_MOST_ROWS || self.part_bytes >= PART_BYTES || boundary {
                self.cut()?;
            }
            start = end;
        }
        Ok(())
    }

    /// Returns the end of the rows from `start` that go to the encoder together, and whether they end a part.
    fn next_step(&self, batch: &RecordBatch, start: usize) -> (usize, bool) {
        let room = BATCH_ROWS - self.part_rows % BATCH_ROWS;
        let end = batch.num_rows().min(start + room);
        let Some(first) = batch.columns().first() else { return (end, false) };
        for row in start..end {
            if self.part_rows + row + 1 - start >= PART_LEAST_ROWS && is_boundary(first, row) {
                return (row + 1, true);
            }
        }
        (end, false)
    }

    fn take_completed(&mut self) {
        while let Some(full) = self.coalescer.next_completed_batch() {
            self.part_bytes += full.columns().iter().map(logical_bytes).sum::<usize>();
            self.part.push(full);
        }
    }

    /// Adapts a batch to the port's columns. All batches have the columns of the first one; nullability may differ.
    fn fit(&mut self, port: &str, batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
        if batch.schema().fields() == self.schema.fields() {
            return Ok(batch.clone());
        }
        self.refitted = true;
        if let Ok(adapted) = RecordBatch::try_new(Arc::clone(&self.schema), batch.columns().to_vec()) {
            return Ok(adapted);
        }
        let (first, now) = (column_list(&self.schema), column_list(&batch.schema()));
        Err(OperatorError::engine(format!("output `{port}` changed its columns: first {first}; now {now}")))
    }

    /// Ends the current part if it has rows.
    pub(crate) fn cut(&mut self) -> Result<(), OperatorError> {
        if self.part_rows == 0 {
            return Ok(());
        }
        // A pool's own thread must not wait for its pool.
        if rayon::current_thread_index().is_some() {
            return self.write_here();
        }
        let (name, batches) = self.take_part()?;
        // Before the next part is given away: else a fast kernel would fill the memory with waiting parts.
        self.wait_for_all_but(rayon::current_num_threads() - 1)?;
        let (folder, schema) = (self.folder.clone(), Arc::clone(&self.schema));
        let (sender, receiver) = sync_channel(1);
        // The receiver is gone only if the node has already failed.
        rayon::spawn(move || drop(sender.send(write_part(&folder, name, &schema, &batches))));
        self.encoding.push_back(receiver);
        Ok(())
    }

    /// Encodes the current part on this thread.
    fn write_here(&mut self) -> Result<(), OperatorError> {
        let (name, batches) = self.take_part()?;
        self.add(write_part(&self.folder, name, &self.schema, &batches)?);
        Ok(())
    }

    fn take_part(&mut self) -> Result<(String, Vec<RecordBatch>), OperatorError> {
        let name = self.name_part()?;
        self.coalescer.finish_buffered_batch()?;
        self.take_completed();
        (self.part_rows, self.part_bytes) = (0, 0);
        Ok((name, std::mem::take(&mut self.part)))
    }

    /// Returns the file name of the next part. Its folder then exists.
    fn name_part(&self) -> Result<String, OperatorError> {
        let number = self.next_part();
        if number == 0 {
            nofollow::create_folder(&self.folder).context("create", &self.folder)?;
        }
        Ok(format!("part-{number:05}.parquet"))
    }

    /// Adds a finished part.
    fn add(&mut self, part: Part) {
        let (sender, receiver) = sync_channel(1);
        drop(sender.send(Ok(part)));
        self.encoding.push_back(receiver);
    }

    fn wait_for_all_but(&mut self, most: usize) -> Result<(), OperatorError> {
        while self.encoding.len() > most
            && let Some(oldest) = self.encoding.pop_front()
        {
            // In order: the parts of a table are its rows.
            match oldest.recv() {
                Ok(part) => self.finished.push(part?),
                Err(_) => return Err(OperatorError::engine("a Parquet encoder thread panicked")),
            }
        }
        Ok(())
    }

    /// Links a finished part of another artifact.
    pub(crate) fn adopt(&mut self, from: &Path, part: &Part) -> Result<(), OperatorError> {
        self.cut()?;
        let name = self.name_part()?;
        let to = self.folder.join(&name);
        if nofollow::hard_link(from, &to).is_err() {
            nofollow::copy(from, &to).context("copy", from)?;
        }
        self.rows += part.rows;
        self.add(Part { name, ..part.clone() });
        Ok(())
    }

    /// Returns the finished parts.
    pub(crate) fn finish(mut self) -> Result<Vec<Part>, OperatorError> {
        let has_more = self.schema.fields().len() > self.kind.schema().fields().len();
        // If nothing else is being encoded, no other thread is needed.
        let last = self.part_rows > 0 && self.encoding.is_empty();
        // A table without rows still has the columns that its kind does not have.
        if last || (self.part_count() == 0 && has_more) {
            self.write_here()?;
        }
        self.cut()?;
        self.wait_for_all_but(0)?;
        Ok(self.finished)
    }
}

/// Describes columns for people: `id Utf8, score Float64`.
pub(crate) fn column_list(schema: &Schema) -> String {
    schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect::<Vec<_>>().join(", ")
}

/// Writes the part, flushes it to disk and hashes it.
pub(super) fn write_part(folder: &Path, name: String, schema: &SchemaRef, batches: &[RecordBatch]) -> Encoded {
    let path = folder.join(&name);
    let file = nofollow::create(&path).context("create", &path)?;
    // Fixed settings: equal batches give equal bytes.
    let properties = WriterProperties::builder()
        .set_created_by("searchmill".to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_write_batch_size(BATCH_ROWS)
        .build();
    let mut writer = ArrowWriter::try_new(file, Arc::clone(schema), Some(properties))?;
    for batch in batches {
        writer.write(batch)?;
    }
    let file = match writer.into_inner() {
        Ok(file) => file,
        // All rows have been encoded: a failure here is the disk's, and the error says so.
        Err(error) => return Err(OperatorError::machine(format!("cannot write {}: {error}", path.display()))),
    };
    // Here, on the thread that encoded it: at the commit, all parts would be flushed one after the other.
    file.sync_data().context("flush", &path)?;
    drop(file);
    file_part(folder, name, batches.iter().map(|batch| batch.num_rows() as u64).sum())
}

/// Describes a finished file.
pub(super) fn file_part(folder: &Path, name: String, rows: u64) -> Encoded {
    let path = folder.join(&name);
    let digest = hash_file(&path).context("read", &path)?;
    let bytes = std::fs::metadata(&path).context("read", &path)?.len();
    Ok(Part { name, digest, bytes, rows })
}

/// Returns the bytes of an array's values, independent of how buffers are shared or sliced.
fn logical_bytes(array: &ArrayRef) -> usize {
    let rows = array.len();
    match array.data_type() {
        DataType::Utf8 => rows * 4 + span(array.as_string::<i32>().value_offsets()),
        DataType::Binary => rows * 4 + span(array.as_binary::<i32>().value_offsets()),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let offsets = list.value_offsets();
            let first = offsets.first().copied().unwrap_or_default() as usize;
            let values = list.values().slice(first, span(offsets));
            rows * 4 + logical_bytes(&values)
        }
        DataType::Struct(_) => array.as_struct().columns().iter().map(logical_bytes).sum(),
        other => rows * other.primitive_width().unwrap_or(16),
    }
}

fn span(offsets: &[i32]) -> usize {
    match offsets {
        [first, .., last] => (last - first) as usize,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int64Array, ListArray, StringArray};
    use arrow::datatypes::Int32Type;

    #[test]
    fn logical_bytes_are_those_of_the_values_however_they_are_sliced() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("ab"), None, Some("cde"), Some("")]));
        assert_eq!(logical_bytes(&texts), 4 * 4 + 5);
        assert_eq!(logical_bytes(&texts.slice(2, 2)), 2 * 4 + 3);
        let lists = vec![Some(vec![Some(1), Some(2)]), None, Some(vec![Some(3)])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        assert_eq!(logical_bytes(&lists), 3 * 4 + 3 * 4);
        assert_eq!(logical_bytes(&lists.slice(1, 2)), 2 * 4 + 4);
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        assert_eq!(logical_bytes(&numbers), 24);
        assert_eq!(logical_bytes(&texts.slice(0, 0)), 0);
    }
}
