//! Opens Parquet files. Types follow from what the file holds: bytes that are UTF-8 are text, as older writers mean them,
//! and 96-bit timestamps have the unit that holds them all.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, RecordBatch, TimestampMicrosecondArray, TimestampNanosecondArray,
    TimestampSecondArray, new_empty_array,
};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Float32Type, Float64Type, Schema, SchemaRef, TimeUnit};
use bytes::{Buf, Bytes};
use object_store::{GetResultPayload, ObjectStore, ObjectStoreExt};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Type as PhysicalType;
use parquet::file::reader::{ChunkReader, Length};
use searchmill_engine::operator::{Context, OperatorError};
use searchmill_schemas::{bytes_as_text, decimals_as_text, has_bytes, name_twice, with_bytes_as_text};

use super::location::{Place, SourceFile};
use super::store;
use crate::decoded::decoded;

/// Rows of a Parquet file read together.
const BATCH_ROWS: usize = 8192;

/// Most bytes fetched if the wanted length is unknown.
const READ_AHEAD: u64 = 1 << 20;

/// Seconds from 1970 on, before and after, that nanoseconds of 64 bits hold.
const NANOSECOND_SECONDS: u64 = 9_223_372_035;

/// Record batches of a Parquet file.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch, OperatorError>>>;

/// Opens the columns and batches of a Parquet file.
///
/// # Errors
/// Fails if it cannot be opened, is not Parquet, has two columns of one name, or holds timestamps that no type holds.
pub fn batches(file: &SourceFile, context: &Context) -> Result<(SchemaRef, Batches), OperatorError> {
    match &file.place {
        Place::Local(path) => {
            let got = context.block_on(store::local_file(path)).map_err(|error| store::failed(&file.shown, error))?;
            let GetResultPayload::File(opened, _) = got.payload else {
                return Err(OperatorError::engine(format!("`{}` did not open as a file", file.shown)));
            };
            ParquetFile::open(file, opened)?.batches()
        }
        Place::Remote(store, path) => {
            let length = context.block_on(store.head(path)).map_err(|error| store::failed(&file.shown, error))?.size;
            let (store, path, context) = (Arc::clone(store), path.clone(), context.clone());
            ParquetFile::open(file, RemoteFile { store, path, length, context })?.batches()
        }
    }
}

/// An open file.
struct ParquetFile<R> {
    shown: String,
    opened: Shared<R>,
    metadata: ArrowReaderMetadata,
}

impl<R: ChunkReader + 'static> ParquetFile<R> {
    fn open(file: &SourceFile, opened: R) -> Result<Self, OperatorError> {
        let (shown, opened) = (file.shown.clone(), Shared(Arc::new(opened)));
        // Inside `decoded`: the library panics on some damaged files.
        let metadata = decoded(|| ArrowReaderMetadata::load(&opened, ArrowReaderOptions::new()));
        let metadata = metadata.map_err(|error| unreadable(&shown, &error))?;
        let opened = Self { shown, opened, metadata };
        if let Some(name) = name_twice(opened.metadata.schema().fields()) {
            let error = opened.wrong(&format!("it has two columns `{name}`"));
            return Err(error.with_help("write the file again with another name for one of them"));
        }
        Ok(opened)
    }

    fn wrong(&self, error: &dyn Display) -> OperatorError {
        unreadable(&self.shown, error)
    }

    fn batches(mut self) -> Result<(SchemaRef, Batches), OperatorError> {
        let columns = self.metadata.parquet_schema();
        let mut wide = Vec::new();
        for leaf in 0..columns.num_columns() {
            if columns.column(leaf).physical_type() == PhysicalType::INT96 && !self.fits_nanoseconds(leaf)? {
                wide.push(leaf);
            }
        }
        // By default the unit is nanoseconds, in which years before 1677 and after 2262 become others.
        if !wide.is_empty() {
            self.metadata = self.with_unit(&wide, TimeUnit::Microsecond)?;
        }
        let texts = self.columns_of_text()?;
        let schema = self.metadata.schema();
        let mut fields: Vec<FieldRef> = schema.fields().to_vec();
        for (index, data_type) in &texts {
            fields[*index] = Arc::new(Field::clone(&fields[*index]).with_data_type(data_type.clone()));
        }
        let schema = Arc::new(Schema::new(fields));
        let reader = self.reader(&self.metadata, ProjectionMask::all())?;
        let target = Arc::clone(&schema);
        let batches = reader.map(move |batch| {
            let batch = batch?;
            let mut columns = batch.columns().to_vec();
            for index in texts.keys() {
                columns[*index] = bytes_as_text(&columns[*index])?;
            }
            let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            Ok(RecordBatch::try_new_with_options(Arc::clone(&target), columns, &options)?)
        });
        Ok((schema, Box::new(batches)))
    }

    fn reader(
        &self,
        metadata: &ArrowReaderMetadata,
        columns: ProjectionMask,
    ) -> Result<impl Iterator<Item = Result<RecordBatch, OperatorError>> + use<R>, OperatorError> {
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(self.opened.clone(), metadata.clone());
        let builder = builder.with_batch_size(BATCH_ROWS).with_projection(columns);
        let mut reader: ParquetRecordBatchReader = decoded(|| builder.build()).map_err(|error| self.wrong(&error))?;
        let shown = self.shown.clone();
        Ok(std::iter::from_fn(move || {
            let batch = decoded(|| reader.next().transpose());
            batch.map_err(|error| unreadable(&shown, &error)).transpose()
        }))
    }

    /// Returns the columns of bytes whose values are all UTF-8, with their types as text.
    fn columns_of_text(&self) -> Result<BTreeMap<usize, DataType>, OperatorError> {
        let mut texts = BTreeMap::new();
        for (index, field) in self.metadata.schema().fields().iter().enumerate() {
            if !has_bytes(field.data_type()) {
                continue;
            }
            // The whole column is read: the type must fit the last row too.
            let column = ProjectionMask::roots(self.metadata.parquet_schema(), [index]);
            let mut is_text = true;
            for batch in self.reader(&self.metadata, column)? {
                is_text = bytes_as_text(batch?.column(0)).is_ok();
                if !is_text {
                    break;
                }
            }
            if is_text {
                let text = bytes_as_text(&new_empty_array(field.data_type()))?;
                texts.insert(index, text.data_type().clone());
            }
        }
        Ok(texts)
    }

    fn fits_nanoseconds(&self, leaf: usize) -> Result<bool, OperatorError> {
        let mut furthest = 0;
        for seconds in self.stamps::<TimestampSecondArray>(leaf, TimeUnit::Second)? {
            for value in seconds.iter().flatten() {
                furthest = furthest.max(value.unsigned_abs());
            }
        }
        if furthest <= NANOSECOND_SECONDS {
            return Ok(true);
        }
        let microseconds: Vec<TimestampMicrosecondArray> = self.stamps(leaf, TimeUnit::Microsecond)?;
        let nanoseconds: Vec<TimestampNanosecondArray> = self.stamps(leaf, TimeUnit::Nanosecond)?;
        let mut pairs = microseconds.iter().flatten().flatten().zip(nanoseconds.iter().flatten().flatten());
        // Both wrap around alike, so that their difference is the part of a microsecond.
        let are_whole = pairs.all(|(micro, nano)| nano.wrapping_sub(micro.wrapping_mul(1000)) == 0);
        if furthest <= NANOSECOND_SECONDS * 1000 && are_whole {
            return Ok(false);
        }
        let name = self.metadata.parquet_schema().column(leaf).path().string();
        let fault = "holds times that neither nanoseconds (1677 to 2262) nor microseconds hold";
        let help = "write the column again as 64-bit timestamps (in Spark: outputTimestampType TIMESTAMP_MICROS)";
        Err(self.wrong(&format!("the column `{name}` {fault}")).with_help(help))
    }

    /// Returns the values of a column of timestamps in a unit.
    fn stamps<A: Clone + 'static>(&self, leaf: usize, unit: TimeUnit) -> Result<Vec<A>, OperatorError> {
        let metadata = self.with_unit(&[leaf], unit)?;
        let mut found = Vec::new();
        for batch in self.reader(&metadata, ProjectionMask::leaves(metadata.parquet_schema(), [leaf]))? {
            let innermost = innermost(batch?.column(0));
            found.extend(innermost.as_any().downcast_ref::<A>().cloned());
        }
        Ok(found)
    }

    /// Returns the metadata with this unit for columns of timestamps.
    fn with_unit(&self, leaves: &[usize], unit: TimeUnit) -> Result<ArrowReaderMetadata, OperatorError> {
        let fields = with_unit(self.metadata.schema().fields(), &mut 0, leaves, unit);
        let options = ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(fields)));
        decoded(|| ArrowReaderMetadata::load(&self.opened, options)).map_err(|error| self.wrong(&error))
    }
}

fn unreadable(shown: &str, error: &dyn Display) -> OperatorError {
    OperatorError::data(format!("cannot read `{shown}` as Parquet: {error}"))
}

/// Returns the fields with this unit for the leaves with these numbers. `next`: the number of the next leaf.
fn with_unit(fields: &Fields, next: &mut usize, leaves: &[usize], unit: TimeUnit) -> Fields {
    fields.iter().map(|field| field_with_unit(field, next, leaves, unit)).collect()
}

fn field_with_unit(field: &FieldRef, next: &mut usize, leaves: &[usize], unit: TimeUnit) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::List(item) => DataType::List(field_with_unit(item, next, leaves, unit)),
        DataType::LargeList(item) => DataType::LargeList(field_with_unit(item, next, leaves, unit)),
        DataType::FixedSizeList(item, size) => {
            DataType::FixedSizeList(field_with_unit(item, next, leaves, unit), *size)
        }
        DataType::Map(entries, sorted) => DataType::Map(field_with_unit(entries, next, leaves, unit), *sorted),
        DataType::Struct(fields) => DataType::Struct(with_unit(fields, next, leaves, unit)),
        leaf => {
            let number = *next;
            *next += 1;
            match leaf {
                DataType::Timestamp(_, zone) if leaves.contains(&number) => DataType::Timestamp(unit, zone.clone()),
                leaf => leaf.clone(),
            }
        }
    };
    Arc::new(Field::clone(field).with_data_type(data_type))
}

/// Returns the values in a column that was read with one leaf.
fn innermost(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::List(_) => innermost(column.as_list::<i32>().values()),
        DataType::LargeList(_) => innermost(column.as_list::<i64>().values()),
        DataType::Struct(_) => innermost(column.as_struct().column(0)),
        DataType::Map(..) => innermost(column.as_map().values()),
        _ => Arc::clone(column),
    }
}

/// Rows that JSON can write.
pub(crate) struct Readable {
    pub batch: RecordBatch,
    /// Their places in the batch before.
    pub rows: Vec<usize>,
    /// The others, each with the column whose bytes are no text.
    pub rejected: Vec<(usize, String)>,
    /// Rows with NaN or infinity, which are written as null.
    pub not_finite: Vec<usize>,
}

/// Prepares rows for JSON: bytes become text, long decimal numbers too.
pub(crate) fn readable(batch: &RecordBatch) -> Result<Readable, OperatorError> {
    let mut rejected = Vec::new();
    let mut rows: Vec<usize> = (0..batch.num_rows()).collect();
    let mut texts = with_bytes_as_text(batch);
    if texts.is_err() {
        // Row by row: the others are read.
        let mut are_fit = Vec::with_capacity(batch.num_rows());
        for row in 0..batch.num_rows() {
            let unfit = with_bytes_as_text(&batch.slice(row, 1)).err();
            are_fit.push(unfit.is_none());
            if let Some((column, _)) = unfit {
                rejected.push((row, column));
            }
        }
        rows.retain(|row| are_fit[*row]);
        texts = with_bytes_as_text(&arrow::compute::filter_record_batch(batch, &BooleanArray::from(are_fit))?);
    }
    let texts = texts.map_err(|(column, _)| OperatorError::engine(format!("`{column}` is no text")))?;
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in texts.schema().fields().iter().zip(texts.columns()) {
        let column = decimals_as_text(column)?;
        fields.push(Arc::new(Field::clone(field).with_data_type(column.data_type().clone())));
        columns.push(column);
    }
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?;
    let mut not_finite = Vec::new();
    // Most files have none: looking at whole columns first spares looking at each row.
    let with_infinity: Vec<&ArrayRef> = batch.columns().iter().filter(|column| any_not_finite(column)).collect();
    for (index, row) in rows.iter().enumerate() {
        if with_infinity.iter().any(|column| any_not_finite(&column.slice(index, 1))) {
            not_finite.push(*row);
        }
    }
    Ok(Readable { batch, rows, rejected, not_finite })
}

/// Returns the columns with a number that is NaN or infinite, which JSON lacks.
pub(crate) fn not_finite(batch: &RecordBatch) -> Vec<FieldRef> {
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    columns.filter(|(_, column)| any_not_finite(column)).map(|(field, _)| Arc::clone(field)).collect()
}

/// Whether an array has a number that is NaN or infinite, at any depth.
fn any_not_finite(array: &ArrayRef) -> bool {
    match array.data_type() {
        DataType::Float64 => array.as_primitive::<Float64Type>().iter().flatten().any(|value| !value.is_finite()),
        DataType::Float32 => array.as_primitive::<Float32Type>().iter().flatten().any(|value| !value.is_finite()),
        DataType::Struct(_) => array.as_struct().columns().iter().any(any_not_finite),
        DataType::List(item) if may_hold_floats(item.data_type()) => {
            array.as_list::<i32>().iter().flatten().any(|values| any_not_finite(&values))
        }
        DataType::LargeList(item) if may_hold_floats(item.data_type()) => {
            array.as_list::<i64>().iter().flatten().any(|values| any_not_finite(&values))
        }
        DataType::FixedSizeList(item, _) if may_hold_floats(item.data_type()) => {
            array.as_fixed_size_list().iter().flatten().any(|values| any_not_finite(&values))
        }
        _ => false,
    }
}

fn may_hold_floats(data_type: &DataType) -> bool {
    data_type.is_floating() || data_type.is_nested()
}

/// A reader that several readers share.
struct Shared<R>(Arc<R>);

impl<R> Clone for Shared<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: ChunkReader> Length for Shared<R> {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl<R: ChunkReader> ChunkReader for Shared<R> {
    type T = R::T;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        self.0.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// A Parquet file in an object store, read by byte ranges.
struct RemoteFile {
    store: Arc<dyn ObjectStore>,
    path: object_store::path::Path,
    length: u64,
    context: Context,
}

impl Length for RemoteFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for RemoteFile {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        let length = self.length.saturating_sub(start).min(READ_AHEAD);
        Ok(self.get_bytes(start, length as usize)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let range = start..start + length as u64;
        Ok(self.context.block_on(self.store.get_range(&self.path, range))?)
    }
}
