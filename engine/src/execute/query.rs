//! Runs a relational plan: one partition, a memory pool, spill to scratch.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList};
use datafusion::catalog::{MemorySchemaProvider, SchemaProvider};
use datafusion::common::TableReference;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::context::SessionState;
use datafusion::execution::disk_manager::{DiskManager, DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{SpillFile, TaskContext, TempFileFactory};
use datafusion::physical_expr::expressions::lit;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures::StreamExt;

use super::columns::column_lineage;
use crate::operator::{Context, InputArtifact, Inputs, OperatorError, Outputs, QueryInputs, QueryKernel, RowsInput};
use crate::store::ColumnLineage;

/// Memory of one query before it spills, unless the node says otherwise.
const QUERY_MEMORY: usize = 512 << 20;

/// A table of one file of at most so many bytes is read before the query starts.
const SMALL_BYTES: u64 = 256 << 10;

/// Runs the query; gives the column lineage of its outputs.
pub(super) async fn run_query(
    kernel: &dyn QueryKernel,
    inputs: &Inputs,
    outputs: &mut Outputs<'_>,
    context: &Context,
) -> Result<BTreeMap<String, ColumnLineage>, OperatorError> {
    let session = session()?;
    let task = Arc::new(TaskContext::default().with_session_config(config()).with_runtime(runtime(context)?));
    let mut tables = Vec::new();
    for (port, bound) in inputs.iter() {
        if let Some(InputArtifact::Rows(rows)) = bound.first() {
            register(&session, port, rows).await?;
            tables.push(port.to_owned());
        }
    }
    let progress = context.progress();
    let mut lineage = BTreeMap::new();
    for output in kernel.plan(&session, &QueryInputs { tables: tables.clone() }).await? {
        lineage.insert(output.port.clone(), column_lineage(output.frame.logical_plan(), &tables));
        let mut done = 0;
        let schema = Arc::clone(output.frame.schema().inner());
        let plan = in_order(output.frame.create_physical_plan().await?)?;
        let mut batches = execute_stream(Arc::clone(&plan), Arc::clone(&task))?;
        while let Some(batch) = batches.next().await {
            context.check_cancelled()?;
            let batch = batch?;
            done += batch.num_rows() as u64;
            outputs.write(&output.port, &batch)?;
            progress.set(done, 0, "rows");
        }
        if done == 0 {
            // No rows, but columns: what reads them next may name them.
            outputs.write(&output.port, &RecordBatch::new_empty(schema))?;
        }
        let more = match kernel.expects_once() {
            Some(port) => more_than_input(port, inputs.rows(port)?.rows, done),
            None => joined_to_more(&plan),
        };
        if let Some(more) = more {
            outputs.figure("rows_times", more.times);
            progress.log(&more.note);
        }
    }
    Ok(lineage)
}

/// A result with more rows than what was joined.
struct More {
    times: f64,
    note: String,
}

fn more_than_input(port: &str, input: u64, output: u64) -> Option<More> {
    let times = output as f64 / input as f64;
    (input > 0 && output > input).then(|| More {
        times,
        note: format!("the join multiplies rows: {output} came of {input} of `{port}` ({times:.2} times as many)"),
    })
}

/// The join that multiplies most: it gave more rows than either of its sides has.
fn joined_to_more(plan: &Arc<dyn ExecutionPlan>) -> Option<More> {
    let rows = |node: &Arc<dyn ExecutionPlan>| node.metrics().and_then(|metrics| metrics.output_rows());
    let own = || {
        let [left, right] = plan.children()[..] else { return None };
        let joined = rows(plan).filter(|_| plan.name().contains("Join"))?;
        // Tables in memory count no rows, the joins over them do.
        let counted = |name| plan.metrics()?.sum_by_name(name).map(|count| count.as_usize());
        let (left, right) =
            (rows(left).or_else(|| counted("build_input_rows"))?, rows(right).or_else(|| counted("input_rows"))?);
        let most = left.max(right);
        let times = joined as f64 / most as f64;
        (most > 0 && joined > most).then(|| More {
            times,
            note: format!("a join multiplies rows: {joined} came of {left} and {right} ({times:.2} times as many)"),
        })
    };
    let below = plan.children().into_iter().filter_map(joined_to_more);
    below.chain(own()).max_by(|one, other| one.times.total_cmp(&other.times))
}

/// The parts of a union come one after the other. DataFusion's own operator takes whichever has rows first, so that the
/// same query would give other bytes; merging by a constant, by which all rows are equal, takes the first part to its
/// end, then the next one.
fn in_order(plan: Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let whole: Arc<dyn ExecutionPlan> = match plan.output_partitioning().partition_count() {
        0 | 1 => plan,
        _ => Arc::new(CoalescePartitionsExec::new(plan)),
    };
    let merge = |node: Arc<dyn ExecutionPlan>| {
        let Some(parts) = node.downcast_ref::<CoalescePartitionsExec>() else { return Ok(Transformed::no(node)) };
        let Some(constant) = LexOrdering::new([PhysicalSortExpr::new_default(lit(1_i64))]) else {
            return Ok(Transformed::no(node));
        };
        let merged = SortPreservingMergeExec::new(constant, Arc::clone(parts.input())).with_fetch(parts.fetch());
        Ok(Transformed::yes(Arc::new(merged.with_round_robin_repartition(false)) as Arc<dyn ExecutionPlan>))
    };
    Ok(whole.transform_up(merge)?.data)
}

/// One partition: rows come in the plan's own order, so the same rows give the same bytes.
fn config() -> SessionConfig {
    let mut config = SessionConfig::new().with_target_partitions(1).with_batch_size(8192);
    let options = config.options_mut();
    options.execution.parquet.schema_force_view_types = false;
    options.execution.collect_statistics = false;
    config
}

/// A session to plan one node's query in. The functions and rules of SQL are registered once, in a session that the
/// others are copies of, each with a catalog of its own.
fn session() -> Result<SessionContext, OperatorError> {
    static STATE: OnceLock<SessionState> = OnceLock::new();
    let build = || SessionStateBuilder::new().with_config(config()).with_default_features().build();
    let state = STATE.get_or_init(build).clone();
    let names = state.config_options().catalog.clone();
    let (catalogs, catalog) = (MemoryCatalogProviderList::new(), MemoryCatalogProvider::new());
    let schema: Arc<dyn SchemaProvider> = Arc::new(MemorySchemaProvider::new());
    catalog.register_schema(&names.default_schema, schema)?;
    catalogs.register_catalog(names.default_catalog, Arc::new(catalog));
    let session = SessionContext::new_with_state(state);
    session.register_catalog_list(Arc::new(catalogs));
    Ok(session)
}

/// What a query may use while it runs.
fn runtime(context: &Context) -> Result<Arc<RuntimeEnv>, OperatorError> {
    let memory = context.memory().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(QUERY_MEMORY);
    let spill = Arc::new(Spill { context: context.clone(), folder: OnceLock::new() });
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Custom(spill));
    let builder = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(FairSpillPool::new(memory)));
    Ok(builder.with_disk_manager_builder(disk).build_arc()?)
}

/// Spills to the node's scratch folder, which most queries never need: it is made for the first file.
struct Spill {
    context: Context,
    folder: OnceLock<Arc<DiskManager>>,
}

impl TempFileFactory for Spill {
    fn create_temp_file(&self, description: &str) -> DataFusionResult<Arc<dyn SpillFile>> {
        if let Some(folder) = self.folder.get() {
            return folder.create_tmp_file(description);
        }
        let place = vec![self.context.scratch().to_owned()];
        let made = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(place)).build()?;
        self.folder.get_or_init(|| Arc::new(made)).create_tmp_file(description)
    }
}

/// Small tables are read at once: planning a scan of files costs more than reading them.
fn is_small(rows: &RowsInput) -> bool {
    let size = |path: &PathBuf| std::fs::metadata(path).map_or(u64::MAX, |file| file.len());
    rows.parts().len() <= 1 && rows.parts().iter().all(|path| size(path) <= SMALL_BYTES)
}

async fn register(session: &SessionContext, name: &str, rows: &RowsInput) -> Result<(), OperatorError> {
    let table = TableReference::bare(name.to_owned());
    if is_small(rows) {
        let batches = rows.batches().collect::<Result<Vec<_>, _>>()?;
        let memory = datafusion::datasource::MemTable::try_new(Arc::clone(&rows.schema), vec![batches])?;
        session.register_table(table, Arc::new(memory))?;
        return Ok(());
    }
    let paths: Vec<String> = rows.parts().iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let options = ParquetReadOptions::default().schema(&rows.schema);
    let frame = session.read_parquet(paths, options).await?;
    session.register_table(table, frame.into_view())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::testing::Harness;

    #[test]
    fn the_folder_of_spilled_rows_is_made_for_the_first_file_and_goes_with_the_query() {
        let harness = Harness::new();
        let context = harness.context();
        let files = || std::fs::read_dir(context.scratch()).unwrap().count();
        let runtime = runtime(&context).unwrap();
        assert_eq!(files(), 0);
        let spilled = [runtime.disk_manager.create_tmp_file("a"), runtime.disk_manager.create_tmp_file("b")];
        assert!(spilled.iter().all(Result::is_ok) && files() == 1);
        drop((spilled, runtime));
        assert_eq!(files(), 0);
    }

    #[test]
    fn tables_of_one_session_are_not_seen_in_another() {
        let (one, other) = (session().unwrap(), session().unwrap());
        let rows = RecordBatch::new_empty(Arc::new(arrow::datatypes::Schema::empty()));
        one.register_batch("t", rows).unwrap();
        assert!(one.table_exist("t").unwrap() && !other.table_exist("t").unwrap());
    }
}
