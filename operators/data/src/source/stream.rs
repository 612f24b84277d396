//! Opens a source file as plain bytes or as Parquet record batches.

use std::io::Read;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::{Buf, Bytes};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::{GetResultPayload, ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::reader::{ChunkReader, Length};
use searchmill_engine::operator::{Context, OperatorError};

use super::format::{Compression, decompressed};
use super::location::{Place, SourceFile};
use super::store;

/// Rows of a Parquet file read together.
const BATCH_ROWS: usize = 8192;

/// Most bytes fetched if the wanted length is unknown.
const READ_AHEAD: u64 = 1 << 20;

/// Record batches of a Parquet file.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch, OperatorError>>>;

/// Opens the decompressed bytes of a file.
///
/// # Errors
/// Fails if it cannot be opened.
pub fn bytes(
    file: &SourceFile,
    compression: Compression,
    context: &Context,
) -> Result<Box<dyn Read + Send>, OperatorError> {
    let opened = match &file.place {
        Place::Local(path) => context.block_on(store::local_file(path)),
        Place::Remote(store, path) => context.block_on(store.get(path)),
    };
    let opened = opened.map_err(|error| store::failed(&file.shown, error))?;
    let raw: Box<dyn Read + Send> = match opened.payload {
        GetResultPayload::File(opened, _) => match &file.place {
            Place::Local(path) => context.watched(path, Box::new(opened)),
            Place::Remote(..) => Box::new(opened),
        },
        GetResultPayload::Stream(stream) => {
            Box::new(StreamReader { stream, chunk: Bytes::new(), context: context.clone() })
        }
    };
    decompressed(raw, compression).map_err(|error| broken(file, &error))
}

/// Converts an interrupted or undecodable stream to a user error.
pub fn broken(file: &SourceFile, error: &std::io::Error) -> OperatorError {
    let shown = &file.shown;
    match error.kind() {
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput | std::io::ErrorKind::UnexpectedEof => {
            OperatorError::data(format!("`{shown}` is damaged or cut short: {error}"))
                .with_help("fetch the file again, or set `compression:` to its actual compression")
        }
        _ => OperatorError::machine(format!("cannot read `{shown}`: {error}")),
    }
}

struct StreamReader {
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    chunk: Bytes,
    context: Context,
}

impl Read for StreamReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.chunk.is_empty() {
            match self.context.block_on(self.stream.next()) {
                Some(chunk) => self.chunk = chunk.map_err(std::io::Error::other)?,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.chunk.len());
        buffer[..length].copy_from_slice(&self.chunk[..length]);
        self.chunk.advance(length);
        Ok(length)
    }
}

/// Opens the columns and batches of a Parquet file.
///
/// # Errors
/// Fails if it cannot be opened or is not Parquet.
pub fn parquet(file: &SourceFile, context: &Context) -> Result<(SchemaRef, Batches), OperatorError> {
    match &file.place {
        Place::Local(path) => {
            let opened =
                context.block_on(store::local_file(path)).map_err(|error| store::failed(&file.shown, error))?;
            let GetResultPayload::File(opened, _) = opened.payload else {
                return Err(OperatorError::engine(format!("`{}` did not open as a file", file.shown)));
            };
            batches(file, opened)
        }
        Place::Remote(store, path) => {
            let length = context.block_on(store.head(path)).map_err(|error| store::failed(&file.shown, error))?.size;
            let (store, path, context) = (Arc::clone(store), path.clone(), context.clone());
            batches(file, RemoteFile { store, path, length, context })
        }
    }
}

fn batches<R: ChunkReader + 'static>(file: &SourceFile, opened: R) -> Result<(SchemaRef, Batches), OperatorError> {
    let shown = file.shown.clone();
    let wrong =
        move |error: &dyn std::fmt::Display| OperatorError::data(format!("cannot read `{shown}` as Parquet: {error}"));
    let builder = ParquetRecordBatchReaderBuilder::try_new(opened).map_err(|error| wrong(&error))?;
    let schema = Arc::clone(builder.schema());
    let reader = builder.with_batch_size(BATCH_ROWS).build().map_err(|error| wrong(&error))?;
    Ok((schema, Box::new(reader.map(move |batch| batch.map_err(|error| wrong(&error))))))
}

/// A Parquet file in an object store, read by byte ranges.
struct RemoteFile {
    store: Arc<dyn ObjectStore>,
    path: object_store::path::Path,
    length: u64,
    context: Context,
}

impl Length for RemoteFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for RemoteFile {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let length = self.length.saturating_sub(start).min(READ_AHEAD);
        Ok(self.get_bytes(start, length as usize)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let range = start..start + length as u64;
        Ok(self.context.block_on(self.store.get_range(&self.path, range))?)
    }
}
