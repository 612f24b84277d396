//! Tables that programs write as Arrow IPC, which may be damaged or cut.
//!
//! Arrow's own readers trust the lengths in the data: they reserve memory for them, which ends the process if there is
//! not that much. Here each length is first compared with the bytes that are there.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::{read_dictionary, read_footer_length, read_record_batch};
use arrow::ipc::{self, MessageHeader, MetadataVersion, root_as_footer, root_as_message};

use crate::decoded::decoded;

/// First bytes of each message of a stream.
const MARKER: [u8; 4] = [0xff; 4];
/// Length of the marker and of the number behind it, the length of the message's metadata.
const PREFIX: usize = 8;
/// First bytes of a file, which then holds a stream and a footer.
const FILE: [u8; 8] = *b"ARROW1\0\0";
/// Longest footer that is read, in bytes. Each batch takes 24 of them.
const LONGEST_FOOTER: u64 = 1 << 28;

type Dictionaries = HashMap<i64, ArrayRef>;

/// The record batches of a stream or a file in the [IPC format].
///
/// [IPC format]: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
pub struct ArrowTable<R> {
    source: R,
    schema: SchemaRef,
    dictionaries: Dictionaries,
    batches: usize,
    after: After,
}

/// What follows the end mark.
enum After {
    Nothing,
    Footer,
    /// The caller looks.
    Unread,
}

impl<R: Read> ArrowTable<R> {
    /// Reads the schema of a stream which the source may go on after.
    ///
    /// # Errors
    /// Fails if the source cannot be read or does not begin with a schema.
    pub fn beginning(source: R) -> Result<Self, String> {
        Self::open(source, After::Unread)
    }

    /// Reads the schema of a stream that is all of the source.
    ///
    /// # Errors
    /// Fails if the source cannot be read or does not begin with a schema.
    pub fn stream(source: R) -> Result<Self, String> {
        Self::open(source, After::Nothing)
    }

    /// Reads the schema of a file.
    ///
    /// # Errors
    /// Fails if the source cannot be read or does not begin with a schema.
    pub fn file(mut source: R) -> Result<Self, String> {
        if exactly(&mut source, FILE.len())? != FILE {
            return Err("it does not begin as an Arrow file".to_owned());
        }
        Self::open(source, After::Footer)
    }

    fn open(mut source: R, after: After) -> Result<Self, String> {
        let mut prefix = exactly(&mut source, PREFIX)?;
        // Writers may pad the first bytes of a file to more than 8.
        while matches!(after, After::Footer) && prefix == [0; PREFIX] {
            prefix = exactly(&mut source, PREFIX)?;
        }
        let Some(message) = Message::read(&prefix, &mut source)? else { return Err("it has no schema".to_owned()) };
        let schema = message.schema()?;
        Ok(Self { source, schema, dictionaries: Dictionaries::new(), batches: 0, after })
    }

    /// Returns the columns.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Returns the next batch, or `None` at the end mark.
    ///
    /// # Errors
    /// Fails if the source cannot be read, is damaged, or ends without the mark: a stream that was cut between two batches
    /// would look like a shorter one.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, String> {
        loop {
            let prefix = exactly(&mut self.source, PREFIX)?;
            let Some(message) = Message::read(&prefix, &mut self.source)? else { break };
            if let Some(batch) = message.batch(&self.schema, &mut self.dictionaries)? {
                self.batches += 1;
                return Ok(Some(batch));
            }
        }
        match self.after {
            After::Nothing => match self.source.read(&mut [0]) {
                Ok(0) => Ok(None),
                Ok(_) => Err("it goes on after its end".to_owned()),
                Err(error) => Err(error.to_string()),
            },
            After::Footer => self.check_footer().map(|()| None),
            After::Unread => Ok(None),
        }
    }

    /// Compares the footer of a file with the batches that were read.
    fn check_footer(&mut self) -> Result<(), String> {
        const DAMAGED: &str = "its footer is damaged";
        let mut rest = Vec::new();
        self.source.by_ref().take(LONGEST_FOOTER).read_to_end(&mut rest).map_err(|error| error.to_string())?;
        // The last bytes are the length of the footer and the mark of the format.
        let (footer, end) = rest.split_last_chunk::<10>().ok_or(DAMAGED)?;
        if read_footer_length(*end).map_err(|error| error.to_string())? != footer.len() {
            return Err(DAMAGED.to_owned());
        }
        let footer = root_as_footer(footer).map_err(|_| DAMAGED)?;
        let listed = footer.recordBatches().map_or(0, |batches| batches.len());
        if listed == self.batches {
            return Ok(());
        }
        Err(format!("it holds {} record batches, and its footer lists {listed}", self.batches))
    }
}

/// A message of a stream: a schema, a dictionary or a record batch.
struct Message {
    metadata: Vec<u8>,
    body: Buffer,
}

impl Message {
    /// Reads the message behind its prefix, or returns `None` for the end mark.
    fn read(prefix: &[u8], source: &mut impl Read) -> Result<Option<Self>, String> {
        let length = prefix.strip_prefix(&MARKER).ok_or("a message does not begin with its marker")?;
        let length = length.iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if length == 0 {
            return Ok(None);
        }
        let metadata = exactly(source, length)?;
        let length = parsed(&metadata)?.bodyLength();
        let length = usize::try_from(length).map_err(|_| format!("a message has {length} bytes"))?;
        let body = Buffer::from_vec(exactly(source, length)?);
        Ok(Some(Self { metadata, body }))
    }

    fn schema(&self) -> Result<SchemaRef, String> {
        let message = parsed(&self.metadata)?;
        let schema = message.header_as_schema().ok_or("it does not begin with a schema")?;
        if !schema.endianness().equals_to_target_endianness() {
            return Err("its numbers have another order of bytes".to_owned());
        }
        Ok(Arc::new(decoded(|| Ok::<_, String>(ipc::convert::fb_to_schema(schema)))?))
    }

    /// Returns the record batch, or keeps the dictionary and returns `None`.
    fn batch(&self, schema: &SchemaRef, dictionaries: &mut Dictionaries) -> Result<Option<RecordBatch>, String> {
        let message = parsed(&self.metadata)?;
        let version: MetadataVersion = message.version();
        match message.header_type() {
            MessageHeader::RecordBatch => {
                let batch = message.header_as_record_batch().ok_or("a record batch is missing")?;
                check_columns(batch, &self.body)?;
                let schema = Arc::clone(schema);
                decoded(|| read_record_batch(&self.body, batch, schema, dictionaries, None, &version)).map(Some)
            }
            MessageHeader::DictionaryBatch => {
                let dictionary = message.header_as_dictionary_batch().ok_or("a dictionary is missing")?;
                check_columns(dictionary.data().ok_or("a dictionary is empty")?, &self.body)?;
                decoded(|| read_dictionary(&self.body, dictionary, schema, dictionaries, &version))?;
                Ok(None)
            }
            other => Err(format!("a message is neither a record batch nor a dictionary: {other:?}")),
        }
    }
}

/// Reads that many bytes.
fn exactly(source: &mut impl Read, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = reserved(length)?;
    source.by_ref().take(length as u64).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() < length {
        return Err("it has no end: it was cut, or its writer was not closed".to_owned());
    }
    Ok(bytes)
}

/// Reserves memory that is not used before bytes arrive.
fn reserved(length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| format!("it is damaged: it claims to hold {length} bytes"))?;
    Ok(bytes)
}

fn parsed(metadata: &[u8]) -> Result<ipc::Message<'_>, String> {
    root_as_message(metadata).map_err(|error| format!("a message is damaged: {error}"))
}

/// Checks that all columns lie in the body, and that there is memory for those that are compressed.
fn check_columns(batch: ipc::RecordBatch<'_>, body: &[u8]) -> Result<(), String> {
    // A compressed column says how much it unpacks to, and Arrow reserves that much.
    let is_compressed = batch.compression().is_some();
    for column in batch.buffers().into_iter().flatten() {
        let start = usize::try_from(column.offset()).ok();
        let length = usize::try_from(column.length()).ok();
        let end = start.zip(length).and_then(|(start, length)| start.checked_add(length));
        let bytes = start.zip(end).and_then(|(start, end)| body.get(start..end));
        let bytes = bytes.ok_or("it is damaged: a column lies outside its record batch")?;
        if is_compressed && let Some(length) = bytes.first_chunk::<8>() {
            // -1 stands for bytes that are not compressed.
            let length = i64::from_le_bytes(*length);
            reserved(usize::try_from(length).unwrap_or(0))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{DictionaryArray, Int64Array, ListArray, StringArray, StringViewArray};
    use arrow::datatypes::{Int32Type, Int64Type};
    use arrow::ipc::CompressionType;
    use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};

    use super::*;

    /// Forty rows of several types in two batches.
    fn batches() -> [RecordBatch; 2] {
        let texts = StringArray::from_iter_values((0..40).map(|i| format!("row {i} é {}", "x".repeat(i))));
        let views = StringViewArray::from_iter_values((0..40).map(|i| format!("a longer text of row {i}")));
        let names: DictionaryArray<Int32Type> = (0..40).map(|i| if i % 2 == 0 { "even" } else { "odd" }).collect();
        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>((0..40).map(|i| Some((0..i % 4).map(Some))));
        let numbers: Int64Array = (0..40).map(|i| (i % 7 > 0).then_some(i)).collect();
        let batch = RecordBatch::try_from_iter([
            ("text", Arc::new(texts) as _),
            ("view", Arc::new(views) as _),
            ("name", Arc::new(names) as _),
            ("list", Arc::new(lists) as _),
            ("number", Arc::new(numbers) as _),
        ]);
        let batch = batch.unwrap();
        [batch.slice(0, 20), batch.slice(20, 20)]
    }

    fn stream(options: IpcWriteOptions) -> Vec<u8> {
        let batches = batches();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
        for batch in &batches {
            writer.write(batch).unwrap();
        }
        writer.into_inner().unwrap()
    }

    fn file(options: IpcWriteOptions) -> Vec<u8> {
        let batches = batches();
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
        for batch in &batches {
            writer.write(batch).unwrap();
        }
        writer.into_inner().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<RecordBatch>, String> {
        let is_file = bytes.starts_with(b"ARROW1");
        let mut table = if is_file { ArrowTable::file(bytes)? } else { ArrowTable::stream(bytes)? };
        let mut batches = Vec::new();
        while let Some(batch) = table.next_batch()? {
            batches.push(batch);
        }
        Ok(batches)
    }

    fn compressed(by: CompressionType) -> IpcWriteOptions {
        IpcWriteOptions::default().try_with_compression(Some(by)).unwrap()
    }

    #[test]
    fn whole_tables_are_read_compressed_or_not() {
        for options in
            [IpcWriteOptions::default(), compressed(CompressionType::LZ4_FRAME), compressed(CompressionType::ZSTD)]
        {
            assert_eq!(read(&stream(options.clone())).unwrap(), batches());
            assert_eq!(read(&file(options)).unwrap(), batches());
        }
    }

    /// A table that is cut anywhere is an error, also between two batches.
    #[test]
    fn a_table_needs_its_end() {
        for bytes in [stream(IpcWriteOptions::default()), file(IpcWriteOptions::default())] {
            for end in 0..bytes.len() {
                assert!(read(&bytes[..end]).is_err(), "{end} of {} bytes", bytes.len());
            }
        }
    }

    /// A table with bytes that are missing, or with a number that is another one, has the rows that were written, or is an
    /// error. No length in it is trusted: the process goes on.
    #[test]
    fn a_damaged_table_is_an_error_or_has_all_rows() {
        let mut forms = Vec::new();
        for options in
            [IpcWriteOptions::default(), compressed(CompressionType::LZ4_FRAME), compressed(CompressionType::ZSTD)]
        {
            forms.push(stream(options.clone()));
            forms.push(file(options));
        }
        let mut failed = Vec::new();
        for bytes in forms {
            for place in (0..bytes.len() - 8).step_by(12) {
                let missing = [&bytes[..place], &bytes[place + 1 + place % 8..]].concat();
                let mut damages = vec![missing];
                for number in [u64::MAX, 1 << 40, 1 << 62, 0x7fff_fff0] {
                    let mut changed = bytes.clone();
                    changed[place..place + 8].copy_from_slice(&number.to_le_bytes());
                    damages.push(changed);
                }
                for damaged in damages {
                    let rows = read(&damaged).map(|batches| batches.iter().map(RecordBatch::num_rows).sum::<usize>());
                    if rows.as_ref().is_ok_and(|rows| *rows != 40) {
                        failed.push((place, rows));
                    }
                }
            }
        }
        assert_eq!(failed, []);
    }
}
