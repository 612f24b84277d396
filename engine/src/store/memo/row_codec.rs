//! Encodes one row's result: a line of JSON (ports, usage), then an Arrow IPC stream of one batch per port.
//!
//! Every stream starts with its schema, so each record is self-contained. A schema is encoded and decoded only once:
//! its bytes are cached and compared. The line is padded, so that tables can be read in place.

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::endpoint::Usage;
use crate::operator::RowOutput;
use crate::store::error::StoreError;

/// End mark of a stream.
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
/// Alignment of tables in bytes.
const ALIGNMENT: usize = 64;
/// Limit of cached schemas.
const MOST: usize = 8;

/// The part before the tables.
#[derive(Serialize, Deserialize)]
struct Head {
    ports: Vec<(String, usize)>,
    #[serde(flatten)]
    usage: Usage,
}

/// Reads the line of JSON that a payload starts with. Also returns the rest.
pub(crate) fn head<T: DeserializeOwned>(payload: &[u8]) -> Option<(T, &[u8])> {
    let end = payload.iter().position(|byte| *byte == b'\n')?;
    Some((serde_json::from_slice(&payload[..end]).ok()?, &payload[end + 1..]))
}

/// Encodes and decodes rows; caches schemas.
#[derive(Default)]
pub(super) struct RowCodec {
    writers: Vec<Writer>,
    readers: Vec<Reader>,
}

struct Writer {
    schema: SchemaRef,
    /// The schema's message.
    begin: Vec<u8>,
    stream: StreamWriter<Vec<u8>>,
}

struct Reader {
    begin: Vec<u8>,
    decoder: StreamDecoder,
}

impl std::fmt::Debug for RowCodec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RowCodec({} schemas)", self.writers.len().max(self.readers.len()))
    }
}

impl RowCodec {
    /// Encodes a row's result.
    pub(crate) fn encode(&mut self, output: &RowOutput) -> Result<Vec<u8>, StoreError> {
        let mut head = Head { ports: Vec::new(), usage: output.usage };
        let mut streams = Vec::new();
        for (port, batch) in &output.batches {
            let before = streams.len();
            let writer = self.writer(batch)?;
            let written = writer.stream.write(batch);
            // Taken even after a failure: half a message would stand before the next record.
            let message = std::mem::take(writer.stream.get_mut());
            written?;
            streams.extend_from_slice(&writer.begin);
            streams.extend_from_slice(&message);
            streams.extend_from_slice(&END);
            streams.resize(streams.len().next_multiple_of(ALIGNMENT), 0);
            head.ports.push((port.clone(), streams.len() - before));
        }
        let mut payload = serde_json::to_vec(&head)?;
        payload.resize((payload.len() + 1).next_multiple_of(ALIGNMENT) - 1, b' ');
        payload.push(b'\n');
        payload.extend(streams);
        Ok(payload)
    }

    fn writer(&mut self, batch: &RecordBatch) -> Result<&mut Writer, ArrowError> {
        let schema = batch.schema();
        let mut known = self.writers.iter().position(|writer| writer.schema == schema);
        // A writer sends each dictionary only once, so it can encode only one record.
        if schema.flattened_fields().iter().any(|field| matches!(field.data_type(), DataType::Dictionary(..))) {
            known = None;
        }
        if known.is_none() {
            self.writers.retain(|writer| writer.schema != schema);
            self.writers.truncate(MOST - 1);
            let mut stream = StreamWriter::try_new(Vec::new(), &schema)?;
            let begin = std::mem::take(stream.get_mut());
            self.writers.insert(0, Writer { schema, begin, stream });
        }
        Ok(&mut self.writers[known.unwrap_or(0)])
    }

    /// Decodes a payload; `None` if it is not a row's.
    pub(crate) fn decode(&mut self, payload: Vec<u8>) -> Option<RowOutput> {
        let (head, tables) = head::<Head>(&payload)?;
        let mut at = payload.len() - tables.len();
        let payload = Buffer::from_vec(payload);
        let mut batches = Vec::with_capacity(head.ports.len());
        for (port, length) in head.ports {
            let end = at.checked_add(length).filter(|end| *end <= payload.len())?;
            batches.push((port, self.read(&payload.slice_with_length(at, end - at))?));
            at = end;
        }
        Some(RowOutput { batches, usage: head.usage })
    }

    fn read(&mut self, stream: &Buffer) -> Option<RecordBatch> {
        // Four bytes of mark, four bytes of the schema message's length; a schema has no body.
        let length = u32::from_le_bytes(stream.get(4..8)?.try_into().ok()?) as usize;
        let end = length.checked_add(8).filter(|end| *end <= stream.len())?;
        let (begin, mut rest) = (&stream[..end], stream.slice(end));
        let known = self.readers.iter().position(|reader| reader.begin == begin);
        if known.is_none() {
            self.readers.truncate(MOST - 1);
            let (mut decoder, mut schema) = (StreamDecoder::new(), stream.slice_with_length(0, end));
            // Its last byte completes the message; the decoder parses it with the bytes that follow.
            if decoder.decode(&mut schema).ok()?.is_some() || !schema.is_empty() {
                return None;
            }
            self.readers.insert(0, Reader { begin: begin.to_vec(), decoder });
        }
        let place = known.unwrap_or(0);
        let batch = self.readers[place].decoder.decode(&mut rest);
        if let Ok(Some(batch)) = batch {
            return Some(batch);
        }
        // It may have stopped within a message.
        self.readers.remove(place);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};
    use arrow::ipc::reader::StreamReader;

    use super::*;

    fn batch(names: &[&str]) -> RecordBatch {
        let (names, numbers) = (StringArray::from(names.to_vec()), Int64Array::from(vec![Some(7); names.len()]));
        RecordBatch::try_from_iter([("name", Arc::new(names) as _), ("number", Arc::new(numbers) as _)]).unwrap()
    }

    fn output(names: &[&str]) -> RowOutput {
        let other = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![1])) as _)]).unwrap();
        let usage = Usage { calls: 2, service_calls: 1, prompt_tokens: 30, completion_tokens: 4, cost_nanos: 5 };
        RowOutput { batches: vec![("rows".to_owned(), batch(names)), ("other".to_owned(), other)], usage }
    }

    #[test]
    fn rows_come_back_in_any_order_and_with_any_schema() {
        let mut codec = RowCodec::default();
        let given: Vec<RowOutput> = [&["a"][..], &["b", "ü"], &[]].iter().map(|names| output(names)).collect();
        let payloads: Vec<Vec<u8>> = given.iter().map(|output| codec.encode(output).unwrap()).collect();
        for _ in 0..2 {
            for (payload, output) in payloads.iter().zip(&given).rev() {
                let read = codec.decode(payload.clone()).expect("a row");
                assert_eq!((&read.batches, read.usage), (&output.batches, output.usage));
            }
        }
        assert_eq!(RowCodec::default().decode(payloads[1].clone()).expect("a row").batches, given[1].batches);
        // Each table is a complete Arrow stream.
        let (head, tables) = head::<Head>(&payloads[1]).expect("a head");
        let stream = &tables[..head.ports[0].1];
        let read = StreamReader::try_new(stream, None).unwrap().next().expect("a batch").unwrap();
        assert_eq!(&read, &given[1].batches[0].1);
    }

    #[test]
    fn what_is_no_row_is_none_and_spoils_nothing() {
        let mut codec = RowCodec::default();
        let payload = codec.encode(&output(&["a"])).unwrap();
        for cut in [0, 1, 40, 64, 70, 200, payload.len() - 60] {
            assert!(codec.decode(payload[..cut].to_vec()).is_none(), "cut at {cut}");
            assert!(codec.decode(payload.clone()).is_some(), "after a cut at {cut}");
        }
        assert!(codec.decode(b"{\"rows\":3,\"outputs\":{}}".to_vec()).is_none());
    }
}
