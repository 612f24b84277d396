//! Decodes blocks of raw records into record batches and collects rejects.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::{Document, Question, RecordKind, Trajectory, to_batch};
use searchmill_text::unambiguous::{Unambiguous, insert_once};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::column::{Column, Fill, Fit, Scalar, fill_fields, fill_gaps, unknown_field};
use super::layout::Layout;
use super::mapping::Origin;
use super::record::{Block, Decoded, Fault, Place, Records};
use super::{cells, conversation, strict};

/// How records become rows.
pub enum Decoder {
    /// Fields are read into columns of the same name.
    Direct(Direct),
    /// Each column has an origin.
    Mapped(Mapped),
    /// The layout of a published data set, with columns beside those of its kind.
    Layout(Layout, RecordKind, Vec<Added>),
}

/// A text column beside those of a layout.
pub struct Added {
    /// Its name.
    pub name: String,
    /// Where its values come from. Values that are not texts are written as JSON.
    pub origin: Origin,
}

/// Reads fields directly into columns.
pub struct Direct {
    /// Columns under their names in the source.
    pub source: Vec<FieldRef>,
    /// The output columns.
    pub schema: SchemaRef,
    /// How strictly values must match.
    pub fit: Fit,
    /// Where row ids come from.
    pub ids: Ids,
    /// The column that collects all other fields.
    pub rest: Option<usize>,
}

/// Where row ids come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// Rows have no ids.
    None,
    /// From the first column; a row without an id gets its row number.
    Numbered,
    /// From the first column, chosen by the user; a row without an id is rejected.
    Required,
}

/// What should be told about a row that was read.
type Remark = Option<&'static str>;

/// Each column has an origin.
pub struct Mapped {
    /// Origins, by column.
    pub origins: Vec<Origin>,
    /// Target columns.
    pub target: Direct,
    /// Columns of trajectories that are derived.
    pub absent: Option<super::foreign::Absent>,
    /// Places of `messages` and `protocol`, if the rows are trajectories.
    pub conversation: Option<[usize; 2]>,
}

impl Direct {
    /// Columns inferred from the rows of a table.
    pub fn table(columns: Vec<FieldRef>) -> Self {
        let schema = Arc::new(Schema::new(columns.clone()));
        Self { source: columns, schema, fit: Fit::Exact, ids: Ids::None, rest: None }
    }

    /// Columns of a record kind, each read from the field that `name` returns.
    pub fn kind<'a>(kind: RecordKind, name: impl Fn(&'a str) -> String, fields: &'a [FieldRef], ids: Ids) -> Self {
        let rest = fields.iter().position(|field| field.name() == "metadata");
        let source = fields.iter().map(|field| Arc::new(Field::clone(field).with_name(name(field.name())))).collect();
        Self { source, schema: kind.schema(), fit: Fit::Lenient, ids, rest }
    }

    fn columns(&self) -> Result<Vec<Column>, OperatorError> {
        let columns = self.source.iter().map(|field| Column::new(field, self.fit));
        let mut columns: Vec<Column> = columns.collect::<Result<_, _>>()?;
        // A null id counts as a missing one, which becomes a number.
        if self.ids == Ids::Numbered {
            columns[0].skips_null = true;
        }
        Ok(columns)
    }

    fn batch(&self, columns: &mut [Column], rows: usize) -> Result<RecordBatch, OperatorError> {
        let arrays = columns.iter_mut().map(Column::finish).collect::<Result<Vec<ArrayRef>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)?)
    }

    /// Completes a row after its fields were read.
    fn complete(&self, columns: &mut [Column], row: usize, number: u64, rest: Map<String, Value>) -> Result<(), Fault> {
        if let Some(index) = self.rest
            && !rest.is_empty()
        {
            add_rest(&mut columns[index], row, rest).map_err(Fault::row)?;
        }
        // The number counts across files, so that it is an id.
        if self.ids == Ids::Numbered && columns[0].len() == row {
            columns[0].push_scalar(Scalar::Text(&number.to_string())).map_err(Fault::row)?;
        }
        if self.ids == Ids::Required && columns[0].len() > row && columns[0].last_text() == Some("") {
            return Err(Fault::row(format!("`{}` is empty", columns[0].name())));
        }
        fill_gaps(columns, row).map_err(Fault::row)
    }

    /// Reads a record. Returns whether it has constants that JSON lacks, which are null.
    fn json(&self, columns: &mut [Column], row: usize, number: u64, record: &[u8]) -> Result<bool, Fault> {
        let ((), has_constants) = strict::with_constants(record, |record| {
            // The attempt without constants may have read a part of the row.
            for column in columns.iter_mut() {
                column.truncate(row);
            }
            let mut rest = Map::new();
            let collect = if self.rest.is_some() { Some(&mut rest) } else { None };
            let mut parser = serde_json::Deserializer::from_slice(record);
            let seed = Row { columns: &mut *columns, number: row, fit: self.fit, rest: collect };
            seed.deserialize(&mut parser).and_then(|()| parser.end())?;
            // Afterwards: only valid JSON can be looked through for numbers.
            strict::check_numbers(record)?;
            self.complete(columns, row, number, rest)
        })?;
        Ok(has_constants)
    }

    fn cells(columns: &mut [Column], row: usize, cells: &[(&str, &str)]) -> Result<(), Fault> {
        for (name, text) in cells {
            let Some(column) = columns.iter_mut().find(|column| column.name() == *name) else {
                return Err(Fault::row(unknown_field(name)));
            };
            let pushed = if column.is_text() && !text.is_empty() {
                // As it is written: `1.50` is another text than `1.5`.
                column.push_scalar(Scalar::Text(text))
            } else {
                match cells::scalar(text) {
                    None => column.push_missing(),
                    Some(scalar) => column.push_scalar(scalar),
                }
            };
            pushed.map_err(Fault::row)?;
        }
        fill_gaps(columns, row).map_err(Fault::row)
    }
}

/// Adds unused fields to the metadata, which may already hold an object.
fn add_rest(column: &mut Column, row: usize, mut rest: Map<String, Value>) -> Result<(), String> {
    if column.len() > row
        && let Some(own) = column.last_text()
    {
        match serde_json::from_str(own) {
            Ok(Value::Object(own)) => rest.extend(own),
            _ => drop(rest.insert("metadata".to_owned(), own.into())),
        }
    }
    column.truncate(row);
    column.push_scalar(Scalar::Text(&Value::Object(rest).to_string()))
}

struct Row<'a> {
    columns: &'a mut [Column],
    number: usize,
    fit: Fit,
    rest: Option<&'a mut Map<String, Value>>,
}

impl<'de> DeserializeSeed<'de> for Row<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Row<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, parts: A) -> Result<(), A::Error> {
        fill_fields(self.columns, self.number, parts, |name, parts| match &mut self.rest {
            Some(rest) => {
                let Unambiguous(value) = parts.next_value()?;
                insert_once(rest, name, value).map_err(A::Error::custom)
            }
            None if self.fit == Fit::Lenient => parts.next_value::<IgnoredAny>().map(|_| ()),
            None => Err(A::Error::custom(unknown_field(&name))),
        })
    }
}

impl Mapped {
    fn value(&self, columns: &mut [Column], row: usize, number: u64, record: &Value) -> Result<Remark, Fault> {
        let Value::Object(fields) = record else { return Err(Fault::row("the record is not a JSON object")) };
        let mut values = Vec::with_capacity(columns.len());
        for (column, origin) in columns.iter().zip(&self.origins) {
            values.push(origin.find(record).map_err(|field| Fault::row(incomplete(column.name(), &field)))?);
        }
        let mut remark = None;
        if let Some([messages, protocol]) = self.conversation {
            let read = conversation::read(&values[messages], values[protocol].is_null()).map_err(Fault::row)?;
            values[messages] = Cow::Owned(read.messages);
            remark = read.remark;
        }
        // After the conversation, whose messages decide what is derived.
        if let Some(absent) = &self.absent {
            absent.derive(&mut values, number);
        }
        for (column, value) in columns.iter_mut().zip(values) {
            if !value.is_null() {
                Fill(column).deserialize(value.as_ref())?;
            }
        }
        let rest = if self.target.rest.is_some() { self.unused(fields) } else { Map::new() };
        self.target.complete(columns, row, number, rest)?;
        Ok(remark)
    }

    fn unused(&self, fields: &Map<String, Value>) -> Map<String, Value> {
        let used: Vec<&str> = self.origins.iter().flat_map(Origin::fields).collect();
        let unused = fields.iter().filter(|(name, _)| !used.contains(&name.as_str()));
        unused.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

fn incomplete(column: &str, field: &str) -> String {
    format!("the template of `{column}` needs `{field}`, which is missing; write `{{{field}?}}` if it is optional")
}

impl Decoder {
    /// Decodes the rows of a block.
    ///
    /// # Errors
    /// Only for defects: bad records become [`Decoded::rejects`].
    pub fn decode(&self, block: Block) -> Result<Decoded, OperatorError> {
        match self {
            Self::Direct(direct) => by_row(&block, direct, |columns, row, number, record| match record {
                Raw::Json(bytes) => Ok((direct.json(columns, row, number, &bytes)?, None)),
                Raw::Cells(cells) => Direct::cells(columns, row, &cells?).map(|()| (false, None)),
            }),
            Self::Mapped(mapped) => by_row(&block, &mapped.target, |columns, row, number, record| {
                let (value, has_constants) = record.value()?;
                Ok((has_constants, mapped.value(columns, row, number, &value)?))
            }),
            Self::Layout(layout, RecordKind::Question, added) => {
                by_layout(&block, added, to_batch::<Question>, |n, _, record| Ok(vec![layout.question(n, record)?]))
            }
            Self::Layout(layout, RecordKind::Trajectory, added) => {
                by_layout(&block, added, to_batch::<Trajectory>, |n, _, record| Ok(vec![layout.trajectory(n, record)?]))
            }
            Self::Layout(layout, _, added) => {
                by_layout(&block, added, to_batch::<Document>, |n, line, record| layout.documents(n, line, record))
            }
        }
    }

    /// Returns the schema of the rows.
    pub fn schema(&self) -> SchemaRef {
        match self {
            Self::Direct(direct) => Arc::clone(&direct.schema),
            Self::Mapped(mapped) => Arc::clone(&mapped.target.schema),
            Self::Layout(_, kind, added) => with_fields(&kind.schema(), added),
        }
    }
}

/// One record of a block.
pub enum Raw<'a> {
    Json(Cow<'a, [u8]>),
    Cells(Result<Vec<(&'a str, &'a str)>, Fault>),
}

impl Raw<'_> {
    /// Returns the record as a JSON value, without empty cells, and whether it has constants that JSON lacks, which are
    /// null.
    ///
    /// # Errors
    /// Why the record cannot be read.
    pub fn value(self) -> Result<(Value, bool), Fault> {
        match self {
            Raw::Json(bytes) => strict::with_constants(&bytes, strict::value),
            Raw::Cells(cells) => {
                let filled = cells?.into_iter().filter(|(_, text)| !text.is_empty());
                let fields: Map<_, _> = filled.map(|(name, text)| (name.to_owned(), text.into())).collect();
                Ok((fields.into(), false))
            }
        }
    }
}

impl Block {
    /// Returns the block's records with their lines.
    pub fn raw(&self) -> Vec<(u64, &[u8], Raw<'_>)> {
        let mut raw = Vec::with_capacity(self.count());
        match &self.records {
            Records::Json { bytes, places, members } => {
                for Place { range, line } in places {
                    let record = &bytes[range.clone()];
                    let whole = if *members { [b"{", record, b"}"].concat().into() } else { record.into() };
                    raw.push((*line, record, Raw::Json(whole)));
                }
            }
            Records::Cells { header, rows } => {
                for (line, row) in rows {
                    raw.push((*line, row.as_slice(), Raw::Cells(cells::named(header, row))));
                }
            }
        }
        raw
    }
}

/// Decodes a block row by row. `read` returns whether numbers that JSON lacks became null, and a remark.
fn by_row(
    block: &Block,
    direct: &Direct,
    read: impl Fn(&mut [Column], usize, u64, Raw<'_>) -> Result<(bool, Remark), Fault>,
) -> Result<Decoded, OperatorError> {
    let mut columns = direct.columns()?;
    let (mut lines, mut rejects) = (Vec::with_capacity(block.count()), block.rejects.clone());
    let (mut nulled, mut remarks) = (block.nulled.clone(), BTreeSet::new());
    for (number, (line, bytes, record)) in (block.first..).zip(block.raw()) {
        let row = lines.len();
        match read(&mut columns, row, number, record) {
            Ok((has_constants, remark)) => {
                lines.push(line);
                nulled.extend(has_constants.then_some(line));
                remarks.extend(remark);
            }
            Err(fault) => {
                // Columns before the fault have a value of this row already.
                for column in &mut columns {
                    column.truncate(row);
                }
                rejects.push(explained(fault, bytes).reject(&block.file, line, bytes));
            }
        }
    }
    let mut dropped = BTreeSet::new();
    for column in &columns {
        column.collect_dropped(&mut dropped);
    }
    let batch = direct.batch(&mut columns, lines.len())?;
    Ok(Decoded { file: Arc::clone(&block.file), batch, lines, rejects, dropped, nulled, remarks, skipped: 0 })
}

/// Names the encoding of a record that could not be parsed because it is not UTF-8.
fn explained(fault: Fault, bytes: &[u8]) -> Fault {
    if fault.kind == "bad_line"
        && let Some(message) = super::recognised::not_utf8(bytes)
    {
        return Fault { message, ..fault };
    }
    fault
}

fn with_fields(schema: &Schema, added: &[Added]) -> SchemaRef {
    let added = added.iter().map(|column| Arc::new(Field::new(&column.name, DataType::Utf8, true)));
    Arc::new(Schema::new(schema.fields().iter().cloned().chain(added).collect::<Vec<_>>()))
}

/// Returns the values of the added columns, the same for all rows of a record.
fn added_texts(added: &[Added], record: &Value) -> Result<Vec<Option<String>>, Fault> {
    let mut texts = Vec::with_capacity(added.len());
    for column in added {
        let value = column.origin.find(record).map_err(|field| Fault::row(incomplete(&column.name, &field)))?;
        texts.push(match value.as_ref() {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        });
    }
    Ok(texts)
}

fn by_layout<R>(
    block: &Block,
    added: &[Added],
    batch: impl Fn(&[R]) -> Result<RecordBatch, searchmill_schemas::SchemaError>,
    read: impl Fn(u64, u64, Value) -> Result<Vec<R>, Fault>,
) -> Result<Decoded, OperatorError> {
    let (mut rows, mut lines, mut rejects) = (Vec::new(), Vec::new(), block.rejects.clone());
    let mut texts: Vec<Vec<Option<String>>> = vec![Vec::new(); added.len()];
    let mut nulled = block.nulled.clone();
    for (number, (line, bytes, record)) in (block.first..).zip(block.raw()) {
        let read = record.value().and_then(|(value, has_constants)| {
            let further = added_texts(added, &value)?;
            Ok((has_constants, further, read(number, line, value)?))
        });
        match read {
            Ok((has_constants, further, found)) => {
                nulled.extend(has_constants.then_some(line));
                lines.extend(std::iter::repeat_n(line, found.len()));
                for (column, text) in texts.iter_mut().zip(further) {
                    column.extend(std::iter::repeat_n(text, found.len()));
                }
                rows.extend(found);
            }
            Err(fault) => rejects.push(explained(fault, bytes).reject(&block.file, line, bytes)),
        }
    }
    let (schema, mut columns, _) = batch(&rows)?.into_parts();
    columns.extend(texts.into_iter().map(|column| Arc::new(StringArray::from(column)) as ArrayRef));
    let batch = RecordBatch::try_new(with_fields(&schema, added), columns)?;
    let (dropped, remarks) = (BTreeSet::new(), BTreeSet::new());
    Ok(Decoded { file: Arc::clone(&block.file), batch, lines, rejects, dropped, nulled, remarks, skipped: 0 })
}
