//! Gives the result of a query the columns of its declared kind.

use std::sync::Arc;

use arrow::array::{ListArray, new_empty_array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use datafusion::common::ScalarValue;
use datafusion::prelude::{DataFrame, lit};
use searchmill_data::row_kind::RowKind;
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::RecordKind;

/// The list that may be empty without making a row useless. A forgotten list of golden answers is a mistake.
const EVIDENCE: &str = "evidence";

/// Adds columns of the declared kind that the result lacks: nulls, or no evidence.
///
/// # Errors
/// If the result lacks columns that must have a value.
pub(crate) fn with_columns_of(kind: RowKind, mut frame: DataFrame) -> Result<DataFrame, OperatorError> {
    let kind = RecordKind::from(kind);
    let mut missing = Vec::new();
    for field in kind.schema().fields() {
        if frame.schema().has_column_with_unqualified_name(field.name()) {
            continue;
        }
        let Some(filler) = filler(field) else {
            missing.push(format!("`{}`", field.name()));
            continue;
        };
        frame = frame.with_column(field.name(), lit(filler)).map_err(|error| {
            OperatorError::engine(format!("the column `{}` cannot be added: {error}", field.name()))
        })?;
    }
    if missing.is_empty() {
        return Ok(frame);
    }
    let message = format!("the result is declared as {kind} rows but lacks {}", missing.join(", "));
    Err(OperatorError::pipeline(message).with_help("select these columns too, or write `as: table`"))
}

/// Returns what stands in a column that the result lacks, if the column may lack values.
fn filler(field: &Field) -> Option<ScalarValue> {
    match field.data_type() {
        kind if field.is_nullable() => ScalarValue::try_from(kind).ok(),
        DataType::List(item) if field.name() == EVIDENCE => {
            let (item, items) = (Arc::clone(item), new_empty_array(item.data_type()));
            Some(ScalarValue::List(Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([0]), items, None))))
        }
        _ => None,
    }
}
