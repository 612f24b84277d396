//! Writes one Parquet part, with fixed writer settings so that equal batches give equal bytes.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::artifact::Part;
use crate::error::OperatorError;
use crate::fingerprint::hash_file;
use crate::store::error::IoContext;
use crate::store::nofollow;

/// Rows per batch passed to the encoder.
pub(super) const BATCH_ROWS: usize = 1024;

/// Writes the part, flushes it to disk and hashes it.
pub(super) fn write_part(
    folder: &Path,
    name: String,
    schema: &SchemaRef,
    batches: &[RecordBatch],
) -> Result<Part, OperatorError> {
    let path = folder.join(&name);
    let file = nofollow::create(&path).context("create", &path)?;
    let mut writer = ArrowWriter::try_new(file, Arc::clone(schema), Some(properties()))?;
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
    let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    file_part(folder, name, rows)
}

/// Describes a finished file.
pub(super) fn file_part(folder: &Path, name: String, rows: u64) -> Result<Part, OperatorError> {
    let path = folder.join(&name);
    let digest = hash_file(&path).context("read", &path)?;
    let bytes = std::fs::metadata(&path).context("read", &path)?.len();
    Ok(Part { name, digest, bytes, rows })
}

fn properties() -> WriterProperties {
    WriterProperties::builder()
        .set_created_by("searchmill".to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_write_batch_size(BATCH_ROWS)
        .build()
}

/// Returns the bytes of an array's values, independent of how buffers are shared or sliced.
pub(super) fn logical_bytes(array: &ArrayRef) -> usize {
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
