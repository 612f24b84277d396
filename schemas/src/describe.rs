//! Record kinds in words: columns with their types, and what the doc comments of the row structs say about them.

use arrow::datatypes::{DataType, Field};
use schemars::Schema;
use serde_json::Value;

use crate::record::RecordKind;

/// One column of a record kind, or one field of a nested column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type in words: `text`, `whole number`, `number`, `yes or no`, `list of text`, `list of objects`.
    pub kind: String,
    /// Must every row have a value?
    pub required: bool,
    /// What it holds.
    pub about: String,
    /// Fields of a column of objects.
    pub fields: Vec<Column>,
}

impl RecordKind {
    /// What a row of it is, in a sentence.
    #[must_use]
    pub fn about(self) -> String {
        match self.row_schema() {
            Some(schema) => text(schema.as_value(), "description"),
            None => "Rows with any columns, as `sql` and `join` make them.".to_owned(),
        }
    }

    /// The columns that a table of it has, in order; none for `Table`.
    #[must_use]
    pub fn columns(self) -> Vec<Column> {
        let Some(schema) = self.row_schema() else { return Vec::new() };
        let root = schema.as_value();
        self.schema().fields().iter().map(|field| column(field, root, root)).collect()
    }

    /// The JSON Schema of its row struct.
    fn row_schema(self) -> Option<Schema> {
        Some(match self {
            Self::Document => schemars::schema_for!(crate::Document),
            Self::Chunk => schemars::schema_for!(crate::Chunk),
            Self::Question => schemars::schema_for!(crate::Question),
            Self::Hit => schemars::schema_for!(crate::Hit),
            Self::Trajectory => schemars::schema_for!(crate::Trajectory),
            Self::Score => schemars::schema_for!(crate::Score),
            Self::Example => schemars::schema_for!(crate::Example),
            Self::Metric => schemars::schema_for!(crate::Metric),
            Self::Reject => schemars::schema_for!(crate::Reject),
            Self::Table => return None,
        })
    }
}

fn text(schema: &Value, key: &str) -> String {
    schema[key].as_str().unwrap_or_default().replace('\n', " ")
}

fn column(field: &Field, owner: &Value, root: &Value) -> Column {
    let property = &owner["properties"][field.name()];
    let (kind, inner) = kind(field.data_type());
    let place = property["items"]["$ref"].as_str().unwrap_or_default().trim_start_matches('#');
    let object = root.pointer(place).unwrap_or(&Value::Null);
    Column {
        name: field.name().clone(),
        kind,
        required: !field.is_nullable(),
        about: text(property, "description"),
        fields: inner.iter().map(|field| column(field, object, root)).collect(),
    }
}

/// A type in words, and the fields of the objects in it.
fn kind(data_type: &DataType) -> (String, &[std::sync::Arc<Field>]) {
    match data_type {
        DataType::Utf8 => ("text".to_owned(), &[]),
        DataType::Int32 | DataType::Int64 => ("whole number".to_owned(), &[]),
        DataType::Float64 => ("number".to_owned(), &[]),
        DataType::Boolean => ("yes or no".to_owned(), &[]),
        DataType::Struct(fields) => ("objects".to_owned(), fields),
        DataType::List(item) => {
            let (item, fields) = kind(item.data_type());
            (format!("list of {item}"), fields)
        }
        other => (other.to_string(), &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_says_what_it_holds() {
        fn check(columns: &[Column], path: &str) {
            for column in columns {
                assert!(
                    column.about.ends_with(['.', ')']) && column.about.len() > 8,
                    "{path}.{}: {column:?}",
                    column.name
                );
                assert_eq!(column.kind.contains("objects"), !column.fields.is_empty(), "{column:?}");
                check(&column.fields, &format!("{path}.{}", column.name));
            }
        }
        for kind in RecordKind::ALL {
            assert!(kind.about().ends_with('.'), "{kind}: {}", kind.about());
            assert_eq!(kind.columns().len(), kind.schema().fields().len());
            check(&kind.columns(), kind.name());
        }
        let trajectory = RecordKind::Trajectory.columns();
        let turns = trajectory.iter().find(|column| column.name == "turns").expect("turns");
        assert_eq!((turns.kind.as_str(), turns.required, turns.fields.len()), ("list of objects", true, 10));
        let calls = turns.fields.iter().find(|column| column.name == "tool_calls").expect("calls");
        assert_eq!(
            calls.fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>(),
            ["id", "name", "arguments"]
        );
    }
}
