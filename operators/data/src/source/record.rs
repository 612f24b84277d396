//! Records of a file: slices with the line they start on, gathered into blocks that are parsed in parallel; then the rows of
//! a block.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use csv::ByteRecord;
use searchmill_schemas::Reject;

/// Bytes of records that are parsed in one go; large enough to keep workers busy, small enough to stay in memory.
pub const BLOCK_BYTES: usize = 4 << 20;

/// A record longer than this is rejected: one block may not fill the memory or overflow 32-bit text offsets.
pub(crate) const MAX_RECORD_BYTES: usize = 256 << 20;

/// Characters of a bad record that are kept in its reject.
const DETAIL_CHARS: usize = 500;

/// Records of one file, in order.
pub struct Block {
    /// The file's name, for rejects.
    pub file: Arc<str>,
    /// The records.
    pub records: Records,
    /// Number of the first record over all files, from 0.
    pub first: u64,
    /// Records that the splitter could not take.
    pub rejects: Vec<Reject>,
}

/// The records of a block.
pub enum Records {
    /// JSON text: `bytes[range]` is one value; lines are counted from 1.
    Json { bytes: Vec<u8>, places: Vec<Place> },
    /// Members of one JSON object: each slice is `"key": value`.
    Members { bytes: Vec<u8>, places: Vec<Place> },
    /// Rows of cells below a header.
    Cells { header: Arc<[String]>, rows: Vec<(u64, ByteRecord)> },
}

/// Where a record stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its bytes in the block.
    pub range: Range<usize>,
    /// Its line in the file, from 1.
    pub line: u64,
}

impl Block {
    /// How many records it holds.
    pub fn count(&self) -> usize {
        match &self.records {
            Records::Json { places, .. } | Records::Members { places, .. } => places.len(),
            Records::Cells { rows, .. } => rows.len(),
        }
    }
}

/// A block's rows.
pub struct Decoded {
    /// The file's name.
    pub file: Arc<str>,
    /// Good rows.
    pub batch: RecordBatch,
    /// The line of each good row.
    pub lines: Vec<u64>,
    /// Bad rows.
    pub rejects: Vec<Reject>,
    /// Fields inside objects that have no column.
    pub dropped: BTreeSet<String>,
}

/// What is wrong with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `bad_line`: cannot be parsed. `bad_row`: parsed, but not what was asked for. `duplicate_id`: id seen before.
    pub kind: &'static str,
    /// In words.
    pub message: String,
}

impl Fault {
    /// A record that cannot be parsed.
    pub fn line(message: impl Into<String>) -> Self {
        Self { kind: "bad_line", message: message.into() }
    }

    /// A record that is not what was asked for.
    pub fn row(message: impl Into<String>) -> Self {
        Self { kind: "bad_row", message: message.into() }
    }

    /// The rejected row for a record at `line` of `file`.
    pub fn reject(self, file: &str, line: u64, record: &[u8]) -> Reject {
        let text = String::from_utf8_lossy(&record[..record.len().min(4 * DETAIL_CHARS)]);
        let detail: String = text.chars().take(DETAIL_CHARS).collect();
        Reject {
            id: format!("{file}:{line}"),
            kind: self.kind.to_owned(),
            message: self.message,
            attempts: 1,
            detail: Some(detail),
        }
    }
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        let text = error.to_string();
        let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(before, _)| before);
        if error.is_data() {
            Self::row(message)
        } else {
            Self::line(format!("not valid JSON: {message} at column {}", error.column()))
        }
    }
}
