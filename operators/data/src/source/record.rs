//! Records of a file: slices with their line numbers, grouped into blocks that are parsed in parallel, and the rows of
//! a block.

use std::collections::BTreeSet;
use std::sync::Arc;

use searchmill_schemas::Reject;

/// Bytes of records parsed together: large enough to keep workers busy, small enough to fit in memory.
pub const BLOCK_BYTES: usize = 4 << 20;

/// Longer records are rejected: a block must neither fill the memory nor overflow 32-bit text offsets.
pub(crate) const MAX_RECORD_BYTES: usize = 256 << 20;

/// Characters of a bad record stored in its reject.
const DETAIL_CHARS: usize = 500;

/// Records of one file, in order.
pub struct Block {
    /// File name, for rejects.
    pub file: Arc<str>,
    /// The records.
    pub records: Records,
    /// Number of the first record across all files, from 0.
    pub first: u64,
    /// Records that the splitter rejected.
    pub rejects: Vec<Reject>,
    /// Lines of records with numbers that JSON lacks, which are null.
    pub nulled: Vec<u64>,
}

/// How a file is cut into records where its format leaves a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// One record per value, line or row.
    #[default]
    Values,
    /// JSON: the members of the outermost object.
    Members,
    /// JSON: the items of the list in this member of the outermost object; other members are skipped.
    Items(&'static str),
    /// TSV: lines without header and quoting; the columns have these names.
    Plain(&'static [&'static str]),
}

/// The records of a block.
pub enum Records {
    /// JSON text: `bytes[range]` is one value, or with `members` one member of an object (`"key": value`); lines count
    /// from 1.
    Json { bytes: Vec<u8>, places: Vec<Place>, members: bool },
    /// Cell rows below a header.
    Cells { header: Arc<[String]>, rows: Vec<(u64, csv::ByteRecord)> },
}

/// The position of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Byte range in the block.
    pub range: std::ops::Range<usize>,
    /// Line in the file, from 1.
    pub line: u64,
}

impl Block {
    /// Returns the number of records.
    pub fn count(&self) -> usize {
        match &self.records {
            Records::Json { places, .. } => places.len(),
            Records::Cells { rows, .. } => rows.len(),
        }
    }
}

/// The rows of a block.
pub struct Decoded {
    /// File name.
    pub file: Arc<str>,
    /// Accepted rows.
    pub batch: arrow::array::RecordBatch,
    /// Line of each accepted row.
    pub lines: Vec<u64>,
    /// Rejected rows.
    pub rejects: Vec<Reject>,
    /// Fields inside objects that have no column.
    pub dropped: BTreeSet<String>,
    /// Lines of records in which NaN or Infinity became null.
    pub nulled: Vec<u64>,
    /// What should be told about the rows.
    pub remarks: BTreeSet<&'static str>,
    /// Records that are no rows of this kind.
    pub skipped: u64,
}

/// Why a file cannot be read, although all its bytes arrived.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub message: String,
    pub help: String,
}

impl Unreadable {
    /// Returns it as an error of a reader.
    pub(crate) fn error(message: impl Into<String>, help: impl Into<String>) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidData, Self { message: message.into(), help: help.into() })
    }
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Unreadable {}

/// Why a record is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `bad_line`: cannot be parsed. `bad_row`: parsed, but does not fit. `duplicate_id`: id seen before.
    pub kind: &'static str,
    /// The message.
    pub message: String,
}

impl Fault {
    /// A record that cannot be parsed.
    pub fn line(message: impl Into<String>) -> Self {
        Self { kind: "bad_line", message: message.into() }
    }

    /// A record that does not fit the requested kind.
    pub fn row(message: impl Into<String>) -> Self {
        Self { kind: "bad_row", message: message.into() }
    }

    /// Returns the reject for a record at `line` of `file`.
    pub fn reject(self, file: &str, line: u64, record: &[u8]) -> Reject {
        // A character has at most four bytes.
        let text = String::from_utf8_lossy(&record[..record.len().min(4 * DETAIL_CHARS)]);
        let detail: String = text.chars().take(DETAIL_CHARS).collect();
        let (id, kind) = (format!("{file}:{line}"), self.kind.to_owned());
        Reject { id, kind, message: self.message, attempts: 1, detail: Some(detail) }
    }
}

impl From<serde_json::Error> for Fault {
    fn from(error: serde_json::Error) -> Self {
        let text = error.to_string();
        // The parser counts lines within the record; the reject names the line of the file.
        let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(before, _)| before);
        if error.is_data() {
            Self::row(message)
        } else {
            Self::line(format!("not valid JSON: {message} at column {}", error.column()))
        }
    }
}
