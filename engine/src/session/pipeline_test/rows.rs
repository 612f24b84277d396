//! Rows of a test as artifacts: columns that are left out are null, or empty where the kind allows no null.

use crate::plan::NodeIndex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::json::ReaderBuilder;
use arrow::json::reader::infer_json_schema_from_iterator;
use indexmap::IndexMap;
use searchmill_schemas::RecordKind;
use serde_json::{Map, Value, json};

use crate::error::{Blame, OperatorError};
use crate::operator::{OutputSink, PortType};
use crate::plan::Plan;
use crate::session::failure::Failure;
use crate::spec::{Rows, closest};
use crate::store::{OutputRecord, Store, StoreSink};

/// Outputs of the nodes with given rows, by place in the plan.
pub(crate) type Given = BTreeMap<NodeIndex, IndexMap<String, OutputRecord>>;

/// Stores given rows. The other tables of their nodes are empty.
pub(crate) fn outputs(plan: &Plan, given: &[Rows], store: &Store) -> Result<Given, Failure> {
    let (known, _) = plan.known_columns();
    let mut by_node: BTreeMap<NodeIndex, BTreeMap<&str, &Rows>> = BTreeMap::new();
    for rows in given {
        if let Some((place, port)) = plan.output_named(&rows.output) {
            by_node.entry(place).or_default().insert(port, rows);
        }
    }
    let mut found = Given::new();
    for (place, given) in by_node {
        let tables = plan[place].outputs.iter().filter_map(|(port, kind)| match kind {
            PortType::Rows(kind) => Some((port.clone(), *kind)),
            PortType::Tree(_) => None,
        });
        let tables: IndexMap<String, RecordKind> = tables.collect();
        let ports = tables.iter().map(|(port, kind)| (port.clone(), PortType::Rows(*kind))).collect();
        let mut sink = StoreSink::new(store, ports);
        for (port, kind) in &tables {
            let rows = given.get(port.as_str());
            let columns = known[place.index()].get(port);
            let batch = batch(*kind, columns, rows.map_or(&[], |rows| rows.rows.as_slice())).map_err(|error| {
                let output = rows.map_or(port.as_str(), |rows| rows.output.as_str());
                Failure::usage(format!("given rows of `{output}`: {}", error.message))
            })?;
            sink.write(port, &batch)?;
        }
        let stored = sink.commit().map_err(|error| match error.blame {
            Blame::Data => {
                let names: Vec<&str> = given.values().map(|rows| rows.output.as_str()).collect();
                Failure::usage(format!("given rows of `{}`: {}", names.join("`, `"), error.message))
            }
            _ => error.into(),
        })?;
        found.insert(place, stored.outputs);
    }
    Ok(found)
}

/// Converts rows of a kind.
fn batch(kind: RecordKind, known: Option<&SchemaRef>, rows: &[Value]) -> Result<RecordBatch, OperatorError> {
    rows.iter().enumerate().try_for_each(|(place, row)| check_names(kind, place, row))?;
    let schema = schema(kind, known, rows)?;
    let id = kind.id_column();
    let filled = rows.iter().enumerate().map(|(place, row)| {
        let mut row = row.as_object().cloned().unwrap_or_default();
        if let Some(id) = id.filter(|id| !row.contains_key(*id)) {
            row.insert(id.to_owned(), json!(format!("row-{}", place + 1)));
        }
        let fields = schema.fields().iter();
        Value::Object(fields.map(|field| (field.name().clone(), fill(row.get(field.name()), field))).collect())
    });
    let filled: Vec<Value> = filled.collect();
    let mut decoder = ReaderBuilder::new(Arc::clone(&schema)).with_batch_size(rows.len().max(1)).build_decoder()?;
    decoder.serialize(&filled)?;
    Ok(decoder.flush()?.unwrap_or_else(|| RecordBatch::new_empty(schema)))
}

/// Rejects a column that the kind does not have but that is written like one that the row lacks.
fn check_names(kind: RecordKind, place: usize, row: &Value) -> Result<(), OperatorError> {
    let (Some(row), false) = (row.as_object(), kind == RecordKind::Table) else { return Ok(()) };
    let schema = kind.schema();
    let lacking: Vec<&str> =
        schema.fields().iter().map(|field| field.name().as_str()).filter(|name| !row.contains_key(*name)).collect();
    let unknown = row.keys().filter(|name| schema.field_with_name(name).is_err());
    for name in unknown {
        if let Some(meant) = closest(name, lacking.iter().copied()) {
            let message =
                format!("row {} has `{name}`, which {kind} rows do not have; did you mean `{meant}`?", place + 1);
            return Err(OperatorError::pipeline(message));
        }
    }
    Ok(())
}

/// Returns the columns of the kind, the known further ones, and those that only the rows have.
fn schema(kind: RecordKind, known: Option<&SchemaRef>, rows: &[Value]) -> Result<SchemaRef, OperatorError> {
    let of_kind = if kind == RecordKind::Table { Arc::new(Schema::empty()) } else { kind.schema() };
    let mut fields: Vec<FieldRef> = of_kind.fields().iter().cloned().collect();
    let mut names: BTreeSet<String> = fields.iter().map(|field| field.name().clone()).collect();
    for field in known.iter().flat_map(|known| known.fields().iter()) {
        if names.insert(field.name().clone()) {
            fields.push(Arc::clone(field));
        }
    }
    let rest = |row: &Value| {
        let entries = row.as_object().into_iter().flatten().filter(|(name, _)| !names.contains(*name));
        Value::Object(entries.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
    };
    let more = infer_json_schema_from_iterator(rows.iter().map(|row| Ok::<_, arrow::error::ArrowError>(rest(row))))?;
    fields.extend(more.fields().iter().map(|field| Arc::new(field.as_ref().clone().with_nullable(true))));
    Ok(Arc::new(Schema::new(fields)))
}

/// Returns a value that fits the column: a map becomes JSON where the column is text, and what is missing is empty where
/// it cannot be null.
fn fill(value: Option<&Value>, field: &Field) -> Value {
    let value = value.cloned().unwrap_or(Value::Null);
    match (field.data_type(), value) {
        (kind, Value::Null) => {
            if field.is_nullable() {
                Value::Null
            } else {
                empty(kind)
            }
        }
        (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, value) => match value {
            Value::String(text) => Value::String(text),
            other => Value::String(other.to_string()),
        },
        (DataType::List(item) | DataType::LargeList(item), Value::Array(items)) => {
            items.iter().map(|value| fill(Some(value), item)).collect()
        }
        (DataType::Struct(fields), Value::Object(row)) => {
            let all = fields.iter().map(|field| (field.name().clone(), fill(row.get(field.name()), field)));
            let unknown = row.iter().filter(|(name, _)| fields.iter().all(|field| field.name() != *name));
            let all: Map<_, _> = all.chain(unknown.map(|(name, value)| (name.clone(), value.clone()))).collect();
            Value::Object(all)
        }
        (_, value) => value,
    }
}

fn empty(kind: &DataType) -> Value {
    match kind {
        DataType::Boolean => json!(false),
        DataType::List(_) | DataType::LargeList(_) => json!([]),
        DataType::Struct(fields) => {
            Value::Object(fields.iter().map(|field| (field.name().clone(), fill(None, field))).collect())
        }
        kind if kind.is_numeric() => json!(0),
        _ => json!(""),
    }
}
