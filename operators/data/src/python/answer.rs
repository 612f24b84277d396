//! What goes to a function and comes back: rows as JSON lines, batches as Arrow IPC streams.

use arrow::array::RecordBatch;
use arrow::json::writer::{LineDelimited, WriterBuilder};
use searchmill_engine::operator::{FailureKind, OperatorError};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::source::parquet_file::not_finite;

/// Rows as JSON objects, with explicit nulls.
#[derive(Clone, Debug, Default)]
pub struct JsonRows {
    text: Vec<u8>,
    /// Ends of the rows in the text, each behind a line end.
    ends: Vec<usize>,
    /// Columns with NaN or infinity, which are null in the text.
    pub(super) not_finite: Vec<String>,
}

impl JsonRows {
    /// Writes the rows of a batch.
    ///
    /// # Errors
    /// Fails if a column has no form in JSON.
    pub fn of(batch: &RecordBatch) -> Result<Self, OperatorError> {
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(Vec::new());
        let batch = searchmill_schemas::with_bytes_as_text(batch).map_err(|(column, _)| {
            let help = "encode it by `sql`: `encode(…, 'base64')`";
            OperatorError::data(format!("the column `{column}` holds bytes that are not UTF-8 text")).with_help(help)
        })?;
        writer.write(&batch).and_then(|()| writer.finish())?;
        // A batch without columns has rows all the same.
        let is_bare = batch.num_columns() == 0;
        let text = if is_bare { b"{}\n".repeat(batch.num_rows()) } else { writer.into_inner() };
        let ends = memchr::memchr_iter(b'\n', &text).map(|at| at + 1).collect();
        let not_finite = not_finite(&batch).iter().map(|field| field.name().clone()).collect();
        Ok(Self { text, ends, not_finite })
    }

    /// Writes objects.
    #[must_use]
    pub fn of_values(rows: &[Map<String, Value>]) -> Self {
        let mut written = Self::default();
        for row in rows {
            written.text.extend_from_slice(serde_json::to_string(row).unwrap_or_default().as_bytes());
            written.text.push(b'\n');
            written.ends.push(written.text.len());
        }
        written
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the rows from `first` on as a JSON array.
    pub(super) fn array(&self, first: usize) -> Vec<u8> {
        let start = first.checked_sub(1).map_or(0, |before| self.ends[before]);
        let mut array = Vec::with_capacity(self.text.len() - start + 1);
        array.push(b'[');
        array.extend_from_slice(&self.text[start..]);
        // Line ends stand only behind rows.
        for end in &self.ends[first..] {
            array[end - start] = b',';
        }
        if let Some(last) = array.last_mut() {
            *last = b']';
        }
        array
    }
}

/// The answer to one row.
#[derive(Clone, Debug, PartialEq)]
pub enum Called {
    /// The row that the function returned.
    Row(Map<String, Value>),
    /// The rows of a list or a generator; none for `None`.
    Rows(Vec<Map<String, Value>>),
    /// The call failed.
    Failed(Failure),
}

/// The answer to a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum CalledBatch {
    /// The rows that the function returned.
    Rows(Vec<RecordBatch>),
    /// The call failed.
    Failed(Failure),
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The function raised an exception.
    Raised,
    /// It returned something that is no row.
    Unfit,
    /// It took longer than the timeout.
    Late,
    /// Its process ended.
    Ended,
}

impl Why {
    /// Returns the kind of the row's failure.
    pub fn kind(self) -> FailureKind {
        match self {
            Self::Raised | Self::Ended => FailureKind::Exception,
            Self::Unfit => FailureKind::BadResponse,
            Self::Late => FailureKind::Timeout,
        }
    }
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Kind of failure.
    pub why: Why,
    /// Error message.
    pub message: String,
    /// The traceback of an exception, without the frames of searchmill; the last output of a process that ended.
    pub detail: Option<String>,
}

impl Failure {
    pub(super) fn new(why: Why, message: impl Into<String>) -> Self {
        Self { why, message: message.into(), detail: None }
    }
}

/// A failure as the process reports it.
#[derive(Deserialize)]
struct Reported {
    message: String,
    #[serde(default)]
    traceback: Option<String>,
    #[serde(default)]
    unfit: bool,
}

/// Reads the answer to one row.
pub(super) fn read_row(line: &[u8]) -> Called {
    let read = match line {
        [b'=', row @ ..] => serde_json::from_slice(row).map(Called::Row),
        [b'[', ..] => serde_json::from_slice(line).map(Called::Rows),
        _ => read_failure(line).map(Called::Failed),
    };
    read.unwrap_or_else(|error| {
        Called::Failed(Failure::new(Why::Unfit, format!("the row that the function returned cannot be read: {error}")))
    })
}

/// Reads a failure.
pub(super) fn read_failure(text: &[u8]) -> Result<Failure, serde_json::Error> {
    let Reported { message, traceback, unfit } = serde_json::from_slice(text)?;
    let why = if unfit { Why::Unfit } else { Why::Raised };
    Ok(Failure { why, message, detail: traceback.filter(|text| !text.is_empty()) })
}

/// Writes a batch as a stream.
pub(super) fn write_batch(batch: &RecordBatch) -> Result<Vec<u8>, OperatorError> {
    let mut writer = arrow::ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema())?;
    writer.write(batch)?;
    Ok(writer.into_inner()?)
}

/// Reads the batches of a stream; an empty one has none.
pub(super) fn read_batches(bytes: &[u8]) -> CalledBatch {
    match batches_of(bytes) {
        Ok(batches) => CalledBatch::Rows(batches),
        Err(error) => {
            let message = format!("the batch that the function returned cannot be read: {error}");
            CalledBatch::Failed(Failure::new(Why::Unfit, message))
        }
    }
}

fn batches_of(bytes: &[u8]) -> Result<Vec<RecordBatch>, String> {
    let mut batches = Vec::new();
    if !bytes.is_empty() {
        let mut table = crate::program::ArrowTable::stream(bytes)?;
        while let Some(batch) = table.next_batch()? {
            batches.push(batch);
        }
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, StringArray};
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_written_with_nulls_and_cut_anywhere() {
        let text = StringArray::from(vec![Some("a\nb"), None, Some("ä,]")]);
        let number = Float64Array::from(vec![1.5, f64::NAN, 2.0]);
        let batch = RecordBatch::try_from_iter([("t", Arc::new(text) as _), ("n", Arc::new(number) as _)]).unwrap();
        let rows = JsonRows::of(&batch).unwrap();
        let read = |first| serde_json::from_slice::<Value>(&rows.array(first)).unwrap();
        let all = json!([{"t": "a\nb", "n": 1.5}, {"t": null, "n": null}, {"t": "ä,]", "n": 2.0}]);
        assert_eq!((rows.len(), read(0)), (3, all.clone()));
        assert_eq!(read(2), json!([all[2]]));
        let bare = JsonRows::of(&batch.project(&[]).unwrap()).unwrap();
        assert_eq!(bare.array(1), b"[{},{}]");
        let values = JsonRows::of_values(&[all[0].as_object().unwrap().clone()]);
        assert_eq!(serde_json::from_slice::<Value>(&values.array(0)).unwrap(), json!([all[0]]));
    }

    #[test]
    fn answers_are_read_row_by_row() {
        let Called::Rows(rows) = read_row(br#"[{"a":1},{}]"#) else { panic!("rows") };
        assert_eq!(rows.len(), 2);
        assert!(matches!(read_row(br#"={"a":1}"#), Called::Row(row) if row["a"] == 1));
        let raised = read_row(br#"{"message":"ValueError: x","traceback":"File"}"#);
        let wanted = Failure { detail: Some("File".to_owned()), ..Failure::new(Why::Raised, "ValueError: x") };
        assert_eq!(raised, Called::Failed(wanted));
        let deep = format!("={{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
        let Called::Failed(failure) = read_row(deep.as_bytes()) else { panic!("too deep") };
        assert_eq!(failure.why, Why::Unfit);
        assert!(failure.message.contains("recursion"), "{failure:?}");
    }
}
