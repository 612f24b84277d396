//! The exit code that a run's balance stands for.

use crate::report::RunSummary;

/// Exit code of a finished run: 0 ok, 1 a node failed, 3 dead letters or outputs held back, 4 the budget is used up, 5 a node failed for the machine's sake (disk, network,
/// lock), 130 interrupted.
#[must_use]
pub fn exit_code(summary: &RunSummary) -> i32 {
    match summary {
        _ if summary.interrupted => 130,
        _ if summary.machine_failure => 5,
        _ if summary.failed > 0 => 1,
        _ if summary.budget.is_some() => 4,
        _ if summary.dead_letters > 0 || summary.held_back > 0 => 3,
        _ => 0,
    }
}
