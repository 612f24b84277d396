//! Descriptions of record kinds: columns with their types, and the doc comments of the row structs.

use arrow::datatypes::{DataType, Field};

use crate::described::Described;
use crate::record::RecordKind;

/// One column of a record kind, or one field of a nested column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Column name.
    pub name: String,
    /// Type in words: `text`, `whole number`, `number`, `yes or no`, `list of text`, `list of objects`.
    pub kind: String,
    /// Whether every row must have a value.
    pub required: bool,
    /// Description of the content.
    pub about: String,
    /// Fields, for a column of objects.
    pub fields: Vec<Column>,
}

impl RecordKind {
    /// Describes a row of this kind in one sentence.
    #[must_use]
    pub fn about(self) -> String {
        let about = self.described().map(|described| described.about.trim());
        about.unwrap_or("Rows with any columns, as output by `sql` and `join`.").to_owned()
    }

    /// Returns the columns of this kind in order; empty for `Table`.
    #[must_use]
    pub fn columns(self) -> Vec<Column> {
        let Some(described) = self.described() else { return Vec::new() };
        self.schema().fields().iter().map(|field| column(field, &described)).collect()
    }

    fn described(self) -> Option<Described> {
        Some(match self {
            Self::Document => crate::Document::DESCRIBED,
            Self::Chunk => crate::Chunk::DESCRIBED,
            Self::Question => crate::Question::DESCRIBED,
            Self::Hit => crate::Hit::DESCRIBED,
            Self::Trajectory => crate::Trajectory::DESCRIBED,
            Self::Score => crate::Score::DESCRIBED,
            Self::Example => crate::Example::DESCRIBED,
            Self::Metric => crate::Metric::DESCRIBED,
            Self::Reject => crate::Reject::DESCRIBED,
            Self::Table => return None,
        })
    }
}

/// Returns the description of the objects in a nested column.
fn nested(column: &str) -> Described {
    match column {
        "evidence" => crate::Evidence::DESCRIBED,
        "sources" => crate::HitSource::DESCRIBED,
        "messages" => crate::Message::DESCRIBED,
        "tool_calls" => crate::ToolCall::DESCRIBED,
        "observations" => crate::Observation::DESCRIBED,
        _ => Described { about: "", fields: &[] },
    }
}

fn column(field: &Field, owner: &Described) -> Column {
    let (kind, inner) = kind(field.data_type());
    let objects = nested(field.name());
    Column {
        name: field.name().clone(),
        kind,
        required: !field.is_nullable(),
        about: owner.field(field.name()),
        fields: inner.iter().map(|field| column(field, &objects)).collect(),
    }
}

/// Returns a type in words, and the fields of its objects.
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
