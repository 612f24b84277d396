//! Does a query give the kind of rows that it was declared to give?

use datafusion::common::DFSchema;
use searchmill_data::row_kind::RowKind;
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::RecordKind;

/// Fails when a result lacks columns of the kind it is declared to be.
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
