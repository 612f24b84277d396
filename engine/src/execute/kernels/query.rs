//! Runs a relational plan: one partition, a memory pool, spilling to scratch.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use datafusion::common::TableReference;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::MemTable;
use datafusion::datasource::listing::{ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::datasource::physical_plan::FileGroup;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::disk_manager::{DiskManager, DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::options::ReadOptions;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SpillFile, TaskContext, TempFileFactory};
use datafusion::physical_expr::expressions::lit;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::metrics::{MetricValue, MetricsSet};
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, execute_stream};
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionContext};
use futures::StreamExt;
use parquet::file::reader::{FileReader, SerializedFileReader};
use url::Url;

use super::column_lineage::column_lineage;
use crate::error::OperatorError;
use crate::operator::{
    Computed, Context, InputArtifact, Inputs, Outputs, QueryInputs, QueryKernel, Repeatability, RowsInput,
    query_config, query_session, storable,
};
use crate::store::ColumnLineage;

/// Memory limit of a query (default); beyond it, the query spills.
const QUERY_MEMORY: usize = 512 << 20;

/// A single-file table of at most this size is read before the query starts.
const SMALL_BYTES: u64 = 256 << 10;

/// Runs the query and returns the column lineage of its outputs.
pub(crate) async fn run_query(
    kernel: &dyn QueryKernel,
    inputs: &Inputs,
    outputs: &mut Outputs<'_>,
    context: &Context,
) -> Result<BTreeMap<String, ColumnLineage>, OperatorError> {
    let session = query_session()?;
    let pool = Arc::new(Pool::new(context));
    let task = task(context, Arc::clone(&pool) as Arc<dyn MemoryPool>)?;
    let (mut tables, mut have_rows) = (Vec::new(), true);
    for (port, bound) in inputs.iter() {
        if let Some(InputArtifact::Rows(rows)) = bound.first() {
            register(&session, port, rows).await?;
            tables.push(port.to_owned());
            have_rows &= rows.rows > 0;
        }
    }
    let mut lineage = BTreeMap::new();
    for output in kernel.plan(&session, &QueryInputs { tables: tables.clone() }).await? {
        let frame = storable(output.frame)?;
        lineage.insert(output.port.clone(), column_lineage(frame.logical_plan(), &tables));
        let schema = Arc::clone(frame.schema().inner());
        let plan = in_order(frame.create_physical_plan().await?)?;
        let mut done = 0;
        let mut batches = execute_stream(Arc::clone(&plan), Arc::clone(&task))?;
        while let Some(batch) = batches.next().await {
            context.check_cancelled()?;
            let batch = batch?;
            done += batch.num_rows() as u64;
            outputs.write(&output.port, &batch)?;
            context.progress().set(done, 0, "rows");
        }
        if done == 0 {
            // Write the columns even without rows: a later node may refer to them.
            outputs.write(&output.port, &RecordBatch::new_empty(schema))?;
        }
        // Before the metrics of the plan are read, and the next output is computed.
        drop(batches);
        let more = match kernel.expects_once() {
            Some(port) => {
                let input = inputs.rows(port)?.rows;
                More::of(done, input, &format!("the join multiplies rows: {done} came of {input} of `{port}`"))
            }
            None => joined_to_more(&plan),
        };
        // Empty inputs match nothing, which surprises nobody.
        if have_rows
            && (done == 0 || has_no_match(&plan))
            && let Some(warning) = kernel.told_without_match(&session).await
        {
            context.progress().log(&format!("warning: {warning}"));
        }
        if let Some(more) = more {
            outputs.figure("rows_times", more.times);
            context.progress().log(&more.note);
        }
    }
    if pool.refused.load(Ordering::Relaxed) && !kernel.restores_order() {
        // Rows merged from spilled runs arrive in another order than rows held in memory.
        context.computed_on(Computed::declared(Repeatability::Not));
    }
    Ok(lineage)
}

/// Runs a query that is no node's, with the memory limit and the scratch folder of `context`.
pub(crate) async fn collect(frame: DataFrame, context: &Context) -> Result<Vec<RecordBatch>, OperatorError> {
    let task = task(context, Arc::new(Pool::new(context)))?;
    let plan = in_order(frame.create_physical_plan().await?)?;
    let mut batches = execute_stream(plan, task)?;
    let mut all = Vec::new();
    while let Some(batch) = batches.next().await {
        context.check_cancelled()?;
        all.push(batch?);
    }
    Ok(all)
}

/// Whether a join of the plan looked rows up and found none. A left join has rows then, too.
fn has_no_match(plan: &Arc<dyn ExecutionPlan>) -> bool {
    for metric in plan.metrics().iter().flat_map(MetricsSet::iter) {
        if let MetricValue::Ratio { name, ratio_metrics } = metric.value()
            && name == "probe_hit_rate"
            && ratio_metrics.total() > 0
            && ratio_metrics.part() == 0
        {
            return true;
        }
    }
    plan.children().into_iter().any(has_no_match)
}

/// A result with more rows than the joined tables.
struct More {
    times: f64,
    note: String,
}

impl More {
    /// `note` describes the rows; `None` if `output` is no more than `input`, or there was no input.
    fn of(output: u64, input: u64, note: &str) -> Option<Self> {
        if input == 0 || output <= input {
            return None;
        }
        let times = output as f64 / input as f64;
        Some(Self { times, note: format!("{note} ({times:.2} times as many)") })
    }
}

/// Returns the join that multiplies rows most: its output has more rows than either side.
fn joined_to_more(plan: &Arc<dyn ExecutionPlan>) -> Option<More> {
    let below = plan.children().into_iter().filter_map(joined_to_more);
    below.chain(more_of_join(plan)).max_by(|one, other| one.times.total_cmp(&other.times))
}

fn more_of_join(plan: &Arc<dyn ExecutionPlan>) -> Option<More> {
    let [left, right] = plan.children()[..] else { return None };
    if !plan.name().contains("Join") {
        return None;
    }
    let metrics = plan.metrics()?;
    let joined = metrics.output_rows()? as u64;
    let (left, right) = (side_rows(left, &metrics, "build_input_rows")?, side_rows(right, &metrics, "input_rows")?);
    More::of(joined, left.max(right), &format!("a join multiplies rows: {joined} came of {left} and {right}"))
}

/// Returns the rows of one side of a join. Tables in memory report none; the joins over them do.
fn side_rows(side: &Arc<dyn ExecutionPlan>, join: &MetricsSet, name: &str) -> Option<u64> {
    let own = side.metrics().and_then(|metrics| metrics.output_rows());
    own.or_else(|| Some(join.sum_by_name(name)?.as_usize())).map(|rows| rows as u64)
}

/// Makes the parts of a union follow one another. DataFusion's own operator emits whichever part has rows first, so
/// equal queries would produce different bytes. Merging by a constant, for which all rows compare equal, drains each
/// part before the next one.
fn in_order(plan: Arc<dyn ExecutionPlan>) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
    let whole: Arc<dyn ExecutionPlan> = match plan.output_partitioning().partition_count() {
        0 | 1 => plan,
        _ => Arc::new(CoalescePartitionsExec::new(plan)),
    };
    let ordered = whole.transform_up(|node: Arc<dyn ExecutionPlan>| {
        let Some(parts) = node.downcast_ref::<CoalescePartitionsExec>() else { return Ok(Transformed::no(node)) };
        let Some(constant) = LexOrdering::new([PhysicalSortExpr::new_default(lit(1_i64))]) else {
            return Ok(Transformed::no(node));
        };
        let merged = SortPreservingMergeExec::new(constant, Arc::clone(parts.input())).with_fetch(parts.fetch());
        // Round robin would take rows of equal keys from all parts in turn.
        Ok(Transformed::yes(Arc::new(merged.with_round_robin_repartition(false)) as Arc<dyn ExecutionPlan>))
    })?;
    Ok(ordered.data)
}

/// Returns what a query runs with: the memory pool, and the disk manager.
fn task(context: &Context, pool: Arc<dyn MemoryPool>) -> Result<Arc<TaskContext>, OperatorError> {
    let spill = Arc::new(Spill { context: context.clone(), folder: OnceLock::new() });
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Custom(spill));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).with_disk_manager_builder(disk).build_arc()?;
    Ok(Arc::new(TaskContext::default().with_session_config(query_config()).with_runtime(runtime)))
}

/// The memory pool of one query. Records whether a request was refused: only then can the limit affect the order of
/// rows.
#[derive(Debug)]
struct Pool {
    fair: FairSpillPool,
    refused: AtomicBool,
}

impl Pool {
    fn new(context: &Context) -> Self {
        let memory = context.memory().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(QUERY_MEMORY);
        Self { fair: FairSpillPool::new(memory), refused: AtomicBool::new(false) }
    }
}

impl std::fmt::Display for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.fair, f)
    }
}

impl MemoryPool for Pool {
    fn name(&self) -> &str {
        self.fair.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.fair.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.fair.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.fair.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.fair.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> DataFusionResult<()> {
        let grown = self.fair.try_grow(reservation, additional);
        self.refused.fetch_or(grown.is_err(), Ordering::Relaxed);
        grown
    }

    fn reserved(&self) -> usize {
        self.fair.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.fair.memory_limit()
    }
}

/// Spills to the node's scratch folder. Most queries never spill, so the folder is created with the first file.
struct Spill {
    context: Context,
    folder: OnceLock<Arc<DiskManager>>,
}

impl TempFileFactory for Spill {
    fn create_temp_file(&self, description: &str) -> DataFusionResult<Arc<dyn SpillFile>> {
        if let Some(folder) = self.folder.get() {
            return folder.create_tmp_file(description);
        }
        let folders = vec![self.context.scratch().to_owned()];
        let manager = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(folders)).build()?;
        // Another thread may have been faster; its folder counts.
        self.folder.get_or_init(|| Arc::new(manager)).create_tmp_file(description)
    }
}

/// Makes a table known to a session under that name.
pub(crate) async fn register(session: &SessionContext, name: &str, rows: &RowsInput) -> Result<(), OperatorError> {
    let table = TableReference::bare(name.to_owned());
    // A small table is read directly: planning a scan of files would cost more.
    let is_small = match rows.parts() {
        [] => true,
        [part] => std::fs::metadata(part).is_ok_and(|file| file.len() <= SMALL_BYTES),
        _ => false,
    };
    if is_small {
        let batches = rows.batches().collect::<Result<Vec<_>, _>>()?;
        let memory = MemTable::try_new(Arc::clone(&rows.schema), vec![batches])?;
        session.register_table(table, Arc::new(memory))?;
        return Ok(());
    }
    let mut files = Vec::with_capacity(rows.parts().len());
    for path in rows.parts() {
        let Ok(url) = Url::from_file_path(std::path::absolute(path)?) else {
            return Err(OperatorError::machine(format!("{} cannot be expressed as a URL", path.display())));
        };
        // As text, DataFusion would read `[`, `*` and `?` in a path as a pattern that matches nothing.
        files.push(ListingTableUrl::try_new(url, None)?);
    }
    let options = ParquetReadOptions::default();
    let options = options.to_listing_options(&session.copied_config(), session.copied_table_options());
    let config = ListingTableConfig::new_with_multi_paths(files).with_listing_options(options);
    let files = ListingTable::try_new(config.with_schema(Arc::clone(&rows.schema)))?;
    require_whole(session, name, &files, rows).await?;
    session.register_table(table, session.read_table(Arc::new(files))?.into_view())?;
    Ok(())
}

/// Fails if a scan would read other files than the input has, or other numbers of rows: the result would be wrong
/// without notice.
async fn require_whole(
    session: &SessionContext,
    name: &str,
    files: &ListingTable,
    rows: &RowsInput,
) -> Result<(), OperatorError> {
    let listed = files.list_files_for_scan(&session.state(), &[], None).await?;
    let listed: usize = listed.file_groups.iter().map(FileGroup::len).sum();
    let mut counted = 0;
    for path in rows.parts() {
        counted += SerializedFileReader::new(File::open(path)?)?.metadata().file_metadata().num_rows();
    }
    if listed == rows.parts().len() && u64::try_from(counted) == Ok(rows.rows) {
        return Ok(());
    }
    let (parts, wanted) = (rows.parts().len(), rows.rows);
    let message = format!("input `{name}`: found {listed} of {parts} files and {counted} of {wanted} rows");
    Err(OperatorError::engine(message))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use arrow::array::{ArrayRef, Int64Array};
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use parquet::arrow::ArrowWriter;
    use searchmill_schemas::RecordKind;

    use super::*;
    use crate::error::Blame;
    use crate::operator::testing::Harness;
    use crate::operator::{OutputSink, QueryOutput};

    fn numbers(from: i64, rows: i64) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + rows));
        RecordBatch::try_from_iter([("n", column)]).unwrap()
    }

    #[test]
    fn tables_are_read_whole_from_folders_named_like_patterns() {
        let harness = Harness::new();
        let context = harness.context();
        for folder in ["exp [1]", "*", "what?", "a{b,c}", "%41 #2=3"] {
            let folder = harness.path().join(folder);
            std::fs::create_dir(&folder).unwrap();
            let part = |number: i64| {
                let path = folder.join(format!("part-{number:05}.parquet"));
                let batch = numbers(number * 10, 10);
                let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
                writer.write(&batch).unwrap();
                writer.close().unwrap();
                path
            };
            let parts = vec![part(0), part(1)];
            let read = |rows| {
                let schema = numbers(0, 0).schema();
                let input = RowsInput::from_parts(RecordKind::Table, schema, rows, String::new(), parts.clone());
                context.block_on(async {
                    let session = query_session()?;
                    register(&session, "t", &input).await?;
                    Ok::<_, OperatorError>(session.table("t").await?.count().await?)
                })
            };
            assert_eq!(read(20).unwrap(), 20, "{}", folder.display());
            let short = read(21).unwrap_err();
            assert_eq!(short.blame, Blame::Engine);
            assert!(short.message.contains("2 of 2 files and 20 of 21 rows"), "{short}");
        }
    }

    struct Counts {
        restores_order: bool,
    }

    impl QueryKernel for Counts {
        fn plan<'a>(
            &'a self,
            session: &'a SessionContext,
            _inputs: &'a QueryInputs,
        ) -> BoxFuture<'a, Result<Vec<QueryOutput>, OperatorError>> {
            async move {
                let frame = session.sql("SELECT n, count(*) AS c FROM t GROUP BY n").await?;
                Ok(vec![QueryOutput { port: "rows".to_owned(), frame }])
            }
            .boxed()
        }

        fn restores_order(&self) -> bool {
            self.restores_order
        }
    }

    struct Nowhere;

    impl OutputSink for Nowhere {
        fn write(&mut self, _port: &str, _batch: &RecordBatch) -> Result<(), OperatorError> {
            Ok(())
        }

        fn tree(&mut self, _port: &str) -> Result<PathBuf, OperatorError> {
            Err(OperatorError::engine("no folders here"))
        }

        fn figure(&mut self, _name: &str, _value: f64) {}

        fn summary(&mut self, _text: &str) {}
    }

    #[test]
    fn a_result_whose_order_memory_decided_is_not_repeatable() {
        let batches = (0..160).map(|batch| numbers(batch * 5_000, 5_000)).collect();
        let rows = RowsInput::from_batches(RecordKind::Table, numbers(0, 0).schema(), batches);
        let mut inputs = Inputs::new();
        inputs.bind("t", InputArtifact::Rows(rows));
        let run = |memory, restores_order| {
            let mut harness = Harness::new();
            harness.memory = memory;
            let context = harness.context();
            let kernel = Counts { restores_order };
            context.block_on(run_query(&kernel, &inputs, &mut Nowhere, &context)).unwrap();
            context.computed().repeats
        };
        assert_eq!(run(None, false), Repeatability::Everywhere);
        assert_eq!(run(Some(12 << 20), false), Repeatability::Not);
        assert_eq!(run(Some(12 << 20), true), Repeatability::Everywhere);
    }

    #[test]
    fn the_folder_of_spilled_rows_is_made_for_the_first_file_and_goes_with_the_query() {
        let harness = Harness::new();
        let context = harness.context();
        let files = || std::fs::read_dir(context.scratch()).unwrap().count();
        let runtime = task(&context, Arc::new(Pool::new(&context))).unwrap().runtime_env();
        assert_eq!(files(), 0);
        let spilled = [runtime.disk_manager.create_tmp_file("a"), runtime.disk_manager.create_tmp_file("b")];
        assert!(spilled.iter().all(Result::is_ok) && files() == 1);
        drop((spilled, runtime));
        assert_eq!(files(), 0);
    }

    #[test]
    fn tables_of_one_session_are_not_seen_in_another() {
        let (one, other) = (query_session().unwrap(), query_session().unwrap());
        let rows = RecordBatch::new_empty(Arc::new(arrow::datatypes::Schema::empty()));
        one.register_batch("t", rows).unwrap();
        assert!(one.table_exist("t").unwrap() && !other.table_exist("t").unwrap());
    }
}
