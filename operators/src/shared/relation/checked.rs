//! Checks params against columns that are known before anything runs.

use arrow::datatypes::SchemaRef;
use searchmill_engine::operator::{OperatorError, ParamIssue, Tables};

/// Returns the issue of a param that `bind` binds to the columns of an input; `None` while they are unknown.
pub(crate) fn columns_checked<T>(
    tables: &Tables,
    port: &str,
    bind: impl FnOnce(&SchemaRef) -> Result<T, OperatorError>,
) -> Option<ParamIssue> {
    bind(tables.get(port)?).err().map(ParamIssue::from)
}
