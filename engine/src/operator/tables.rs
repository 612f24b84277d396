//! Columns of tables that are known before anything runs.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList, MemorySchemaProvider,
    SchemaProvider,
};
use datafusion::common::TableReference;
use datafusion::datasource::empty::EmptyTable;
use datafusion::execution::context::SessionState;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::functions;
use super::kernel::{QueryInputs, QueryKernel, QueryOutput};
use super::params::ParamIssue;
use crate::diagnostic::Word;
use crate::error::OperatorError;

/// Known columns by port. A port whose columns are unknown is absent.
pub type Tables = BTreeMap<String, SchemaRef>;

type Rule = Box<dyn Fn(&Tables) -> Tables + Send + Sync>;
type Check = Box<dyn Fn(&Tables) -> Vec<ParamIssue> + Send + Sync>;

/// What an operator says of columns before it runs.
#[derive(Default)]
pub struct TableRules {
    pub(super) gives: Option<Rule>,
    /// Columns of outputs that `gives` leaves out, and perhaps some that they lack.
    pub(super) gives_at_most: Option<Rule>,
    pub(super) check: Option<Check>,
    pub(super) query: Option<Arc<dyn QueryKernel>>,
}

impl TableRules {
    /// Returns the columns of the outputs that [`Self::apply`] does not know exactly: none is missing.
    pub(crate) fn at_most(&self, inputs: &Tables) -> Tables {
        self.gives_at_most.as_ref().map(|rule| rule(inputs)).unwrap_or_default()
    }

    /// Returns the known columns of the outputs, and what does not fit those of the inputs; `complete`: the columns of all
    /// inputs are known.
    pub(crate) fn apply(&self, inputs: &Tables, complete: bool) -> (Tables, Vec<ParamIssue>) {
        let gives = self.gives.as_ref().map(|gives| gives(inputs)).unwrap_or_default();
        let issues = self.check.as_ref().map(|check| check(inputs)).unwrap_or_default();
        match &self.query {
            Some(query) if complete => match planned(query.as_ref(), inputs) {
                Ok(outputs) => (outputs, issues),
                // Only this error: a check may find the same fault in other words.
                Err(error) => (gives, vec![error.into()]),
            },
            _ => (gives, issues),
        }
    }
}

impl From<OperatorError> for ParamIssue {
    /// Errors about columns begin with the name of the param, and quote the word they are about.
    fn from(error: OperatorError) -> Self {
        // The same errors end a run, where the message alone is shown: it names the param, too.
        let named = error.message.strip_prefix('`').and_then(|rest| rest.split_once("`: "));
        let (path, message) = named.unwrap_or(("", &error.message));
        let word = message.split('`').nth(1).map(|word| Word::first(word.trim_end_matches("()")));
        Self { help: error.help, ..Self::new(path, message) }.about(word)
    }
}

/// Plans a query over empty tables with these columns.
pub(crate) fn planned(query: &dyn QueryKernel, inputs: &Tables) -> Result<Tables, OperatorError> {
    let session = query_session()?;
    for (port, schema) in inputs {
        let table = EmptyTable::new(Arc::clone(schema));
        session.register_table(TableReference::bare(port.clone()), Arc::new(table))?;
    }
    let tables = QueryInputs { tables: inputs.keys().cloned().collect() };
    // Without a runtime: empty tables in memory give nothing to wait for.
    let outputs = futures::executor::block_on(query.plan(&session, &tables))?;
    let mut planned = Tables::new();
    for QueryOutput { port, frame } in outputs {
        planned.insert(port, Arc::clone(functions::storable(frame)?.schema().inner()));
    }
    Ok(planned)
}

/// One partition: rows keep the plan's order, so equal rows produce equal bytes.
pub(crate) fn query_config() -> SessionConfig {
    let mut config = SessionConfig::new().with_target_partitions(1).with_batch_size(8192);
    let options = config.options_mut();
    options.execution.parquet.schema_force_view_types = false;
    options.execution.collect_statistics = false;
    config
}

/// Returns a session to plan one node's query. SQL functions and rules are registered once, in a session that is then
/// copied; each copy has a separate catalog.
///
/// # Errors
/// If functions cannot be registered.
pub fn query_session() -> Result<SessionContext, OperatorError> {
    static STATE: OnceLock<SessionState> = OnceLock::new();
    // Two threads may both build it: one is dropped.
    let state = if let Some(state) = STATE.get() {
        state.clone()
    } else {
        let mut state = SessionStateBuilder::new().with_config(query_config()).with_default_features().build();
        functions::register(&mut state)?;
        STATE.get_or_init(|| state).clone()
    };
    let names = state.config_options().catalog.clone();
    let (catalogs, catalog) = (MemoryCatalogProviderList::new(), MemoryCatalogProvider::new());
    let schema: Arc<dyn SchemaProvider> = Arc::new(MemorySchemaProvider::new());
    catalog.register_schema(&names.default_schema, schema)?;
    catalogs.register_catalog(names.default_catalog, Arc::new(catalog));
    let session = SessionContext::new_with_state(state);
    session.register_catalog_list(Arc::new(catalogs));
    Ok(session)
}
