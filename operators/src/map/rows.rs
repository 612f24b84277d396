//! Rows of `map`: the cells of an input row as JSON for the prompt or function, JSON as columns, and the rows that are made
//! of an input row and its answer.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int64Array, ListArray, RecordBatch, RecordBatchOptions, StringArray, UInt32Array, new_empty_array,
    new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::json::ReaderBuilder;
use searchmill_agent::prompt::Output;
use searchmill_engine::operator::{OperatorError, RowsInput};
use searchmill_schemas::{RecordKind, text_column};
use serde::Serialize;
use serde_json::{Map, Value};

use super::params::MapParams;
use crate::shared::columns::{conformed, json_lines, with_columns, with_fields};

/// Column with a JSON object as text, of many record kinds.
pub(super) const METADATA: &str = "metadata";
/// Column with the number of the answer.
const SAMPLE: &str = "sample";
const ID: &str = "id";

/// Returns these columns of each row as a JSON object. `metadata` is an object if it holds one.
pub(super) fn json_objects(batch: &RecordBatch, columns: &[String]) -> Result<Vec<Map<String, Value>>, OperatorError> {
    let places = columns.iter().filter_map(|name| batch.schema().index_of(name).ok()).collect::<Vec<_>>();
    if places.is_empty() {
        return Ok(vec![Map::new(); batch.num_rows()]);
    }
    let text = json_lines(&batch.project(&places)?, "")?;
    let mut rows = Vec::with_capacity(batch.num_rows());
    for row in serde_json::Deserializer::from_slice(&text).into_iter::<Map<String, Value>>() {
        let mut row = row.map_err(|error| OperatorError::engine(format!("a row is no JSON: {error}")))?;
        // A template can then read its fields, for example `{{ metadata.year }}`.
        if let Some(Value::String(text)) = row.get(METADATA)
            && let Ok(object) = serde_json::from_str::<Map<String, Value>>(text)
        {
            row.insert(METADATA.to_owned(), Value::Object(object));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Returns these columns of each row as the text of a JSON object.
pub(super) fn json_texts(batch: &RecordBatch, columns: &[String]) -> Result<Vec<String>, OperatorError> {
    Ok(json_objects(batch, columns)?.into_iter().map(|row| Value::Object(row).to_string()).collect())
}

/// Returns the objects as columns. They must have been checked against the schema.
pub(super) fn columns_of_objects(
    schema: &Arc<Schema>,
    objects: &[impl Serialize],
) -> Result<RecordBatch, OperatorError> {
    let mut decoder = ReaderBuilder::new(Arc::clone(schema)).with_batch_size(objects.len().max(1)).build_decoder()?;
    decoder.serialize(objects)?;
    let batch = decoder.flush()?;
    Ok(batch.unwrap_or_else(|| RecordBatch::new_empty(Arc::clone(schema))))
}

/// Makes the rows.
pub(super) struct OutputRows {
    kind: RecordKind,
    /// Columns of the answer.
    answer: Arc<Schema>,
    samples: u32,
    explodes: bool,
    /// Column that keeps the id of the input row, if the rows become rows of another kind.
    origin: Option<&'static str>,
    /// Whether ids are derived from that of the input row.
    derives_ids: bool,
}

impl OutputRows {
    /// Checks that rows of the wanted kind can be made.
    ///
    /// # Errors
    /// Names the columns that are missing.
    pub(super) fn new(params: &MapParams, output: &Output, input: &RowsInput) -> Result<Self, OperatorError> {
        let kind = params.kind.map_or(input.kind, RecordKind::from);
        let answer = Arc::clone(output.columns());
        let explodes = params.explode.is_some();
        // An answer with a column `id` names its rows itself.
        let derives_ids = kind.id_column().is_some() && !has(&answer, ID);
        if derives_ids && !has(&input.schema, ID) {
            let error = OperatorError::pipeline(format!("{kind} rows need ids, and the input has no column `id`"));
            return Err(error.with_help("add `id` to the input or to `output`"));
        }
        let origin =
            origin(input.kind).filter(|name| kind != input.kind && !has(&input.schema, name) && !has(&answer, name));
        let mut missing = Vec::new();
        for field in kind.schema().fields() {
            let name = field.name();
            // Null or an empty list stands for a column that nothing gives.
            let is_filled = field.is_nullable() || matches!(field.data_type(), DataType::List(_));
            let is_given =
                name == ID || origin == Some(name.as_str()) || has(&answer, name) || has(&input.schema, name);
            if !is_filled && !is_given {
                missing.push(format!("`{name}`"));
            }
        }
        if !missing.is_empty() {
            let error = OperatorError::pipeline(format!("{kind} rows need {}", missing.join(", ")));
            return Err(error.with_help("add them to `output`, or choose another kind in `as`"));
        }
        Ok(Self { kind, answer, samples: params.samples, explodes, origin, derives_ids })
    }

    /// Returns the columns of rows of this kind that are known if those of the input are. Which id the rows keep depends on
    /// the input's kind, so they have a column for each. `None` if such rows cannot be made.
    pub(super) fn known(params: &MapParams, kind: RecordKind, output: &Output, input: &SchemaRef) -> Option<SchemaRef> {
        let answer = Arc::clone(output.columns());
        let derives_ids = kind.id_column().is_some() && answer.column_with_name(ID).is_none();
        let explodes = params.explode.is_some();
        let rows = Self { kind, answer, samples: params.samples, explodes, origin: None, derives_ids };
        let columns = rows.make(&RecordBatch::new_empty(Arc::clone(input)), 0, &[]).ok()?.schema();
        let kinds = [RecordKind::Document, RecordKind::Chunk, RecordKind::Question, RecordKind::Trajectory];
        let origins = kinds.into_iter().filter_map(origin).filter(|name| !has(&columns, name));
        let origins: Vec<Field> = origins.map(|name| Field::new(name, DataType::Utf8, true)).collect();
        Some(with_fields(&columns, &origins))
    }

    /// Whether each row has an id.
    pub(super) fn has_ids(&self) -> bool {
        self.kind.id_column().is_some()
    }

    /// Returns the columns of the rows.
    ///
    /// # Errors
    /// If the answer's columns do not fit the kind.
    pub(super) fn columns(&self, input: &RowsInput) -> Result<SchemaRef, OperatorError> {
        let row = RecordBatch::new_empty(Arc::clone(&input.schema));
        Ok(self.make(&row, 0, &[])?.schema())
    }

    /// Makes the rows of one sample.
    ///
    /// # Errors
    /// If the answer's columns do not fit the kind.
    pub(super) fn make(
        &self,
        row: &RecordBatch,
        sample: u32,
        answers: &[Map<String, Value>],
    ) -> Result<RecordBatch, OperatorError> {
        self.beside(row, sample, &columns_of_objects(&self.answer, answers)?)
    }

    /// Puts the columns of remembered rows beside those of this row.
    pub(super) fn label(&self, row: &RecordBatch, sample: u32, made: &RecordBatch) -> Option<RecordBatch> {
        let schema = made.schema();
        let indices = self.answer.fields().iter().map(|field| schema.index_of(field.name()).ok());
        let answers = made.project(&indices.collect::<Option<Vec<_>>>()?).ok()?;
        self.beside(row, sample, &answers).ok()
    }

    /// Returns the rows of the answers with the columns of their input row.
    fn beside(&self, row: &RecordBatch, sample: u32, answers: &RecordBatch) -> Result<RecordBatch, OperatorError> {
        let count = answers.num_rows();
        let repeated = UInt32Array::from(vec![0; count]);
        let arrays = row.columns().iter().map(|column| take(column, &repeated, None)).collect::<Result<Vec<_>, _>>()?;
        // A row without columns has no array to count.
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        let repeated = RecordBatch::try_new_with_options(row.schema(), arrays, &options)?;
        let mut new: Vec<(Field, ArrayRef)> = Vec::new();
        if let Some(name) = self.origin {
            // `row` is a single row: each of its answers gets its id.
            let ids = StringArray::from(text_column(row, ID)?.iter().cycle().take(count).collect::<Vec<_>>());
            new.push((Field::new(name, DataType::Utf8, true), Arc::new(ids)));
        }
        if self.derives_ids {
            let id = text_column(row, ID)?.iter().next().flatten().unwrap_or_default().to_owned();
            let ids: StringArray = (0..count).map(|place| Some(self.id(&id, sample, place))).collect();
            new.push((Field::new(ID, DataType::Utf8, false), Arc::new(ids)));
        }
        if let Some(field) = sample_field(self.samples) {
            new.push((field, Arc::new(Int64Array::from(vec![i64::from(sample); count]))));
        }
        for (field, column) in answers.schema().fields().iter().zip(answers.columns()) {
            new.push((field.as_ref().clone(), Arc::clone(column)));
        }
        new.extend(self.filled(&repeated, count));
        let batch = with_columns(&repeated, new)?;
        conformed(self.kind, &batch).map_err(|error| OperatorError::data(error.0))
    }

    fn id(&self, id: &str, sample: u32, place: usize) -> String {
        let id = if self.samples > 1 { format!("{id}@{sample}") } else { id.to_owned() };
        if self.explodes { format!("{id}#{place}") } else { id }
    }

    /// Returns the columns of the kind that neither the input nor the answer has.
    fn filled(&self, row: &RecordBatch, count: usize) -> Vec<(Field, ArrayRef)> {
        let mut filled = Vec::new();
        for field in self.kind.schema().fields() {
            let name = field.name();
            let is_given = name == ID || self.origin == Some(name.as_str());
            if is_given || row.column_by_name(name).is_some() || has(&self.answer, name) {
                continue;
            }
            filled.push((field.as_ref().clone(), empty_column(field, count)));
        }
        filled
    }
}

fn has(schema: &Schema, name: &str) -> bool {
    schema.column_with_name(name).is_some()
}

/// Returns the column with the number of the answer, if there are several.
pub(super) fn sample_field(samples: u32) -> Option<Field> {
    if samples > 1 { Some(Field::new(SAMPLE, DataType::Int64, false)) } else { None }
}

/// Returns a column of nulls, or of empty lists if it is one of lists that may not be null.
pub(super) fn empty_column(field: &Field, count: usize) -> ArrayRef {
    match field.data_type() {
        DataType::List(item) if !field.is_nullable() => {
            let (offsets, items) = (OffsetBuffer::from_lengths(vec![0; count]), new_empty_array(item.data_type()));
            Arc::new(ListArray::new(Arc::clone(item), offsets, items, None))
        }
        other => new_null_array(other, count),
    }
}

/// Column that holds the id of a row of this kind.
pub(super) fn origin(kind: RecordKind) -> Option<&'static str> {
    match kind {
        RecordKind::Document => Some("document_id"),
        RecordKind::Chunk => Some("chunk_id"),
        RecordKind::Question => Some("question_id"),
        RecordKind::Trajectory => Some("trajectory_id"),
        _ => None,
    }
}
