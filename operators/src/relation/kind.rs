//! Checks that the result of a query has the columns of its declared kind.

use datafusion::common::DFSchema;
use searchmill_data::row_kind::RowKind;
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::RecordKind;

/// Fails if a result lacks columns of its declared kind.
pub(crate) fn require_columns(kind: RowKind, schema: &DFSchema) -> Result<(), OperatorError> {
    let kind = RecordKind::from(kind);
    let wanted = kind.schema();
    let missing: Vec<String> = wanted
        .fields()
        .iter()
        .filter(|field| !schema.has_column_with_unqualified_name(field.name()))
        .map(|field| format!("`{}`", field.name()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("the result is declared as {kind} rows but lacks {}", missing.join(", "));
    Err(OperatorError::pipeline(message).with_help("select these columns too, or write `as: table`"))
}
