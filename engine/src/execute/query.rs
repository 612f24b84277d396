//! Runs a relational plan: one partition, a memory pool, spill to scratch.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use datafusion::catalog::MemoryCatalogProviderList;
use datafusion::common::TableReference;
use datafusion::execution::context::SessionState;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
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
    let session = session(context)?;
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
        let mut batches = output.frame.execute_stream().await?;
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
    }
    Ok(lineage)
}

/// The functions and rules of SQL, registered once: a session of its own for each node shares them.
fn functions() -> &'static SessionState {
    static STATE: OnceLock<SessionState> = OnceLock::new();
    STATE.get_or_init(|| SessionStateBuilder::new().with_default_features().build())
}

/// One partition: rows come in the plan's own order, so the same rows give the same bytes.
fn session(context: &Context) -> Result<SessionContext, OperatorError> {
    let mut config = SessionConfig::new().with_target_partitions(1).with_batch_size(8192);
    let options = config.options_mut();
    options.execution.parquet.schema_force_view_types = false;
    options.execution.collect_statistics = false;
    let memory = context.memory().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(QUERY_MEMORY);
    let disk =
        DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![context.scratch().to_owned()]));
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(FairSpillPool::new(memory)))
        .with_disk_manager_builder(disk)
        .build_arc()?;
    let state = SessionStateBuilder::new_from_existing(functions().clone())
        .with_config(config.with_create_default_catalog_and_schema(true))
        .with_runtime_env(runtime)
        .with_catalog_list(Arc::new(MemoryCatalogProviderList::new()))
        .build();
    Ok(SessionContext::new_with_state(state))
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
