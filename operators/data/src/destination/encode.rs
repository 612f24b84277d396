//! Encodes rows as the bytes of a file.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Mutex};

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::FieldRef;
use arrow::error::ArrowError;
use arrow::json::writer::{Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder, make_encoder};
use arrow::json::{Writer, WriterBuilder};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression as ParquetCompression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use searchmill_engine::operator::{Context, OperatorError, RowsInput};
use searchmill_schemas::{RecordKind, name_twice, text_column, text_value, unfit_for_json, with_bytes_as_text};
use serde::de::DeserializeSeed;

use crate::source::decode::{Decoder, Direct};
use crate::source::format::{Compression, Format};
use crate::source::ordered::{Flow, map_in_order};
use crate::source::parquet_file::not_finite;
use crate::source::record::{Block, Place, Records};
use crate::source::shape::{Shape, Widen};

/// Rows per Parquet row group. Fixed, so that equal rows give equal files.
const GROUP_ROWS: usize = 131_072;

/// Writes rows as text. Batches are encoded in parallel and written in order. Errors of `target` are passed on as they
/// are: it should name its file.
///
/// # Errors
/// Fails if rows do not fit the format or the file cannot be written.
pub fn text<W: Write + Send>(
    rows: &RowsInput,
    format: Format,
    compression: Compression,
    mut target: W,
    context: &Context,
) -> Result<W, OperatorError> {
    Ok(match compression {
        Compression::Gz => {
            let mut packed = flate2::write::GzEncoder::new(target, flate2::Compression::default());
            write_text(rows, format, &mut packed, context)?;
            packed.finish()?
        }
        Compression::Zst => {
            let mut packed = zstd::stream::write::Encoder::new(target, 3)?;
            write_text(rows, format, &mut packed, context)?;
            packed.finish()?
        }
        Compression::Auto | Compression::None => {
            write_text(rows, format, &mut target, context)?;
            target
        }
    })
}

fn write_text(
    rows: &RowsInput,
    format: Format,
    target: &mut (impl Write + Send),
    context: &Context,
) -> Result<(), OperatorError> {
    check_names(rows)?;
    let encoding = Encoding { kind: rows.kind, format, not_finite: Mutex::default() };
    match format {
        Format::Json => target.write_all(b"[\n")?,
        Format::Csv | Format::Tsv => {
            target.write_all(&encoding.cells(&RecordBatch::new_empty(Arc::clone(&rows.schema)), true)?)?;
        }
        _ => {}
    }
    let mut first = true;
    in_parallel(
        rows,
        context,
        |batch| encoding.batch(&batch),
        |bytes: Vec<u8>| {
            // A batch without rows has no bytes, and no comma may precede it.
            if format == Format::Json && !first && !bytes.is_empty() {
                target.write_all(b",\n")?;
            }
            first &= bytes.is_empty();
            Ok(target.write_all(&bytes)?)
        },
    )?;
    if format == Format::Json {
        target.write_all(if first { b"]\n" } else { b"\n]\n" })?;
    }
    for name in encoding.not_finite.into_inner().unwrap_or_default() {
        context.progress().log(&format!("warning: NaN and infinity in the column `{name}` are null: JSON lacks them"));
    }
    Ok(())
}

/// Fails if two columns share a name: readers of the file would find one of them.
fn check_names(rows: &RowsInput) -> Result<(), OperatorError> {
    let Some(name) = name_twice(rows.schema.fields()) else { return Ok(()) };
    let error = OperatorError::pipeline(format!("the rows have two columns `{name}`"));
    Err(error.with_help("rename one of them by `sql` (`AS other_name`)"))
}

fn in_parallel<U: Send>(
    rows: &RowsInput,
    context: &Context,
    work: impl Fn(RecordBatch) -> Result<U, OperatorError> + Sync,
    mut consume: impl FnMut(U) -> Result<(), OperatorError> + Send,
) -> Result<(), OperatorError> {
    map_in_order(
        context.threads(),
        |push| {
            for batch in rows.batches() {
                if push(batch?) == Flow::Stop {
                    break;
                }
            }
            Ok(())
        },
        work,
        |done| {
            context.check_cancelled()?;
            consume(done)?;
            Ok(Flow::Continue)
        },
    )
}

/// How rows are encoded as text.
struct Encoding {
    kind: RecordKind,
    format: Format,
    /// Columns with numbers that became null.
    not_finite: Mutex<BTreeSet<String>>,
}

impl Encoding {
    fn batch(&self, batch: &RecordBatch) -> Result<Vec<u8>, OperatorError> {
        let are_cells = matches!(self.format, Format::Csv | Format::Tsv);
        for field in not_finite(batch) {
            // Cells have words for NaN and infinity, JSON inside of cells has not.
            let is_json = !are_cells || field.data_type().is_nested();
            if is_json && let Ok(mut names) = self.not_finite.lock() {
                names.insert(field.name().clone());
            }
        }
        let batch = &as_text(batch)?;
        let lines = match self.kind {
            _ if are_cells => return self.cells(batch, false),
            RecordKind::Example => example_lines(batch)?,
            kind => json_lines(batch, kind)?,
        };
        if self.format != Format::Json {
            return Ok(lines);
        }
        let rows: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').filter(|row| !row.is_empty()).collect();
        Ok(rows.join(&b",\n"[..]))
    }

    fn cells(&self, batch: &RecordBatch, header: bool) -> Result<Vec<u8>, OperatorError> {
        let delimiter = if self.format == Format::Tsv { b'\t' } else { b',' };
        let builder = arrow::csv::WriterBuilder::new().with_delimiter(delimiter).with_header(header);
        require_objects(batch)?;
        if batch.num_columns() == 0 && batch.num_rows() > 0 {
            return Err(OperatorError::data("the rows have no columns, so there is nothing to write"));
        }
        let batch = as_text(batch)?;
        let mut columns = Vec::with_capacity(batch.num_columns());
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            columns.push((field.name(), cell_column(field, column)?, true));
        }
        let mut writer = builder.build(Vec::new());
        writer.write(&RecordBatch::try_from_iter_with_nullable(columns)?)?;
        Ok(writer.into_inner())
    }
}

/// Fails if a map is no JSON object.
fn require_objects(batch: &RecordBatch) -> Result<(), OperatorError> {
    let Some((column, reason)) = unfit_for_json(batch) else { return Ok(()) };
    let message = format!("the column `{column}` has {reason}, which JSON cannot say");
    Err(OperatorError::data(message)
        .with_help(format!("write a Parquet file, or turn the column into a list by `sql`: `map_entries({column})`")))
}

/// Returns rows with bytes as text.
fn as_text(batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let (column, row) = match with_bytes_as_text(batch) {
        Ok(batch) => return Ok(batch),
        Err(unfit) => unfit,
    };
    let mut message = format!("the column `{column}` holds bytes that are not UTF-8 text");
    // Tables need not have ids.
    if let Ok(ids) = text_column(batch, "id")
        && let Some(id) = text_value(ids, row)
    {
        message += &format!(" (row `{id}`)");
    }
    Err(OperatorError::data(message)
        .with_help(format!("write a Parquet file, or encode the column by `sql`: `encode({column}, 'base64')`")))
}

/// Returns ids and rows of examples. A row that is not one JSON object would break the file for line-by-line readers.
fn example_rows(batch: &RecordBatch) -> Result<Vec<(&str, &str)>, OperatorError> {
    let mut found = Vec::with_capacity(batch.num_rows());
    for (id, row) in text_column(batch, "id")?.iter().zip(text_column(batch, "row")?) {
        let Some(row) = row else { continue };
        let id = id.unwrap_or_default();
        match serde_json::from_str::<serde::de::IgnoredAny>(row) {
            Ok(_) if row.trim_start().starts_with('{') => found.push((id, row)),
            Ok(_) => return Err(not_json(id, &"it is another value")),
            Err(error) => return Err(not_json(id, &error)),
        }
    }
    Ok(found)
}

/// Example rows hold their line, exactly as the trainer reads it.
fn example_lines(batch: &RecordBatch) -> Result<Vec<u8>, OperatorError> {
    let mut lines = Vec::new();
    for (_, row) in example_rows(batch)? {
        // JSON strings contain no raw line breaks, so each one stands between values and can become a space.
        lines.extend(row.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
        lines.push(b'\n');
    }
    Ok(lines)
}

fn json_lines(batch: &RecordBatch, kind: RecordKind) -> Result<Vec<u8>, OperatorError> {
    require_objects(batch)?;
    let mut builder = WriterBuilder::new().with_explicit_nulls(true);
    // A column of a table is whatever the user made of it: its texts stay texts.
    if kind != RecordKind::Table {
        builder = builder.with_encoder_factory(Arc::new(EmbedMetadata));
    }
    let mut writer: Writer<_, LineDelimited> = builder.build(Vec::new());
    writer.write(batch)?;
    writer.finish()?;
    Ok(writer.into_inner())
}

/// Writes `metadata`, which holds a JSON object as text, as an object and not as a string.
#[derive(Debug)]
struct EmbedMetadata;

impl EncoderFactory for EmbedMetadata {
    fn make_default_encoder<'a>(
        &self,
        field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        match array.as_any().downcast_ref::<StringArray>() {
            Some(texts) if field.name() == "metadata" => {
                Ok(Some(NullableEncoder::new(Box::new(JsonText(texts)), texts.nulls().cloned())))
            }
            _ => Ok(None),
        }
    }
}

struct JsonText<'a>(&'a StringArray);

impl Encoder for JsonText<'_> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        let text = self.0.value(row);
        // A line break would end the line of the row. Text that is no object is written as a string.
        let object = text.starts_with('{') && !text.contains('\n');
        if object && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
            out.extend_from_slice(text.as_bytes());
        } else {
            out.extend_from_slice(serde_json::Value::from(text).to_string().as_bytes());
        }
    }
}

/// Replaces lists and objects by JSON text, for formats with flat cells.
fn cell_column(field: &FieldRef, column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if !column.data_type().is_nested() {
        return Ok(Arc::clone(column));
    }
    let options = EncoderOptions::default();
    let mut encoder = make_encoder(field, column.as_ref(), &options)?;
    let mut texts = Vec::with_capacity(column.len());
    for row in 0..column.len() {
        if encoder.is_null(row) {
            texts.push(None);
            continue;
        }
        let mut text = Vec::new();
        encoder.encode(row, &mut text);
        texts.push(Some(String::from_utf8_lossy(&text).into_owned()));
    }
    Ok(Arc::new(StringArray::from(texts)))
}

/// Writes rows as Parquet; example rows as the fields of their JSON objects.
///
/// # Errors
/// Fails if rows do not fit the format or the file cannot be written.
pub fn parquet<W: Write + Send>(
    rows: &RowsInput,
    compression: Compression,
    target: W,
    context: &Context,
) -> Result<W, OperatorError> {
    check_names(rows)?;
    let codec = match compression {
        Compression::Auto => ParquetCompression::SNAPPY,
        Compression::None => ParquetCompression::UNCOMPRESSED,
        Compression::Zst => ParquetCompression::ZSTD(ZstdLevel::try_new(3)?),
        Compression::Gz => {
            let error = OperatorError::pipeline("Parquet files cannot be gz-compressed");
            return Err(error.with_help("write `compression: zst`"));
        }
    };
    let properties =
        WriterProperties::builder().set_compression(codec).set_max_row_group_row_count(Some(GROUP_ROWS)).build();
    if rows.kind != RecordKind::Example {
        let mut writer = ArrowWriter::try_new(target, Arc::clone(&rows.schema), Some(properties))?;
        in_parallel(rows, context, Ok, |batch| Ok(writer.write(&batch)?))?;
        return Ok(writer.into_inner()?);
    }
    // The columns of examples are known only when all rows were read: once for the columns, once to write.
    let mut shape = Shape::row();
    for batch in rows.batches() {
        context.check_cancelled()?;
        for (id, row) in example_rows(&batch?)? {
            let mut parser = serde_json::Deserializer::from_str(row);
            Widen(&mut shape).deserialize(&mut parser).map_err(|error| not_json(id, &error))?;
        }
    }
    let columns = Direct::table(shape.columns());
    let mut writer = ArrowWriter::try_new(target, Arc::clone(&columns.schema), Some(properties))?;
    let decoder = Decoder::Direct(columns);
    in_parallel(rows, context, |batch| decode_examples(&decoder, &batch), |batch| Ok(writer.write(&batch)?))?;
    Ok(writer.into_inner()?)
}

fn not_json(id: &str, error: &dyn std::fmt::Display) -> OperatorError {
    OperatorError::data(format!("the row of the example `{id}` is not one JSON object: {error}"))
}

fn decode_examples(decoder: &Decoder, batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let bytes = example_lines(batch)?;
    let (mut places, mut from) = (Vec::new(), 0);
    for (line, row) in (1..).zip(text_column(batch, "row")?.iter().flatten()) {
        places.push(Place { range: from..from + row.len(), line });
        // Each row is followed by a line break.
        from += row.len() + 1;
    }
    let records = Records::Json { bytes, places, members: false };
    let block = Block { file: "examples".into(), records, first: 0, rejects: Vec::new(), nulled: Vec::new() };
    let decoded = decoder.decode(block)?;
    match decoded.rejects.first() {
        Some(reject) => Err(not_json(&reject.id, &reject.message)),
        None => Ok(decoded.batch),
    }
}
