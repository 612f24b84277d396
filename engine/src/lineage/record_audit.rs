//! Verifies run records: every line, missing lines and files, and nodes without results.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use super::findings::{Report, Severity};
use crate::node_id::NodeId;
use crate::store::{NodeOutcome, NodeRun, RecordDamage, RunRecord, Store};

/// Verifies run records line by line. Reports missing runs that no collection removed.
pub fn verify_ledger(store: &Store, runs: &BTreeSet<String>, report: &mut Report) {
    let there: BTreeSet<String> = store.run_ids().into_iter().collect();
    let forgotten: BTreeSet<String> = store.collections().into_iter().flat_map(|collection| collection.runs).collect();
    for run in runs {
        if there.contains(run) || forgotten.contains(run) {
            continue;
        }
        let why = "its record is missing, and `gc` did not remove it: it was deleted, or not imported";
        report.find(Severity::Note, "ledger", "run", Some(format!("runs/{run}")), why);
        report.miss(format!("ledger of run {run}"), "its record is missing");
    }
    for run in runs.iter().filter(|run| there.contains(*run)) {
        let gone = store.missing_run_files(run);
        for file in &gone {
            report.differs("ledger", "run", Some(format!("runs/{run}/{file}")), "the file is gone");
        }
        // The number of lines is unknown until a run has ended.
        if let Some(record) = store.run(run)
            && record.finished.is_some()
            && !gone.contains(&"nodes.jsonl")
            && let Some(fault) = missing_lines(store, &record)
        {
            report.differs("ledger", "run", Some(format!("runs/{run}/nodes.jsonl")), fault);
        }
    }
    for damage in runs.iter().flat_map(|run| store.ledger_damage(run)) {
        let place = format!("runs/{}/{}, line {}", damage.run, damage.file, damage.line);
        let killed = store.run(&damage.run).is_some_and(|run| run.finished.is_none());
        let severity = if damage.torn && killed { Severity::Note } else { Severity::Difference };
        report.find(severity, "ledger", "run", Some(place), format!("the line {}", damage.what));
    }
}

/// Verifies the records that belong to the whole store, and that the given runs, if they paid, have one of what they
/// spent.
pub fn verify_records(store: &Store, runs: &BTreeSet<String>, report: &mut Report) {
    for RecordDamage { file, what } in store.record_damage() {
        report.differs("ledger", "store", Some(file), what);
    }
    for run in store.missing_spending(runs.iter()) {
        let why = "no record says what it spent: budgets of days and months count what its events say";
        report.find(Severity::Note, "ledger", "run", Some(format!("runs/{run}")), why);
    }
}

fn missing_lines(store: &Store, record: &RunRecord) -> Option<String> {
    let Some(sealed) = record.ledger else {
        // Earlier versions recorded only the number of nodes.
        let nodes = last_records(store, &record.id).len();
        return (nodes < record.nodes).then(|| format!("it has {nodes} nodes, and the run had {}", record.nodes));
    };
    match store.ledger_seal(&record.id) {
        Err(error) => Some(error.to_string()),
        Ok(found) if found == sealed => None,
        Ok(found) if found.lines == sealed.lines => Some("its lines are not those that the run wrote".to_owned()),
        Ok(found) => Some(format!("it has {} lines, and the run wrote {}", found.lines, sealed.lines)),
    }
}

/// Returns the last record of each node of a run.
fn last_records(store: &Store, run: &str) -> IndexMap<NodeId, NodeRun> {
    store.run_nodes(run).into_iter().map(|node| (node.node.clone(), node)).collect()
}

/// Notes the failed checks of recorded nodes.
pub fn note_checks(nodes: &[NodeRun], report: &mut Report) {
    for node in nodes {
        for check in node.checks.iter().filter(|check| !check.passed) {
            let message = format!("a check failed in that run: {check}");
            report.find(Severity::Note, "checks", &node.node, check.check.port.clone(), message);
        }
    }
}

/// Records the nodes of a run that have no result and cannot be checked.
pub fn note_unfinished(store: &Store, run: &str, report: &mut Report) {
    let Some(record) = store.run(run) else { return };
    let recorded = last_records(store, run);
    for (node, last) in &recorded {
        let why = match last.outcome {
            NodeOutcome::Failed => "it failed",
            NodeOutcome::Skipped if last.was_interrupted() => "it was interrupted",
            NodeOutcome::Skipped => "it was skipped",
            NodeOutcome::Begun => "the run was killed or is still running",
            NodeOutcome::Cached
            | NodeOutcome::Finished
            | NodeOutcome::HeldBack
            | NodeOutcome::CheckFailed
            | NodeOutcome::Ended => continue,
        };
        report.miss(format!("node {node}"), why);
    }
    let rest = record.nodes.saturating_sub(recorded.len());
    if rest > 0 {
        report.miss(format!("{rest} more of {} nodes", record.nodes), "nothing is recorded of them");
    }
    if record.nodes == 0 {
        report.miss(format!("run {run}"), "it has no nodes");
    }
}
