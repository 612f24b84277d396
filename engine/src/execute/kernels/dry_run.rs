//! Counts the rows of an external node that remembered answers can reproduce: its kernel runs with a budget of zero
//! calls, so any new call is refused and nothing is reported.

use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::{StreamExt, TryStreamExt, stream};

use super::call_journal::RowCalls;
use super::observations::Observations;
use super::samples::{Drawing, Pending};
use crate::endpoint::{Budget, BudgetLimits, CallJournal, EndpointSession};
use crate::error::OperatorError;
use crate::execute::settings::resources::Machine;
use crate::fingerprint::{CallPlace, RowKey};
use crate::operator::{AsyncMapKernel, Context, ContextParts, Inputs, Kernel, RowOutput, stack_size};
use crate::plan::Node;
use crate::store::{CallCache, Memo};

/// One sample of a row, the place of its calls, and its key.
pub(crate) type Rehearsed = (RecordBatch, CallPlace, RowKey);

/// Counts the rows that need no new call, using answers given after `since`. Blocking; needs no runtime, and may be
/// called within one.
///
/// # Errors
/// Fails if the kernel cannot be opened or a row cannot be read.
pub(crate) fn free_rows(
    node: &Node,
    inputs: &Inputs,
    directory: &Path,
    (calls, observed): (&Arc<CallCache>, &Observations),
    since: u64,
    rows: impl Iterator<Item = Result<Rehearsed, OperatorError>> + Send,
) -> Result<u64, OperatorError> {
    rehearsed(node, inputs, directory, observed, since, |kernel, context| {
        context.block_on(count(kernel, context, calls, observed, since, rows))
    })
}

/// Opens the kernel in a context that makes no calls. A kernel of another kind counts nothing.
fn rehearsed<T: Default + Send>(
    node: &Node,
    inputs: &Inputs,
    directory: &Path,
    observed: &Observations,
    since: u64,
    work: impl FnOnce(&Arc<dyn AsyncMapKernel>, &Context) -> Result<T, OperatorError> + Send,
) -> Result<T, OperatorError> {
    let failed = |error: std::io::Error| OperatorError::machine(format!("cannot start a thread: {error}"));
    let rehearse = || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_stack_size(stack_size())
            .enable_all()
            .build()
            .map_err(failed)?;
        let context = quiet_context(node.spec.seed, directory, runtime.handle());
        let context = observed.context(context, since);
        match node.operator.open(inputs, &context)? {
            Kernel::AsyncMap(kernel) => work(&kernel, &context),
            _ => Ok(T::default()),
        }
    };
    // A separate thread, because runtimes cannot be nested.
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(stack_size());
        thread.spawn_scoped(scope, rehearse).map(std::thread::ScopedJoinHandle::join)
    });
    done.map_err(failed)?
        .unwrap_or_else(|_| Err(OperatorError::engine("the operator panicked while its rows were counted")))
}

/// Draws samples up to the node's goal as if no missing one passed. Returns the number of known and of missing ones: a
/// run draws no more of either.
///
/// # Errors
/// Fails like [`free_rows`], or if the input cannot be read.
pub(crate) fn drawn_rows(
    node: &Node,
    inputs: &Inputs,
    directory: &Path,
    (calls, observed): (&Arc<CallCache>, &Observations),
    (memo, since): (&Memo, u64),
    mut drawing: Drawing,
) -> Result<(u64, u64), OperatorError> {
    let is_asked = calls.count()? > 0;
    rehearsed(node, inputs, directory, observed, since, |kernel, context| {
        let (mut known, mut missing) = (0, 0);
        while let Pending::Sample(sample) = drawing.next()? {
            let label = |output| kernel.label(&sample.row, sample.index, output);
            let occurrence = sample.identity.occurrence;
            let place = CallPlace { seed: node.spec.seed, sample: sample.index, occurrence, repeat: 0 };
            let row = (sample.row.clone(), place, sample.key);
            let again = || context.block_on(free_row(kernel, context, calls, observed, since, row));
            let again = || if is_asked { again() } else { None };
            let passing = if let Some(output) = memo.get(&sample.key).find_map(label).or_else(again) {
                known += 1;
                kernel.counts(&output)?
            } else {
                missing += 1;
                0
            };
            if let Some(draw) = drawing.draw() {
                let counts = draw.known(sample.place, passing);
                draw.count(counts);
            }
        }
        Ok((known, missing))
    })
}

async fn count(
    kernel: &Arc<dyn AsyncMapKernel>,
    context: &Context,
    calls: &Arc<CallCache>,
    observed: &Observations,
    since: u64,
    rows: impl Iterator<Item = Result<Rehearsed, OperatorError>>,
) -> Result<u64, OperatorError> {
    let free = rows.map(|row| async move {
        let free = free_row(kernel, context, calls, observed, since, row?).await;
        Ok::<_, OperatorError>(u64::from(free.is_some()))
    });
    let free = stream::iter(free).buffer_unordered(context.concurrency());
    free.try_fold(0, |sum, free| async move { Ok(sum + free) }).await
}

/// Returns the result of a sample that needs no new call.
async fn free_row(
    kernel: &Arc<dyn AsyncMapKernel>,
    context: &Context,
    calls: &Arc<CallCache>,
    observed: &Observations,
    since: u64,
    (row, place, key): Rehearsed,
) -> Option<RowOutput> {
    let journal = Arc::new(RowCalls::new(Arc::clone(calls), place, since)) as Arc<dyn CallJournal>;
    let mut session = EndpointSession { journal: Some(journal), ..context.session().clone() };
    observed.join(&mut session, Some(&key), since);
    let context = context.clone().with_session(session);
    kernel.run(&row, place.sample, &context).await.ok()
}

/// Returns a context that makes no calls and reports nothing.
pub(crate) fn quiet_context(seed: u64, directory: &Path, runtime: &tokio::runtime::Handle) -> Context {
    let parts = ContextParts {
        seed,
        threads: Machine::detect().threads,
        concurrency: 64,
        // Nothing is sent, so no API key is needed.
        secrets: Arc::new(|_| Some("none".to_owned())),
        ..ContextParts::bare(directory, runtime, reqwest::Client::new())
    };
    let nothing = Budget::new(BudgetLimits { calls: Some(0), ..BudgetLimits::default() });
    Context::new(parts).with_session(EndpointSession { budget: nothing, ..EndpointSession::default() })
}
