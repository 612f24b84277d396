//! Decides about a node that starts, and says why it cannot.

use super::context::bare_context;
use super::run::Run;
use crate::error::OperatorError;
use crate::execute::decide::identity::Known;
use crate::execute::decide::{Decider, Decision, Look, Pending};
use crate::fingerprint::SourceProblem;
use crate::plan::NodeIndex;
use crate::store::StoreError;

/// Decides about a node, given the outputs of its dependencies. Fetches files that the key needs.
pub(crate) fn decide(run: &Run, index: NodeIndex, known: &Known, look: Look) -> Result<Decision, StoreError> {
    let request = run.options.request();
    let decider = Decider { plan: &run.plan, store: &run.store, request, history: &run.history };
    let decided = decider.decide(index, known, &run.sources, look)?;
    if !matches!(decided, Decision::Broken(SourceProblem::NotFetched(_))) {
        return Ok(decided);
    }
    let node = run.node(index);
    match node.operator.declaration.fetch(&bare_context(run, node)) {
        Ok(()) => decider.decide(index, known, &run.sources, look),
        Err(error) => Ok(Decision::Unfetched(error)),
    }
}

/// Returns the pending node, or why it cannot run. Cached results are settled before.
pub(super) fn startable(decision: Decision) -> Result<Box<Pending>, OperatorError> {
    match decision {
        Decision::Run(pending) => Ok(pending),
        Decision::Held(_) => {
            let error = OperatorError::pipeline("it was not chosen to run, and its result is not in the store");
            Err(error.with_help("run it first, or omit `--from` and `--only`"))
        }
        Decision::Broken(SourceProblem::Stopped) => {
            Err(OperatorError::machine("a source cannot be read: the file system timed out"))
        }
        Decision::Broken(problem @ SourceProblem::Changing(_)) => {
            Err(OperatorError::machine(problem.to_string()).with_help("run it again when nothing writes to that place"))
        }
        Decision::Broken(problem) => Err(OperatorError::pipeline(problem.to_string())),
        Decision::Unfetched(error) | Decision::Misfit(error) => Err(error),
        Decision::Waits { .. } | Decision::Frozen(_) | Decision::Cached { .. } => {
            Err(OperatorError::engine("the inputs of the node are unknown"))
        }
    }
}
