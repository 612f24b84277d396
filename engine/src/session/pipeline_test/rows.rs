//! Rows of a test as artifacts: columns that are left out are null, or empty where the kind allows no null.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::ReaderBuilder;
use arrow::json::reader::infer_json_schema_from_iterator;
use indexmap::IndexMap;
use searchmill_schemas::RecordKind;
use serde_json::{Map, Value, json};

use crate::error::{Blame, OperatorError};
use crate::operator::{OutputSink, PortType};
use crate::plan::{NodeIndex, Plan};
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
        if let Some((index, port)) = plan.output_named(&rows.output) {
            by_node.entry(index).or_default().insert(port, rows);
        }
    }
    let mut outputs = Given::new();
    for (index, given) in by_node {
        // Nobody can write a folder into a test: the node has none.
        let mut ports = plan[index].outputs.clone();
        ports.retain(|_, kind| matches!(kind, PortType::Rows(_)));
        let mut sink = StoreSink::new(store, ports);
        for (port, kind) in &plan[index].outputs {
            let PortType::Rows(kind) = kind else { continue };
            let (output, rows) = match given.get(port.as_str()) {
                Some(rows) => (&rows.output, rows.rows.as_slice()),
                None => (port, [].as_slice()),
            };
            let batch = batch(*kind, known[index.index()].get(port), rows)
                .map_err(|error| Failure::usage(format!("given rows of `{output}`: {}", error.message)))?;
            sink.write(port, &batch)?;
        }
        let stored = match sink.commit() {
            Ok(stored) => stored,
            // The rows are the author's: a repeated id, for example.
            Err(error) if error.blame == Blame::Data => {
                let names: Vec<&str> = given.values().map(|rows| rows.output.as_str()).collect();
                return Err(Failure::usage(format!("given rows of `{}`: {}", names.join("`, `"), error.message)));
            }
            Err(error) => return Err(error.into()),
        };
        outputs.insert(index, stored.outputs);
    }
    Ok(outputs)
}

/// Converts rows of a kind.
fn batch(kind: RecordKind, known: Option<&SchemaRef>, rows: &[Value]) -> Result<RecordBatch, OperatorError> {
    // All names first: a misspelt one would be a column of its own in the schema.
    for (index, row) in rows.iter().enumerate() {
        check_names(kind, index, row)?;
    }
    let schema = schema(kind, known, rows)?;
    let mut filled = Vec::with_capacity(rows.len());
    for (index, row) in rows.iter().enumerate() {
        let mut row = row.as_object().cloned().unwrap_or_default();
        // Ids are unique in their table, so an empty one would not do.
        if let Some(id) = kind.id_column()
            && !row.contains_key(id)
        {
            row.insert(id.to_owned(), json!(format!("row-{}", index + 1)));
        }
        let mut whole = Map::new();
        for field in schema.fields() {
            whole.insert(field.name().clone(), fill(row.get(field.name()), field));
        }
        filled.push(Value::Object(whole));
    }
    let mut decoder = ReaderBuilder::new(Arc::clone(&schema)).with_batch_size(rows.len().max(1)).build_decoder()?;
    decoder.serialize(&filled)?;
    Ok(decoder.flush()?.unwrap_or_else(|| RecordBatch::new_empty(schema)))
}

/// Rejects a column that the kind does not have but that is written like one that the row lacks.
fn check_names(kind: RecordKind, index: usize, row: &Value) -> Result<(), OperatorError> {
    let (Some(row), false) = (row.as_object(), kind == RecordKind::Table) else { return Ok(()) };
    let schema = kind.schema();
    let names = schema.fields().iter().map(|field| field.name().as_str());
    let lacking: Vec<&str> = names.filter(|name| !row.contains_key(*name)).collect();
    for name in row.keys() {
        // Rows may have further columns; only one that looks like a missing one is an error.
        if schema.field_with_name(name).is_err()
            && let Some(meant) = closest(name, lacking.iter().copied())
        {
            let message =
                format!("row {} has `{name}`, which {kind} rows do not have; did you mean `{meant}`?", index + 1);
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
    // Types of the other columns are those of their values.
    let mut others = Vec::with_capacity(rows.len());
    for row in rows {
        let mut other = row.as_object().cloned().unwrap_or_default();
        other.retain(|name, _| !names.contains(name));
        others.push(Ok::<_, ArrowError>(Value::Object(other)));
    }
    for field in infer_json_schema_from_iterator(others.into_iter())?.fields() {
        // A row may leave the column out.
        fields.push(Arc::new(field.as_ref().clone().with_nullable(true)));
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// Returns a value that fits the column: a map becomes JSON where the column is text, and what is missing is empty where
/// it cannot be null.
fn fill(value: Option<&Value>, field: &Field) -> Value {
    let value = value.cloned().unwrap_or(Value::Null);
    match (field.data_type(), value) {
        (_, Value::Null) if field.is_nullable() => Value::Null,
        (kind, Value::Null) => empty(kind),
        (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, value) => match value {
            Value::String(text) => Value::String(text),
            other => Value::String(other.to_string()),
        },
        (DataType::List(item) | DataType::LargeList(item), Value::Array(items)) => {
            items.iter().map(|value| fill(Some(value), item)).collect()
        }
        (DataType::Struct(fields), Value::Object(row)) => {
            let mut whole = Map::new();
            for field in fields {
                whole.insert(field.name().clone(), fill(row.get(field.name()), field));
            }
            for (name, value) in row {
                whole.entry(name).or_insert(value);
            }
            Value::Object(whole)
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
