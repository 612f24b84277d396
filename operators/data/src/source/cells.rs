//! Splits comma- and tab-separated values into blocks of rows.

use std::io::Read;
use std::sync::Arc;

use csv::{ByteRecord, Reader, ReaderBuilder};

use super::column::Scalar;
use super::recognised::{check_header, not_utf8};
use super::record::{Fault, Unreadable};

const BLOCK_ROWS: usize = 8192;

/// Blocks of cell rows below the header line.
pub(crate) struct CellBlocks<'a> {
    reader: Reader<Box<dyn Read + 'a>>,
    /// Column names.
    pub header: Arc<[String]>,
}

impl<'a> CellBlocks<'a> {
    /// Reads the header. `quotes`: whether quotation marks quote cells; else they are text, and each line is a row.
    ///
    /// # Errors
    /// Fails if the header cannot be read, is not UTF-8, repeats a column, or is separated otherwise.
    pub(crate) fn new(reader: impl Read + 'a, delimiter: u8, quotes: bool) -> std::io::Result<Self> {
        let reader: Box<dyn Read + 'a> =
            if quotes { Box::new(super::quotes::Quotes::new(reader, delimiter)) } else { Box::new(reader) };
        let mut reader = ReaderBuilder::new().delimiter(delimiter).quoting(quotes).flexible(true).from_reader(reader);
        let mut header: Vec<String> = Vec::new();
        for name in reader.byte_headers().map_err(of_reader)? {
            let Ok(name) = std::str::from_utf8(name) else {
                let what = not_utf8(name).unwrap_or_default();
                return Err(Unreadable::error(format!("the header line is {what}"), "files must be UTF-8"));
            };
            if header.iter().any(|earlier| earlier == name) {
                return Err(Unreadable::error(format!("the header repeats the column `{name}`"), "rename one of them"));
            }
            header.push(name.to_owned());
        }
        check_header(&header, delimiter)?;
        Ok(Self { reader, header: header.into() })
    }

    /// Reads tab-separated lines without header and quoting. The columns are the first of `names`, as many as the first
    /// line has.
    ///
    /// # Errors
    /// Fails if the first line cannot be read.
    pub(crate) fn plain(reader: impl Read + 'a, names: &[&str]) -> std::io::Result<Self> {
        let mut plain = ReaderBuilder::new();
        plain.delimiter(b'\t').flexible(true).quoting(false).has_headers(false);
        let mut reader = plain.from_reader(Box::new(reader) as Box<dyn Read + 'a>);
        let width = reader.byte_headers().map_err(of_reader)?.len();
        let header: Vec<String> = names.iter().take(width).map(|name| (*name).to_owned()).collect();
        Ok(Self { reader, header: header.into() })
    }

    /// Returns the next rows with their line numbers, or `None` at the end.
    ///
    /// # Errors
    /// Fails if the stream cannot be read.
    pub(crate) fn next(&mut self) -> std::io::Result<Option<Vec<(u64, ByteRecord)>>> {
        let mut rows = Vec::new();
        let (mut record, mut bytes) = (ByteRecord::new(), 0);
        while rows.len() < BLOCK_ROWS
            && bytes < super::record::BLOCK_BYTES
            && self.reader.read_byte_record(&mut record).map_err(of_reader)?
        {
            let line = record.position().map_or(0, csv::Position::line);
            bytes += record.as_slice().len();
            rows.push((line, std::mem::take(&mut record)));
        }
        Ok(if rows.is_empty() { None } else { Some(rows) })
    }
}

/// Returns the reader's own error, which tells what is wrong with the file.
fn of_reader(error: csv::Error) -> std::io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => std::io::Error::new(std::io::ErrorKind::InvalidData, format!("{other:?}")),
    }
}

/// Pairs the cells of a row with their column names.
///
/// # Errors
/// Fails if the number of cells differs from the header's, or a cell is not UTF-8.
pub fn named<'a>(header: &'a [String], row: &'a ByteRecord) -> Result<Vec<(&'a str, &'a str)>, Fault> {
    // The reader is flexible: one bad row must not end the file.
    if row.len() != header.len() {
        return Err(Fault::line(format!("the row has {} cells, the header {}", row.len(), header.len())));
    }
    let mut cells = Vec::with_capacity(row.len());
    for (name, cell) in header.iter().zip(row) {
        let Ok(text) = std::str::from_utf8(cell) else {
            return Err(Fault::row(format!("the cell `{name}` is {}", not_utf8(cell).unwrap_or_default())));
        };
        cells.push((name.as_str(), text));
    }
    Ok(cells)
}

/// Parses a cell; `None` if it is empty. Only JSON numbers count as numbers: `007`, `1_000`, `inf` and `+1` stay texts.
pub(crate) fn scalar(text: &str) -> Option<Scalar<'_>> {
    match text {
        "" => None,
        "true" | "True" => Some(Scalar::Bool(true)),
        "false" | "False" => Some(Scalar::Bool(false)),
        _ if !text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => Some(Scalar::Text(text)),
        _ => {
            let Ok(number) = serde_json::from_str::<serde_json::Number>(text) else { return Some(Scalar::Text(text)) };
            Some(match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Scalar::Int(whole),
                // A whole number beyond `i64` stays a text: as a float it would be rounded.
                (None, Some(float)) if !number.is_u64() => Scalar::Float(float),
                _ => Scalar::Text(text),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_have_no_header_and_quotes_are_text() {
        let text = "0\t\"A\" is a letter\n1\t\"Unclosed\n2\tx\ty\n";
        let mut blocks = CellBlocks::plain(text.as_bytes(), &["pid", "passage", "title"]).unwrap();
        let rows = blocks.next().unwrap().unwrap();
        let (line, row) = &rows[1];
        assert_eq!((*line, named(&blocks.header, row).unwrap()), (2, vec![("pid", "1"), ("passage", "\"Unclosed")]));
        assert_eq!(named(&blocks.header, &rows[0].1).unwrap()[1].1, "\"A\" is a letter");
        assert!(named(&blocks.header, &rows[2].1).is_err());
        assert!(CellBlocks::plain(&b""[..], &["pid"]).unwrap().next().unwrap().is_none());
    }

    #[test]
    fn cells_are_numbers_only_when_written_as_numbers() {
        assert_eq!(scalar("12"), Some(Scalar::Int(12)));
        assert_eq!(scalar("-1.5e3"), Some(Scalar::Float(-1500.0)));
        assert_eq!(scalar("007"), Some(Scalar::Text("007")));
        assert_eq!(scalar("-"), Some(Scalar::Text("-")));
        assert_eq!(scalar("inf"), Some(Scalar::Text("inf")));
        assert_eq!(scalar("18446744073709551615"), Some(Scalar::Text("18446744073709551615")));
    }
}
