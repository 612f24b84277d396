//! Rows by number: how plans keep the input's order through aggregates and joins.
//!
//! A query runs on one partition, where a scan gives the rows in the artifact's order and `row_number() OVER ()` numbers
//! them as they come. Plans choose row numbers, and the chosen rows are then read again in that order.

use datafusion::common::Column;
use datafusion::error::DataFusionError;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{JoinType, ident};
use datafusion::prelude::DataFrame;

/// The column that [`numbered`] adds: the row's number, from 1.
pub(crate) const ROW: &str = "__row";
/// The column of row numbers that [`keep`] takes.
pub(crate) const KEPT: &str = "__kept";

/// The rows with their numbers.
pub(crate) fn numbered(frame: DataFrame) -> Result<DataFrame, DataFusionError> {
    frame.with_column(ROW, row_number())
}

/// The rows of `frame` whose number is in the [`KEPT`] column of `kept`, in their order, all columns as they were.
pub(crate) fn keep(frame: DataFrame, kept: DataFrame) -> Result<DataFrame, DataFusionError> {
    let chosen = numbered(frame)?.join_on(kept, JoinType::LeftSemi, [ident(ROW).eq(ident(KEPT))])?;
    chosen.sort(vec![ident(ROW).sort(true, true)])?.drop_columns(&[Column::from_name(ROW)])
}
