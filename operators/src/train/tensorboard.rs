//! The steps of a training as TensorBoard reads them: a file of TFRecords, each an `Event` with one number by name.
//!
//! Sources: `tensorflow/core/util/event.proto`, `framework/summary.proto` and `lib/io/record_writer.cc` of TensorFlow
//! (Apache 2.0). A record is its length (u64), the masked CRC-32C of that, the bytes, and the masked CRC-32C of these; all
//! little-endian. Two messages of four fields need no protobuf library.

use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use searchmill_engine::operator::OperatorError;
use searchmill_models::on_path;

/// Name of the file: TensorBoard reads those with `tfevents` in it.
pub(super) const FILE: &str = "events.out.tfevents.0.searchmill";

/// Writes the columns of the steps. The time of an event is its step in seconds: the same training gives the same bytes.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write(steps: &RecordBatch, path: &Path) -> Result<(), OperatorError> {
    let mut file = Vec::new();
    // The first record of every file is the version of the format.
    add_record(&mut file, &event(0, &field(3, b"brain.Event:2")));
    let places = cast(&steps["step"], &DataType::Float64)?;
    let places = places.as_primitive::<Float64Type>();
    for (field, column) in steps.schema().fields().iter().zip(steps.columns()) {
        if field.name() == "step" {
            continue;
        }
        // TensorBoard groups curves by the part before `/`.
        let tag = match field.name().strip_prefix("eval_") {
            Some(name) => format!("eval/{name}"),
            None => format!("train/{}", field.name()),
        };
        let numbers = cast(column, &DataType::Float64)?;
        let numbers = numbers.as_primitive::<Float64Type>();
        for row in 0..steps.num_rows() {
            if numbers.is_null(row) || places.is_null(row) {
                continue;
            }
            add_record(&mut file, &event(places.value(row) as u64, &summary(&tag, numbers.value(row) as f32)));
        }
    }
    std::fs::write(path, file).map_err(on_path(path))
}

/// An `Event`: `wall_time` (1, double), `step` (2, int64), and what it says.
fn event(step: u64, what: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A number that is 0 is left out, as protobuf does.
    if step > 0 {
        bytes.push(0x09);
        bytes.extend((step as f64).to_le_bytes());
        bytes.push(0x10);
        add_varint(&mut bytes, step);
    }
    bytes.extend(what);
    bytes
}

/// The field `summary` (5) of an event, with one value (1): its `tag` (1) and `simple_value` (2, float).
fn summary(tag: &str, number: f32) -> Vec<u8> {
    let mut value = field(1, tag.as_bytes());
    value.push(0x15);
    value.extend(number.to_le_bytes());
    field(5, &field(1, &value))
}

/// A field of the wire type 2: its key, its length, its bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    add_varint(&mut bytes, content.len() as u64);
    bytes.extend(content);
    bytes
}

fn add_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn add_record(file: &mut Vec<u8>, content: &[u8]) {
    let length = (content.len() as u64).to_le_bytes();
    file.extend(length);
    file.extend(masked(&length).to_le_bytes());
    file.extend(content);
    file.extend(masked(content).to_le_bytes());
}

/// TensorFlow's masked checksum (`lib/hash/crc32c.h`).
fn masked(bytes: &[u8]) -> u32 {
    // The mask is for data that holds checksums itself, whose plain checksum would be weak.
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int64Array};

    use super::*;

    /// The same events by `RecordWriter` of tensorboard 2.21, in hexadecimal digits.
    const EXPECTED: &str = "0f000000000000006d532b091a0d627261696e2e4576656e743a32fc985129200000000000000029eda95009000000000000\
        f03f10012a130a110a0a747261696e2f6c6f7373150000003fd0b912952100000000000000017becf6090000000000c07240\
        10ac022a130a110a0a747261696e2f6c6f7373150000803e8aafcd55200000000000000029eda950090000000000c0724010\
        ac022a120a100a096576616c2f6c6f7373150000403fb1e90e93";

    #[test]
    fn the_file_is_the_one_that_tensorboard_reads() {
        let steps = RecordBatch::try_from_iter_with_nullable([
            ("step", Arc::new(Int64Array::from(vec![1, 300])) as _, true),
            ("loss", Arc::new(Float64Array::from(vec![0.5, 0.25])) as _, true),
            ("eval_loss", Arc::new(Float64Array::from(vec![None, Some(0.75)])) as _, true),
        ])
        .expect("steps");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        write(&steps, &path).expect("a file");
        let written = std::fs::read(&path).expect("a file");
        let hex: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, EXPECTED);
    }
}
