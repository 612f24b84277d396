//! Row numbers: preserve the input's order through aggregates and joins.
//!
//! A query runs on one partition: a scan returns the rows in the artifact's order, and `row_number() OVER ()` numbers
//! them in that order. A plan selects row numbers; the selected rows are then read again in that order.

use datafusion::common::Column;
use datafusion::error::DataFusionError;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{JoinType, ident};
use datafusion::prelude::DataFrame;

/// Column that [`numbered`] adds: the row's number, from 1.
pub(crate) const ROW: &str = "__row";
/// Column of row numbers that [`keep`] reads.
pub(crate) const KEPT: &str = "__kept";

/// Adds row numbers.
pub(crate) fn numbered(frame: DataFrame) -> Result<DataFrame, DataFusionError> {
    // `with_column` would replace the user's column.
    if frame.schema().has_column_with_unqualified_name(ROW) {
        return Err(DataFusionError::Plan(format!("the input may not have a column `{ROW}`")));
    }
    frame.with_column(ROW, row_number())
}

/// Returns the rows of `frame` whose number is in the [`KEPT`] column of `kept`, in order, with all columns
/// unchanged.
///
/// The join holds the numbers in memory and streams the rows, so their order is known and the sort is free.
pub(crate) fn keep(frame: DataFrame, kept: DataFrame) -> Result<DataFrame, DataFusionError> {
    let chosen = kept.join_on(numbered(frame)?, JoinType::RightSemi, [ident(KEPT).eq(ident(ROW))])?;
    chosen.sort(vec![ident(ROW).sort(true, true)])?.drop_columns(&[Column::from_name(ROW)])
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;
    use searchmill_schemas::{Trajectory, from_batch, to_batch};

    use super::*;
    use crate::shared::relation::testing::trajectories;

    /// Memory limit of a query in bytes: far less than the tests' rows need.
    const POOL: usize = 4 << 20;

    /// A session with one partition over three Parquet parts of several row groups each.
    async fn session(folder: &std::path::Path, rows: &[Trajectory]) -> SessionContext {
        for (part, rows) in rows.chunks(rows.len().div_ceil(3)).enumerate() {
            let batch = to_batch(rows).expect("rows");
            let file = File::create(folder.join(format!("part-{part:05}.parquet"))).expect("a file");
            let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
            let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).expect("a writer");
            writer.write(&batch).expect("written");
            writer.close().expect("closed");
        }
        let config = SessionConfig::new()
            .with_target_partitions(1)
            .with_batch_size(512)
            .with_sort_spill_reservation_bytes(1 << 20);
        let runtime = RuntimeEnvBuilder::new().with_memory_limit(POOL, 1.0).build_arc().expect("a runtime");
        let session = SessionContext::new_with_config_rt(config, runtime);
        let path = folder.to_str().expect("a path");
        session.register_parquet("rows", path, ParquetReadOptions::default()).await.expect("registered");
        session
    }

    #[tokio::test]
    async fn chosen_rows_stream_in_order_out_of_many_parts() {
        let folder = tempfile::tempdir().expect("a folder");
        let rows = trajectories(6_000);
        assert!(to_batch(&rows).expect("rows").get_array_memory_size() > 2 * POOL);
        let session = session(folder.path(), &rows).await;
        let table = session.table("rows").await.expect("a table");
        let kept = numbered(table.clone()).expect("numbered");
        let kept = kept.filter(ident(ROW).gt(datafusion::logical_expr::lit(2_u64))).expect("filtered");
        let kept = kept.select(vec![ident(ROW).alias(KEPT)]).expect("numbers").sort_by(vec![ident("__kept")]);
        let frame = keep(table, kept.expect("sorted")).expect("planned");
        let plan = frame.clone().create_physical_plan().await.expect("a plan");
        let shown = displayable(plan.as_ref()).indent(false).to_string();
        println!("{shown}");
        let batches = frame.collect().await.expect("runs");
        let found: Vec<Trajectory> = batches.iter().flat_map(|batch| from_batch(batch).expect("rows")).collect();
        assert_eq!(found, rows[2..]);
        let before_join = shown.split("HashJoinExec").next().expect("a join");
        assert!(!before_join.contains("SortExec"), "the rows are not sorted anew:\n{shown}");
    }

    #[tokio::test]
    async fn sorting_whole_rows_spills_and_loses_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let rows = trajectories(6_000);
        let session = session(folder.path(), &rows).await;
        let table = numbered(session.table("rows").await.expect("a table")).expect("numbered");
        let backwards = table.sort(vec![ident(ROW).sort(false, true)]).expect("sorted");
        let batches = backwards.collect().await.expect("spills");
        let found: Vec<Trajectory> = batches.iter().flat_map(|batch| from_batch(batch).expect("rows")).collect();
        assert!(found.iter().rev().eq(&rows));
    }
}
