//! The record kinds by their row structs: schemas, columns, descriptions.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema, SchemaRef};

use crate::described::{Cell, Column, schema_of};
use crate::record::{Record, RecordKind};

/// What the declaration of a row struct says.
struct Row {
    about: &'static str,
    data_type: fn() -> DataType,
    columns: fn() -> Vec<Column>,
}

impl Row {
    fn of<R: Cell>() -> Self {
        Self { about: R::ABOUT.trim_ascii(), data_type: R::data_type, columns: R::columns }
    }
}

macro_rules! rows {
    ($($kind:ident),+) => {
        $(impl Record for crate::$kind {
            const KIND: RecordKind = RecordKind::$kind;
        })+

        impl RecordKind {
            /// Returns the row struct, which has the kind's name. `Table` has none.
            fn row(self) -> Option<Row> {
                match self {
                    $(Self::$kind => Some(Row::of::<crate::$kind>()),)+
                    Self::Table => None,
                }
            }
        }
    };
}

rows!(Document, Chunk, Question, Hit, Trajectory, Score, Pair, Example, Metric, Reject);

impl RecordKind {
    /// Returns the columns that a table of this kind must have (empty for `Table`).
    pub fn schema(self) -> SchemaRef {
        self.row().map_or_else(|| Arc::new(Schema::empty()), |row| schema_of((row.data_type)()))
    }

    /// Describes a row of this kind in one sentence.
    pub fn about(self) -> String {
        let any = "Rows with any columns, as output by `sql` and `join`.";
        self.row().map_or(any, |row| row.about).to_owned()
    }

    /// Returns the columns of this kind in order; empty for `Table`.
    pub fn columns(self) -> Vec<Column> {
        self.row().map(|row| (row.columns)()).unwrap_or_default()
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
                    column.about.ends_with(['.', ')', '…']) && column.about.len() > 8,
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
        let messages = trajectory.iter().find(|column| column.name == "messages").expect("messages");
        assert_eq!((messages.kind.as_str(), messages.required, messages.fields.len()), ("list of objects", true, 10));
        let calls = messages.fields.iter().find(|column| column.name == "tool_calls").expect("calls");
        assert_eq!(
            calls.fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>(),
            ["id", "name", "arguments"]
        );
    }
}
