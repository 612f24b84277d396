//! The context of operators: the run's resources and settings that a node may use.

use std::sync::Arc;

use super::run::Run;
use crate::endpoint::EndpointSession;
use crate::execute::settings::progress::NodeProgress;
use crate::operator::{Context, ContextParts, ProgressSink};
use crate::plan::Node;

/// Rows in flight of an external node (default).
const CONCURRENCY: usize = 16;

/// Returns the run-level parts of a node's context.
pub(super) fn context_parts(run: &Run, node: &Node, progress: &Arc<NodeProgress>) -> ContextParts {
    let (resources, options) = (node.spec.resources, &run.options);
    ContextParts {
        seed: node.spec.seed,
        cancelled: run.stop.flag(),
        memory: resources.memory,
        threads: resources.threads.unwrap_or(options.machine.threads),
        concurrency: resources.concurrency.unwrap_or(CONCURRENCY),
        processes: resources.concurrency.or(resources.threads),
        retry: node.spec.retry,
        secrets: Arc::clone(&options.secrets),
        progress: Arc::clone(progress) as Arc<dyn ProgressSink>,
        ..ContextParts::bare(&options.directory, &tokio::runtime::Handle::current(), run.http.clone())
    }
}

/// Returns a context without a scratch folder, for work outside the node's run: fetching sources, delivering outputs.
pub(crate) fn bare_context(run: &Run, node: &Node) -> Context {
    let progress = Arc::new(NodeProgress::new(node.id(), Arc::clone(&run.reporter)));
    let redactor = run.endpoints.redactor.clone();
    let parts = ContextParts { scratch: run.store.root().join("tmp"), ..context_parts(run, node, &progress) };
    Context::new(parts).with_session(EndpointSession { redactor, ..EndpointSession::default() })
}
