//! Arrow IPC streams of programs, which must have an end: without it, a stream that was cut between two batches would look
//! like a shorter one.

use std::io::{self, BufRead, Read};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;

/// The end of a stream.
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// A stream of record batches.
pub(super) struct IpcStream<R> {
    reader: StreamReader<Tail<R>>,
}

impl<R: BufRead> IpcStream<R> {
    /// Reads the schema.
    pub(super) fn open(source: R) -> Result<Self, String> {
        let reader = StreamReader::try_new(Tail { source, last: [0; 8] }, None).map_err(|error| error.to_string())?;
        Ok(Self { reader })
    }

    /// Returns the columns.
    pub(super) fn schema(&self) -> SchemaRef {
        self.reader.schema()
    }

    /// Returns the next batch, or `None` behind the end of the stream.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>, String> {
        match self.reader.next() {
            Some(batch) => batch.map(Some).map_err(|error| error.to_string()),
            None if self.reader.get_ref().last == END => Ok(None),
            None => Err("it has no end: it was cut, or its writer was not closed".to_owned()),
        }
    }
}

/// Remembers the last bytes that were read.
struct Tail<R> {
    source: R,
    last: [u8; 8],
}

impl<R: Read> Read for Tail<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        // The newest bytes push the oldest ones out.
        let fresh = read.min(self.last.len());
        self.last.rotate_left(fresh);
        let kept = self.last.len() - fresh;
        self.last[kept..].copy_from_slice(&buffer[read - fresh..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int64Array;
    use arrow::ipc::writer::StreamWriter;

    use super::*;

    fn rows(bytes: &[u8]) -> Result<usize, String> {
        let (mut stream, mut rows) = (IpcStream::open(bytes)?, 0);
        while let Some(batch) = stream.next()? {
            rows += batch.num_rows();
        }
        Ok(rows)
    }

    /// A stream that is cut anywhere is an error, also between two batches.
    #[test]
    fn a_stream_needs_its_end() {
        let batch = RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![4, 2])) as _)]).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.write(&batch).unwrap();
        let bytes = writer.into_inner().unwrap();
        assert_eq!(rows(&bytes), Ok(4));
        for end in 0..bytes.len() {
            assert!(rows(&bytes[..end]).is_err(), "{end} of {} bytes", bytes.len());
        }
    }
}
