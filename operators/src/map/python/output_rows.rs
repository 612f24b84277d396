//! The rows that are made of what a function returned.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, StringArray, UInt32Array};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use searchmill_agent::prompt::{Output, short_of};
use searchmill_engine::operator::{OperatorError, RowsInput};
use searchmill_schemas::{RecordKind, cast_exactly, text_column};
use serde_json::{Map, Value};

use crate::map::rows::{METADATA, columns_of_objects, empty_column, origin};
use crate::shared::columns::conformed;

const ID: &str = "id";

/// What the function returned for a row.
pub(super) struct ReturnedRow {
    /// The input row, by its place in the batch.
    pub(super) row: usize,
    /// Place in a list that the function returned.
    pub(super) place: Option<usize>,
    pub(super) object: Map<String, Value>,
}

/// Makes rows. Columns that the function left out are those of its input row; new ones are in `output` or belong to the
/// kind.
pub(super) struct PythonRows {
    kind: RecordKind,
    output: Option<Output>,
    input: Arc<Schema>,
    /// Columns besides those of `output`, in their order.
    others: Vec<FieldRef>,
    /// Columns that every row must return: the kind has them, and the input has not.
    required: Vec<String>,
    /// Column that keeps the id of the input row, if the rows become rows of another kind.
    origin: Option<&'static str>,
    /// Columns of the input that do not decide a remembered row, and are not the function's.
    riding: BTreeSet<String>,
}

impl PythonRows {
    pub(super) fn new(kind: RecordKind, output: Option<Output>, input: &RowsInput) -> Self {
        let fields = output.as_ref().map(Output::fields).unwrap_or_default();
        let in_output: BTreeSet<String> = fields.iter().map(|field| field.name().clone()).collect();
        let mut known = in_output.clone();
        known.extend(input.schema.fields().iter().map(|field| field.name().clone()));
        let has_ids = input.schema.column_with_name(ID).is_some();
        let origin = origin(input.kind).filter(|name| kind != input.kind && !known.contains(*name) && has_ids);
        let mut others = input.schema.fields().to_vec();
        others.retain(|field| !in_output.contains(field.name()));
        others.extend(origin.map(|name| Arc::new(Field::new(name, DataType::Utf8, true))));
        let mut required = Vec::new();
        for field in kind.schema().fields() {
            if known.contains(field.name()) || Some(field.name().as_str()) == origin {
                continue;
            }
            // Null or an empty list stands for a column that the function leaves out.
            if !field.is_nullable() && !matches!(field.data_type(), DataType::List(_)) {
                required.push(field.name().clone());
            }
            others.push(Arc::clone(field));
        }
        Self { kind, output, input: Arc::clone(&input.schema), others, required, origin, riding: BTreeSet::new() }
    }

    /// Checks rows against `output` and the columns. A message says why the rows cannot be used.
    ///
    /// # Errors
    /// Fails if the function returned a column that nothing declares.
    pub(super) fn checked(&self, rows: Vec<ReturnedRow>) -> Result<Result<Vec<ReturnedRow>, String>, OperatorError> {
        let mut checked = Vec::with_capacity(rows.len());
        for mut made in rows {
            if let Some(output) = &self.output {
                made.object = match fitted(output, made.object) {
                    Ok(object) => object,
                    Err(message) => return Ok(Err(format!("the row does not fit `output`: {message}"))),
                };
            }
            for (name, value) in &mut made.object {
                if self.output.as_ref().is_some_and(|output| output.columns().column_with_name(name).is_some()) {
                    continue;
                }
                let Some(field) = self.others.iter().find(|field| field.name() == name) else {
                    return Err(undeclared(name));
                };
                // `label` gives these columns the values of the current row, so a returned value would be lost.
                if self.riding.contains(name) {
                    let message = format!("the function returned the column `{name}`, which it does not take");
                    let help = "with `remember: row`, name it in `output`, or let the function take it: it then decides \
                                the row";
                    return Err(OperatorError::pipeline(message).with_help(help));
                }
                if name == METADATA && value.is_object() && is_text(field.data_type()) {
                    *value = Value::String(value.to_string());
                }
                let kind = field.data_type();
                if !fits(value, kind, field.is_nullable()) {
                    return Ok(Err(format!("column `{name}` is {}: its type is {kind}", short_of(value))));
                }
            }
            if let Some(name) = self.required.iter().find(|name| !made.object.contains_key(*name)) {
                return Ok(Err(format!("a {} row needs `{name}`, and the function did not return it", self.kind)));
            }
            checked.push(made);
        }
        Ok(Ok(checked))
    }

    /// Makes the rows of a batch.
    ///
    /// # Errors
    /// Fails if they do not fit the kind.
    pub(super) fn make(&self, batch: &RecordBatch, made: &[ReturnedRow]) -> Result<RecordBatch, OperatorError> {
        let rows = UInt32Array::from_iter_values(made.iter().map(|made| u32::try_from(made.row).unwrap_or(u32::MAX)));
        let objects: Vec<&Map<String, Value>> = made.iter().map(|made| &made.object).collect();
        let returned: BTreeSet<&String> = objects.iter().flat_map(|object| object.keys()).collect();
        let fields: Vec<&FieldRef> = self.others.iter().filter(|field| returned.contains(field.name())).collect();
        // A row that leaves a column out has null here, and the value of its input row in the end.
        let nullable = fields.iter().map(|field| Arc::new(field.as_ref().clone().with_nullable(true)));
        let returned = Arc::new(Schema::new(nullable.collect::<Vec<_>>()));
        let decoded = match returned.fields().len() {
            0 => RecordBatch::new_empty(returned),
            _ => columns_of_objects(&returned, &objects)?,
        };
        let (mut all, mut arrays) = (Vec::new(), Vec::new());
        for field in &self.others {
            let name = field.name();
            let base = self.base(batch, field, &rows, made)?;
            all.push(Arc::clone(field));
            arrays.push(match decoded.column_by_name(name) {
                None => base,
                Some(decoded) => {
                    let returns = objects.iter().map(|object| Some(object.contains_key(name)));
                    zip(&returns.collect::<BooleanArray>(), decoded, &base)?
                }
            });
        }
        if let Some(output) = &self.output {
            all.extend(output.columns().fields().iter().cloned());
            arrays.extend_from_slice(columns_of_objects(output.columns(), &objects)?.columns());
        }
        // Without columns, no array tells the number of rows.
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(made.len()));
        let made = RecordBatch::try_new_with_options(Arc::new(Schema::new(all)), arrays, &options)?;
        self.conformed(&made)
    }

    /// Returns a column as it is without what the function returned.
    fn base(
        &self,
        batch: &RecordBatch,
        field: &Field,
        rows: &UInt32Array,
        made: &[ReturnedRow],
    ) -> Result<ArrayRef, OperatorError> {
        let name = field.name().as_str();
        if name == ID && self.kind.id_column().is_some() && batch.column_by_name(ID).is_some() {
            let ids = text_column(batch, ID)?;
            let mut derived = Vec::with_capacity(made.len());
            for made in made {
                let id = ids.value(made.row);
                derived.push(match made.place {
                    Some(place) => format!("{id}#{place}"),
                    None => id.to_owned(),
                });
            }
            return Ok(Arc::new(StringArray::from(derived)));
        }
        if Some(name) == self.origin {
            return Ok(take(text_column(batch, ID)?, rows, None)?);
        }
        match batch.column_by_name(name) {
            Some(column) => Ok(take(column, rows, None)?),
            None => Ok(empty_column(field, made.len())),
        }
    }

    fn conformed(&self, made: &RecordBatch) -> Result<RecordBatch, OperatorError> {
        conformed(self.kind, made).map_err(|error| {
            OperatorError::pipeline(format!("the function's rows do not fit {}: {error}", self.kind))
                .with_help("return what the kind needs, or set `as:` to the kind that the function returns")
        })
    }

    /// Makes the rows of a batch that the function returned: all columns are its own.
    ///
    /// # Errors
    /// Fails if the batch has other columns than the input, `output` and the kind.
    pub(super) fn of_batch(&self, batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
        let own = self.output.as_ref().map(|output| output.columns().fields().iter()).into_iter().flatten();
        let wanted: Vec<&FieldRef> = self.others.iter().chain(own).collect();
        if let Some(other) =
            batch.schema().fields().iter().find(|field| !wanted.iter().any(|w| w.name() == field.name()))
        {
            return Err(undeclared(other.name()));
        }
        let mut arrays = Vec::with_capacity(wanted.len());
        for field in &wanted {
            let may_lack = field.is_nullable() || matches!(field.data_type(), DataType::List(_));
            arrays.push(match batch.column_by_name(field.name()) {
                Some(column) => cast_as(field.name(), column, field.data_type())?,
                None if may_lack => empty_column(field, batch.num_rows()),
                None => {
                    let message = format!("the function returned a batch without the column `{}`", field.name());
                    return Err(OperatorError::pipeline(message)
                        .with_help("return all columns: a dict keeps those of the input that it does not name"));
                }
            });
        }
        let fields: Vec<FieldRef> = wanted.into_iter().cloned().collect();
        let made = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays);
        let made = made.map_err(|error| OperatorError::pipeline(format!("the function returned a batch: {error}")))?;
        self.conformed(&made)
    }

    /// Returns the columns that decide a row: those that are passed, and the id, which derived ids contain. The others
    /// are those of the current row, whatever is remembered.
    pub(super) fn read(&mut self, mut passed: Vec<String>) -> Vec<String> {
        if !passed.iter().any(|name| name == ID) && self.input.column_with_name(ID).is_some() {
            passed.push(ID.to_owned());
        }
        for field in &self.others {
            if self.input.column_with_name(field.name()).is_some() && !passed.contains(field.name()) {
                self.riding.insert(field.name().clone());
            }
        }
        passed
    }

    /// Puts the columns of this row beside remembered ones.
    pub(super) fn label(&self, row: &RecordBatch, made: &RecordBatch) -> Option<RecordBatch> {
        let first = UInt32Array::from(vec![0; made.num_rows()]);
        let fields = made.schema();
        let mut columns = made.columns().to_vec();
        for (field, column) in fields.fields().iter().zip(&mut columns) {
            if self.riding.contains(field.name()) {
                let array = take(row.column_by_name(field.name())?, &first, None).ok()?;
                *column = arrow::compute::cast(&array, field.data_type()).ok()?;
            }
        }
        RecordBatch::try_new(fields, columns).ok()
    }
}

/// Replaces the columns of `output` by what their types store.
fn fitted(output: &Output, mut object: Map<String, Value>) -> Result<Map<String, Value>, String> {
    let fields = output.columns().fields().iter();
    let own = fields.filter_map(|field| object.remove_entry(field.name())).collect();
    object.extend(output.fit(own)?);
    Ok(object)
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Whether a column of that type can hold the value. Values of types that JSON has no words for are left to the reader.
fn fits(value: &Value, data_type: &DataType, nullable: bool) -> bool {
    match (value, data_type) {
        (Value::Null, _) => nullable,
        (value, data_type) if is_text(data_type) => value.is_string(),
        (value, DataType::Boolean) => value.is_boolean(),
        (value, data_type) if data_type.is_unsigned_integer() => value.is_u64(),
        (value, data_type) if data_type.is_signed_integer() => value.is_i64(),
        (value, data_type) if data_type.is_floating() => value.is_number(),
        (value, DataType::List(item) | DataType::LargeList(item)) => value
            .as_array()
            .is_some_and(|items| items.iter().all(|value| fits(value, item.data_type(), item.is_nullable()))),
        (value, DataType::Struct(fields)) => value.as_object().is_some_and(|object| {
            object.keys().all(|name| fields.iter().any(|field| field.name() == name))
                && fields.iter().all(|field| {
                    fits(object.get(field.name()).unwrap_or(&Value::Null), field.data_type(), field.is_nullable())
                })
        }),
        _ => true,
    }
}

fn undeclared(name: &str) -> OperatorError {
    let message = format!("the function returned the column `{name}`, which neither the input nor `output` has");
    OperatorError::pipeline(message).with_help(format!(
        "name its type in the node's params: `output: {{{name}: text}}` (or int, float, bool, json, [text])"
    ))
}

/// Casts a column that the function returned. As in rows that are passed one by one, text is no number and a number is
/// no truth; floats may be rounded to shorter ones, as Python has only one kind of them.
fn cast_as(name: &str, column: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, OperatorError> {
    let found = column.data_type();
    let cast = if !is_alike(found, wanted) {
        Err(format!("a {found} is no {wanted}"))
    } else if found.is_floating() && wanted.is_floating() {
        // With `safe`, a value that does not fit would become null instead of an error.
        let options = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(column, wanted, &options).map_err(|error| error.to_string())
    } else {
        cast_exactly(column, wanted).map_err(|error| error.to_string())
    };
    cast.map_err(|error| {
        OperatorError::pipeline(format!("the function returned `{name}` as {found}, and its type is {wanted}: {error}"))
            .with_help("return the same types in every batch; `output` names those of new columns")
    })
}

/// The items of a list type.
fn item_of(data_type: &DataType) -> Option<&Field> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => Some(item),
        _ => None,
    }
}

/// Whether values of one type may be values of the other: texts, numbers, yes and no, lists and objects of such.
fn is_alike(found: &DataType, wanted: &DataType) -> bool {
    match (found, wanted) {
        // pyarrow gives a column that is `None` in all rows the type null.
        (DataType::Null, _) => true,
        // Categorical columns of pandas become dictionaries in Arrow.
        (DataType::Dictionary(_, values), wanted) => is_alike(values, wanted),
        (DataType::Struct(found), DataType::Struct(wanted)) => {
            found.len() == wanted.len()
                && found.iter().zip(wanted).all(|(found, wanted)| {
                    found.name() == wanted.name() && is_alike(found.data_type(), wanted.data_type())
                })
        }
        (found, wanted) => match (item_of(found), item_of(wanted)) {
            (Some(found), Some(wanted)) => is_alike(found.data_type(), wanted.data_type()),
            _ => found == wanted || is_text(found) && is_text(wanted) || found.is_numeric() && wanted.is_numeric(),
        },
    }
}
