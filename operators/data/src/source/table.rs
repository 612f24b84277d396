//! Splits source files into blocks of raw records, in order.

use std::io::Read;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::json::LineDelimitedWriter;
use searchmill_engine::operator::{Context, OperatorError};
use searchmill_schemas::Reject;

use super::cells::CellBlocks;
use super::format::{Compression, Format};
use super::lines::LineBlocks;
use super::location::SourceFile;
use super::ordered::Flow;
use super::parquet_file::{self, Readable};
use super::record::{Block, Cut, Fault, MAX_RECORD_BYTES, Place, Records};
use super::stream;
use super::values::ValueBlocks;

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
        let mut counted = |part: Part| {
            let Part { records, rejects, nulled } = part;
            let block = Block { file: Arc::clone(&file.name), records, first, rejects, nulled };
            first += block.count() as u64;
            push(block)
        };
        if file_blocks(file, splitting, context, &mut counted)? == Flow::Stop {
            return Ok(());
        }
    }
    Ok(())
}

/// Records of a file, as in a block.
struct Part {
    records: Records,
    rejects: Vec<Reject>,
    nulled: Vec<u64>,
}

impl From<Records> for Part {
    fn from(records: Records) -> Self {
        Self { records, rejects: Vec::new(), nulled: Vec::new() }
    }
}

type Push<'a> = dyn FnMut(Part) -> Flow + 'a;

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
    let broken = |error: std::io::Error| stream::broken(file, &error);
    match format {
        Format::Csv => {
            let delimiter = splitting.delimiter.unwrap_or(b',');
            cell_blocks(CellBlocks::new(reader, delimiter, splitting.quotes).map_err(broken)?, push).map_err(broken)
        }
        Format::Tsv => {
            let blocks = match splitting.cut {
                Cut::Plain(names) => CellBlocks::plain(reader, names),
                _ => CellBlocks::new(reader, b'\t', splitting.quotes),
            };
            cell_blocks(blocks.map_err(broken)?, push).map_err(broken)
        }
        Format::Json => match value_blocks(reader, splitting.cut, push).map_err(broken)? {
            Some(flow) => Ok(flow),
            // The object lacks the list: the records are whole values.
            None => file_blocks(file, Splitting { cut: Cut::Values, ..splitting }, context, push),
        },
        _ => line_blocks(file, reader, push).map_err(broken),
    }
}

fn line_blocks(file: &SourceFile, reader: impl Read, push: &mut Push) -> std::io::Result<Flow> {
    let mut blocks = LineBlocks::new(reader);
    while let Some(block) = blocks.next()? {
        let too_long = |line: u64| {
            Fault::line(format!("the line is longer than {MAX_RECORD_BYTES} bytes")).reject(&file.name, line, b"")
        };
        let rejects = block.oversized.into_iter().map(too_long).collect();
        let records = Records::Json { bytes: block.bytes, places: block.places, members: false };
        if push(Part { records, rejects, nulled: Vec::new() }) == Flow::Stop {
            return Ok(Flow::Stop);
        }
    }
    Ok(Flow::Continue)
}

/// Returns `None` if the file is an object without the list that `cut` names.
fn value_blocks(reader: impl Read, cut: Cut, push: &mut Push) -> std::io::Result<Option<Flow>> {
    let mut blocks = ValueBlocks::new(reader, cut);
    while let Some((bytes, places)) = blocks.next()? {
        if push(Records::Json { bytes, places, members: cut == Cut::Members }.into()) == Flow::Stop {
            return Ok(Some(Flow::Stop));
        }
    }
    Ok((!blocks.lacks_list()).then_some(Flow::Continue))
}

fn cell_blocks(mut blocks: CellBlocks<'_>, push: &mut Push) -> std::io::Result<Flow> {
    while let Some(rows) = blocks.next()? {
        if push(Records::Cells { header: Arc::clone(&blocks.header), rows }.into()) == Flow::Stop {
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
        let rows = batch.num_rows() as u64;
        let part = json_records(&batch, line, file).map_err(|error| {
            OperatorError::data(format!("cannot read the rows of `{}` from {line} on: {}", file.shown, error.message))
        })?;
        line += rows;
        if push(part) == Flow::Stop {
            return Ok(Flow::Stop);
        }
    }
    Ok(Flow::Continue)
}

/// Writes rows as JSON. Rows with bytes that are no text are rejected; numbers that JSON lacks are null.
fn json_records(batch: &RecordBatch, line: u64, file: &SourceFile) -> Result<Part, OperatorError> {
    let Readable { batch, rows, rejected, not_finite } = parquet_file::readable(batch)?;
    let line_of = |row: &usize| line + *row as u64;
    let mut bytes = Vec::new();
    let mut writer = LineDelimitedWriter::new(&mut bytes);
    writer.write(&batch)?;
    writer.finish()?;
    let mut places = Vec::with_capacity(batch.num_rows());
    let mut from = 0;
    for (row, end) in rows.iter().zip(memchr::memchr_iter(b'\n', &bytes)) {
        places.push(Place { range: from..end, line: line_of(row) });
        from = end + 1;
    }
    let reject = |(row, column): &(usize, String)| {
        let message = format!("the column `{column}` holds bytes that are not UTF-8 text; `as: table` keeps them");
        Fault::row(message).reject(&file.name, line_of(row), b"")
    };
    let (rejects, nulled) = (rejected.iter().map(reject).collect(), not_finite.iter().map(line_of).collect());
    Ok(Part { records: Records::Json { bytes, places, members: false }, rejects, nulled })
}
