//! The fields of a file's records, where they can be told without reading much: before anything runs.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Cursor, Read};
use std::path::Path;

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Map, Value};

use super::cells::CellBlocks;
use super::format::{Format, decompressed};
use super::record::Unreadable;
use super::table::Splitting;
use crate::decoded::decoded;

/// Bytes of a JSON file that is read as a whole (at most), unpacked.
const SMALL: u64 = 4 << 20;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Returns the fields that the records of a local file have. `None` if that is not known: the file is large, or cannot
/// be read, which the run reports.
pub fn fields_of(path: &Path, splitting: Splitting) -> Option<BTreeSet<String>> {
    let name = path.file_name()?.to_string_lossy();
    let format = splitting.format.or_of_name(&name)?;
    match format {
        Format::Parquet => {
            let opened = opened(path)?;
            let schema = decoded(|| ParquetRecordBatchReaderBuilder::try_new(opened)).ok()?.schema().clone();
            Some(schema.fields().iter().map(|field| field.name().clone()).collect())
        }
        Format::Csv | Format::Tsv => Some(cells_of(path, splitting)?.ok()?.header.iter().cloned().collect()),
        _ => json_fields(text_of(path, splitting)?, format),
    }
}

/// Returns what is wrong with the header line of a local file of cells, and how to mend it. `None` of other files, and of
/// those that cannot be read at all, which the run reports.
pub fn header_problem(path: &Path, splitting: Splitting) -> Option<(String, String)> {
    let error = cells_of(path, splitting)?.err()?;
    let Unreadable { message, help } = error.get_ref()?.downcast_ref()?;
    Some((message.clone(), help.clone()))
}

/// Returns the first cells of a column of a local CSV file; `None` if it is another file, or cannot be read.
pub fn first_cells(path: &Path, splitting: Splitting, column: &str, most: usize) -> Option<Vec<String>> {
    let name = path.file_name()?.to_string_lossy();
    if splitting.format.or_of_name(&name)? != Format::Csv {
        return None;
    }
    let mut blocks = cells_of(path, splitting)?.ok()?;
    let index = blocks.header.iter().position(|name| name == column)?;
    let mut cells = Vec::new();
    for (_, row) in blocks.next().ok()?.unwrap_or_default().iter().take(most) {
        // A row may be shorter than the header.
        if let Some(cell) = row.get(index) {
            cells.push(String::from_utf8_lossy(cell).into_owned());
        }
    }
    Some(cells)
}

/// Returns the cells of a local CSV or TSV file, or why its header cannot be read; `None` of other files.
fn cells_of(path: &Path, splitting: Splitting) -> Option<std::io::Result<CellBlocks<'static>>> {
    let name = path.file_name()?.to_string_lossy();
    let delimiter = match splitting.format.or_of_name(&name)? {
        Format::Csv => splitting.delimiter.unwrap_or(b','),
        Format::Tsv => b'\t',
        _ => return None,
    };
    Some(CellBlocks::new(text_of(path, splitting)?, delimiter, splitting.quotes))
}

fn text_of(path: &Path, splitting: Splitting) -> Option<Box<dyn Read + Send>> {
    let mut reader = decompressed(Box::new(opened(path)?), splitting.compression).ok()?;
    let mut start = Vec::new();
    reader.by_ref().take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut start).ok()?;
    if start == BYTE_ORDER_MARK {
        start.clear();
    }
    Some(Box::new(Cursor::new(start).chain(reader)))
}

/// Opens a file. A pipe is none: opening it would wait for its writer.
fn opened(path: &Path) -> Option<File> {
    if std::fs::metadata(path).ok()?.is_file() { File::open(path).ok() } else { None }
}

/// Reads all records, since a field may be in the last one alone.
fn json_fields(text: Box<dyn Read + Send>, format: Format) -> Option<BTreeSet<String>> {
    let mut bytes = Vec::new();
    text.take(SMALL + 1).read_to_end(&mut bytes).ok()?;
    if bytes.len() as u64 > SMALL {
        return None;
    }
    let records: Vec<Map<String, Value>> = if format == Format::Json && bytes.trim_ascii_start().starts_with(b"[") {
        serde_json::from_slice(&bytes).ok()?
    } else {
        // Lines, or values with any line breaks. What is no object is rejected by the run, with its line.
        serde_json::Deserializer::from_slice(&bytes).into_iter().collect::<Result<_, _>>().ok()?
    };
    Some(records.into_iter().flatten().map(|(name, _)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::format::Compression;
    use crate::source::record::Cut;

    fn fields(name: &str, text: &[u8], delimiter: Option<u8>) -> Option<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let (format, compression) = (Format::Auto, Compression::Auto);
        let splitting = Splitting { format, compression, cut: Cut::Values, quotes: true, delimiter };
        fields_of(&path, splitting).map(|fields| fields.into_iter().collect())
    }

    #[test]
    fn fields_are_told_or_unknown() {
        let told = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(fields("a.csv", b"\xef\xbb\xbfid,text\n1,x\n", None), told(&["id", "text"]));
        assert_eq!(fields("a.csv", b"id;text\n1;x\n", Some(b';')), told(&["id", "text"]));
        assert_eq!(fields("a.csv", b"id;text\n1;x\n", None), None, "separated otherwise");
        assert_eq!(fields("a.tsv", b"id\ttext\n", None), told(&["id", "text"]));
        assert_eq!(fields("a.jsonl", b"{\"id\": 1}\n{\"id\": 2, \"late\": 3}\n", None), told(&["id", "late"]));
        assert_eq!(fields("a.json", b"[{\"id\": 1}, {\"b\": {\"c\": 2}}]", None), told(&["b", "id"]));
        assert_eq!(fields("a.jsonl", b"{\"id\": 1}\nnot JSON\n", None), None);
        assert_eq!(fields("a.jsonl", &b"{\"id\": 1}\n".repeat(500_000), None), None, "too large");
        assert_eq!(fields("a.parquet", b"PAR1", None), None);
        assert_eq!(fields("a.jsonl", b"", None), told(&[]));
    }
}
