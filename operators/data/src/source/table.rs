//! Splits source files into blocks of raw records, in order.

use std::io::{self, Read};
use std::sync::Arc;

use arrow::array::RecordBatch;
use searchmill_engine::operator::{Context, OperatorError};
use searchmill_schemas::Reject;

use super::cells::CellBlocks;
use super::format::{Compression, Format};
use super::location::SourceFile;
use super::ordered::Flow;
use super::parquet_file::{self, Readable};
use super::record::{Block, Cut, Fault, MAX_RECORD_BYTES, Place, Records};
use super::stream;

/// How files are split into records.
#[derive(Clone, Copy, Debug)]
pub struct Splitting {
    /// Format chosen by the user.
    pub format: Format,
    /// Compression chosen by the user.
    pub compression: Compression,
    /// How files are cut into records.
    pub cut: Cut,
    /// Whether quotation marks quote cells of CSV and TSV.
    pub quotes: bool,
    /// What separates cells, if the format does not say it.
    pub delimiter: Option<u8>,
}

/// Reads files one after another and passes their blocks to `push` until it returns [`Flow::Stop`].
///
/// # Errors
/// Fails if a file cannot be read.
pub fn blocks(
    files: &[SourceFile],
    splitting: Splitting,
    context: &Context,
    push: &mut dyn FnMut(Block) -> Flow,
) -> Result<(), OperatorError> {
    let mut first = 0;
    for file in files {
        let flow = file_blocks(file, splitting, context, &mut |records, rejects, nulled| {
            let block = Block { file: Arc::clone(&file.name), records, first, rejects, nulled };
            // Records are counted across files: their numbers become ids.
            first += block.count() as u64;
            push(block)
        });
        if flow? == Flow::Stop {
            return Ok(());
        }
    }
    Ok(())
}

/// Takes records of a file with the rejects of a block, and the lines with numbers that JSON lacks.
type Push<'a> = dyn FnMut(Records, Vec<Reject>, Vec<u64>) -> Flow + 'a;

fn file_blocks(
    file: &SourceFile,
    splitting: Splitting,
    context: &Context,
    push: &mut Push,
) -> Result<Flow, OperatorError> {
    let format = splitting.format.of_file(&file.name, &file.shown)?;
    if format == Format::Parquet {
        return parquet_blocks(file, context, push);
    }
    let reader = stream::text(file, format, splitting.compression, context)?;
    let splitting = Splitting { format, ..splitting };
    match text_blocks(&file.name, reader, splitting, push).map_err(|error| stream::broken(file, &error))? {
        Some(flow) => Ok(flow),
        // The object lacks the list: the records are whole values. The file is read again from its beginning.
        None => file_blocks(file, Splitting { cut: Cut::Values, ..splitting }, context, push),
    }
}

/// Returns `None` if the file is an object without the list that `splitting` names.
fn text_blocks(file: &str, reader: impl Read, splitting: Splitting, push: &mut Push) -> io::Result<Option<Flow>> {
    let flow = match (splitting.format, splitting.cut) {
        (Format::Json, cut) => {
            let mut blocks = super::values::ValueBlocks::new(reader, cut);
            while let Some((bytes, places)) = blocks.next()? {
                let records = Records::Json { bytes, places, members: cut == Cut::Members };
                if push(records, Vec::new(), Vec::new()) == Flow::Stop {
                    return Ok(Some(Flow::Stop));
                }
            }
            return Ok(if blocks.lacks_list() { None } else { Some(Flow::Continue) });
        }
        (Format::Csv, _) => {
            let delimiter = splitting.delimiter.unwrap_or(b',');
            cell_blocks(CellBlocks::new(reader, delimiter, splitting.quotes)?, push)?
        }
        (Format::Tsv, Cut::Plain(names)) => cell_blocks(CellBlocks::plain(reader, names)?, push)?,
        (Format::Tsv, _) => cell_blocks(CellBlocks::new(reader, b'\t', splitting.quotes)?, push)?,
        _ => line_blocks(file, reader, push)?,
    };
    Ok(Some(flow))
}

fn line_blocks(file: &str, reader: impl Read, push: &mut Push) -> io::Result<Flow> {
    let mut blocks = super::lines::LineBlocks::new(reader);
    while let Some(block) = blocks.next()? {
        let mut rejects = Vec::new();
        for line in block.oversized {
            let fault = Fault::line(format!("the line is longer than {MAX_RECORD_BYTES} bytes"));
            rejects.push(fault.reject(file, line, b""));
        }
        let records = Records::Json { bytes: block.bytes, places: block.places, members: false };
        if push(records, rejects, Vec::new()) == Flow::Stop {
            return Ok(Flow::Stop);
        }
    }
    Ok(Flow::Continue)
}

fn cell_blocks(mut blocks: CellBlocks<'_>, push: &mut Push) -> io::Result<Flow> {
    while let Some(rows) = blocks.next()? {
        let records = Records::Cells { header: Arc::clone(&blocks.header), rows };
        if push(records, Vec::new(), Vec::new()) == Flow::Stop {
            return Ok(Flow::Stop);
        }
    }
    Ok(Flow::Continue)
}

/// Reads Parquet rows as JSON records, for layouts and mappings; `line` is the row number from 1.
fn parquet_blocks(file: &SourceFile, context: &Context, push: &mut Push) -> Result<Flow, OperatorError> {
    let (_, batches) = parquet_file::batches(file, context)?;
    let mut line = 1;
    for batch in batches {
        let batch = batch?;
        let (records, rejects, nulled) = json_records(&batch, line, file).map_err(|error| {
            OperatorError::data(format!("cannot read the rows of `{}` from {line} on: {}", file.shown, error.message))
        })?;
        line += batch.num_rows() as u64;
        if push(records, rejects, nulled) == Flow::Stop {
            return Ok(Flow::Stop);
        }
    }
    Ok(Flow::Continue)
}

/// What [`Push`] takes.
type Taken = (Records, Vec<Reject>, Vec<u64>);

/// Writes rows as JSON. Rows with bytes that are no text are rejected; numbers that JSON lacks are null.
fn json_records(batch: &RecordBatch, line: u64, file: &SourceFile) -> Result<Taken, OperatorError> {
    let Readable { batch, rows, rejected, not_finite } = parquet_file::readable(batch)?;
    let mut writer = arrow::json::LineDelimitedWriter::new(Vec::new());
    writer.write(&batch)?;
    writer.finish()?;
    let bytes = writer.into_inner();
    let mut places = Vec::with_capacity(batch.num_rows());
    let mut from = 0;
    for (row, end) in rows.iter().zip(memchr::memchr_iter(b'\n', &bytes)) {
        places.push(Place { range: from..end, line: line + *row as u64 });
        from = end + 1;
    }
    let mut rejects = Vec::with_capacity(rejected.len());
    for (row, column) in rejected {
        let message = format!("the column `{column}` holds bytes that are not UTF-8 text; `as: table` keeps them");
        rejects.push(Fault::row(message).reject(&file.name, line + row as u64, b""));
    }
    let nulled = not_finite.iter().map(|row| line + *row as u64).collect();
    Ok((Records::Json { bytes, places, members: false }, rejects, nulled))
}
