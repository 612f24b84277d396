//! Counts the rows of an external node that remembered answers can reproduce: its kernel runs with a budget of zero
//! calls, so any new call is refused and nothing is reported.

use std::path::Path;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::call_journal::{Observations, RowCalls};
use super::samples::{Drawing, Pending, Sample};
use crate::endpoint::{Budget, BudgetLimits, EndpointSession};
use crate::error::OperatorError;
use crate::execute::settings::resources::Machine;
use crate::operator::{AsyncMapKernel, Context, ContextParts, Inputs, Kernel, RowOutput, stack_size};
use crate::plan::Node;
use crate::store::{CallCache, Memo};

/// The remembered answers that rows of a node may use.
#[derive(Clone)]
pub(crate) struct Answers {
    pub(crate) calls: Arc<CallCache>,
    pub(crate) observed: Observations,
    /// Earlier answers do not count.
    pub(crate) since: u64,
}

impl Answers {
    /// Returns the result of a sample that needs no new call.
    async fn result(&self, kernel: &dyn AsyncMapKernel, context: &Context, sample: &Sample) -> Option<RowOutput> {
        let journal = Arc::new(RowCalls::new(Arc::clone(&self.calls), sample.call_place(context), self.since));
        sample.run(kernel, context, Some(journal), &self.observed, self.since).await.0.ok()
    }
}

/// Counts the samples of a node that need no new call, and the missing ones: of all samples, or of those drawn up to a
/// goal as if no missing one passed. Blocking; needs no runtime, and may be called within one.
///
/// # Errors
/// Fails if the kernel cannot be opened or a row cannot be read.
pub(crate) fn count_samples(
    node: &Node,
    inputs: &Inputs,
    directory: &Path,
    answers: &Answers,
    memo: &Memo,
    samples: Drawing,
) -> Result<(u64, u64), OperatorError> {
    // A separate thread, because runtimes cannot be nested.
    let joined = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(stack_size());
        let thread = thread.spawn_scoped(scope, move || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.thread_stack_size(stack_size()).enable_all().build().map_err(not_started)?;
            let context = quiet_context(node.spec.seed, directory, runtime.handle());
            let context = answers.observed.context(context, answers.since);
            match node.operator.open(inputs, &context)? {
                Kernel::AsyncMap(kernel) => {
                    runtime.block_on(count_answered(kernel.as_ref(), &context, answers, memo, samples))
                }
                // The rows of another kernel are not independent: answers alone make none of them.
                _ => samples.count_known(memo),
            }
        });
        thread.map(ScopedJoinHandle::join)
    });
    match joined.map_err(not_started)? {
        Ok(counted) => counted,
        Err(_) => Err(OperatorError::engine("the operator panicked while its rows were counted")),
    }
}

fn not_started(error: std::io::Error) -> OperatorError {
    OperatorError::machine(format!("cannot start a thread: {error}"))
}

/// Counts the samples that a run draws up to the goal; without one, all samples.
async fn count_answered(
    kernel: &dyn AsyncMapKernel,
    context: &Context,
    answers: &Answers,
    memo: &Memo,
    mut samples: Drawing,
) -> Result<(u64, u64), OperatorError> {
    let (mut known, mut missing) = (0, 0);
    if samples.draw().is_none() {
        let mut running = FuturesUnordered::new();
        loop {
            // A few at a time: a table may be large.
            while running.len() < context.concurrency()
                && let Pending::Sample(sample) = samples.next()?
            {
                if memo.contains(&sample.key) {
                    known += 1;
                } else {
                    running.push(async move { answers.result(kernel, context, &sample).await.is_some() });
                }
            }
            match running.next().await {
                Some(true) => known += 1,
                Some(false) => missing += 1,
                None => return Ok((known, missing)),
            }
        }
    }
    let has_answers = answers.calls.count()? > 0;
    // One by one: which sample is next depends on those before it.
    while let Pending::Sample(sample) = samples.next()? {
        let mut output = memo.get(&sample.key).find_map(|output| kernel.label(&sample.row, sample.index, output));
        if output.is_none() && has_answers {
            output = answers.result(kernel, context, &sample).await;
        }
        let mut passing = 0;
        match output {
            Some(output) => {
                known += 1;
                passing = kernel.counts(&output)?;
            }
            None => missing += 1,
        }
        if let Some(draw) = samples.draw() {
            let counts = draw.known(sample.place, passing);
            draw.count(counts);
        }
    }
    Ok((known, missing))
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
