//! The chunks of an index by row number, in two files read by position; nothing is held in memory.
//!
//! `chunks.bin` has one record per row: chunk id, document id and title, each as a little-endian `u32` byte length and
//! its bytes (length `u32::MAX`: no title), then the contents up to the record's end. `chunks.offsets` has the start
//! offset of each record and finally the file's length, as little-endian `u64`s.

use std::io::{BufWriter, Read, Write};
use std::path::Path;

use fs_err::File;
use fs_err::os::unix::fs::FileExt;
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::{text_column, text_value};

use super::Found;

const RECORDS: &str = "chunks.bin";
const OFFSETS: &str = "chunks.offsets";
const NO_TITLE: u32 = u32::MAX;

/// Writes chunks in row order.
pub(crate) struct ChunkWriter {
    records: BufWriter<File>,
    offsets: BufWriter<File>,
    record: Vec<u8>,
    end: u64,
}

impl ChunkWriter {
    pub(crate) fn create(folder: &Path) -> Result<Self, OperatorError> {
        let mut offsets = BufWriter::new(File::create(folder.join(OFFSETS))?);
        offsets.write_all(&0u64.to_le_bytes())?;
        let records = BufWriter::with_capacity(1 << 20, File::create(folder.join(RECORDS))?);
        Ok(Self { records, offsets, record: Vec::new(), end: 0 })
    }

    /// Appends the chunks of a batch.
    pub(crate) fn write(&mut self, batch: &arrow::array::RecordBatch) -> Result<(), OperatorError> {
        let id = text_column(batch, "id")?;
        let document = text_column(batch, "document_id")?;
        let title = text_column(batch, "title")?;
        let contents = text_column(batch, "contents")?;
        for row in 0..batch.num_rows() {
            self.record.clear();
            push_text(&mut self.record, Some(id.value(row)));
            push_text(&mut self.record, Some(document.value(row)));
            push_text(&mut self.record, text_value(title, row));
            self.record.extend_from_slice(contents.value(row).as_bytes());
            self.end += self.record.len() as u64;
            self.records.write_all(&self.record)?;
            self.offsets.write_all(&self.end.to_le_bytes())?;
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<(), OperatorError> {
        self.records.flush()?;
        Ok(self.offsets.flush()?)
    }
}

fn push_text(record: &mut Vec<u8>, text: Option<&str>) {
    let length = text.map_or(NO_TITLE, |text| text.len() as u32);
    record.extend_from_slice(&length.to_le_bytes());
    record.extend_from_slice(text.unwrap_or_default().as_bytes());
}

/// Reads chunks by row, from any number of threads.
pub(crate) struct ChunkStore {
    records: File,
    offsets: File,
    rows: u32,
}

impl ChunkStore {
    pub(crate) fn open(folder: &Path) -> Result<Self, OperatorError> {
        let records = open_file(&folder.join(RECORDS))?;
        let offsets = open_file(&folder.join(OFFSETS))?;
        // One offset per row, and the end of the last record.
        let rows = (offsets.metadata()?.len() / 8).saturating_sub(1);
        let Ok(rows) = u32::try_from(rows) else {
            return Err(OperatorError::data("an index can hold at most 4,294,967,295 chunks"));
        };
        Ok(Self { records, offsets, rows })
    }

    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    /// Returns the stored record of a row. Equal records are equal chunks.
    pub(crate) fn record(&self, row: u32) -> Result<Vec<u8>, OperatorError> {
        let mut bounds = [[0u8; 8]; 2];
        self.offsets.read_exact_at(bounds.as_flattened_mut(), u64::from(row) * 8)?;
        let [start, end] = bounds.map(u64::from_le_bytes);
        // Offsets of a damaged file may decrease.
        let length = end.checked_sub(start).ok_or_else(damaged)?;
        let Ok(length) = usize::try_from(length) else { return Err(damaged()) };
        let mut record = vec![0; length];
        self.records.read_exact_at(&mut record, start)?;
        Ok(record)
    }

    pub(crate) fn chunk(&self, row: u32) -> Result<Found, OperatorError> {
        decode(&self.record(row)?)
    }

    /// Whether both stores hold the same chunks in the same order. Reads the files only if their lengths are equal.
    pub(crate) fn same_as(&self, other: &Self) -> Result<bool, OperatorError> {
        Ok(same_bytes(&self.offsets, &other.offsets)? && same_bytes(&self.records, &other.records)?)
    }
}

/// Opens a file of an index. Errors of later reads name its path.
pub(crate) fn open_file(path: &Path) -> Result<File, OperatorError> {
    // Opened without `fs_err`: `no_index` names the path already.
    let file = std::fs::File::open(path).map_err(|error| no_index(path, &error))?;
    Ok(File::from_parts(file, path))
}

/// Returns the error for a folder whose file cannot be read.
pub(crate) fn no_index(path: &Path, error: &std::io::Error) -> OperatorError {
    OperatorError::data(format!("this folder is not a search index: {}: {error}", path.display()))
        .with_help("use the output of an `index` node")
}

fn same_bytes(left: &File, right: &File) -> Result<bool, OperatorError> {
    if left.metadata()?.len() != right.metadata()?.len() {
        return Ok(false);
    }
    let (mut ours, mut theirs) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut offset = 0;
    loop {
        let read = left.read_at(&mut ours, offset)?;
        if read == 0 {
            return Ok(true);
        }
        right.read_exact_at(&mut theirs[..read], offset)?;
        if ours[..read] != theirs[..read] {
            return Ok(false);
        }
        offset += read as u64;
    }
}

fn damaged() -> OperatorError {
    OperatorError::data("the chunks of this index are damaged").with_help("rerun the `index` node with --force")
}

/// Decodes a record into its fields, without score and sources.
pub(crate) fn decode(mut record: &[u8]) -> Result<Found, OperatorError> {
    let chunk_id = take_text(&mut record)?.ok_or_else(damaged)?;
    let document_id = take_text(&mut record)?.ok_or_else(damaged)?;
    let title = take_text(&mut record)?;
    // What is left of the record.
    let mut contents = String::with_capacity(record.len());
    record.read_to_string(&mut contents).map_err(|_| damaged())?;
    Ok(Found { chunk_id, document_id, title, contents, score: 0.0, sources: Vec::new() })
}

fn take_text(record: &mut &[u8]) -> Result<Option<String>, OperatorError> {
    let (length, rest) = record.split_first_chunk().ok_or_else(damaged)?;
    *record = rest;
    let length = u32::from_le_bytes(*length);
    if length == NO_TITLE {
        return Ok(None);
    }
    let (text, rest) = record.split_at_checked(length as usize).ok_or_else(damaged)?;
    *record = rest;
    Ok(Some(String::from_utf8(text.to_vec()).map_err(|_| damaged())?))
}
