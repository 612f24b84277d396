//! `plan`: what a run would do, and why.

use searchmill_engine::execute::{NodeStatus, survey};
use searchmill_engine::plan::Plan;
use serde_json::json;

use super::Session;
use crate::args::PlanArgs;
use crate::exit::{Failure, OK, WORK};
use crate::pipeline;

pub(super) fn plan(session: &Session<'_>, args: &PlanArgs) -> Result<u8, Failure> {
    let plan = pipeline::plan(&args.pipeline.file, &args.pipeline.set, &args.pipeline.params, &session.directory)?;
    let work = show(session, &plan, args.limit)?;
    Ok(if work && args.detailed_exitcode { WORK } else { OK })
}

/// Prints the plan; is there work to do?
pub(super) fn show(session: &Session<'_>, plan: &Plan, limit: Option<u64>) -> Result<bool, Failure> {
    let store = session.store_if_any()?;
    let survey = survey(plan, &store, &session.directory, limit);
    let mut rows = Vec::new();
    let mut work = false;
    for (node, status) in plan.nodes().iter().zip(&survey.nodes) {
        let (word, detail) = words(status);
        work |= word != "cached";
        if session.terminal.is_json() {
            session.terminal.line(
                &json!({
                    "node": node.id(), "operator": node.entry.name, "status": word, "detail": detail,
                })
                .to_string(),
            );
        }
        rows.push(vec![node.id().to_owned(), node.entry.name.to_owned(), word.to_owned(), detail]);
    }
    if !session.terminal.is_json() {
        session.terminal.table(&["node", "operator", "status", "why"], &rows);
        let to_run = survey
            .nodes
            .iter()
            .filter(|status| !matches!(status, NodeStatus::Cached { .. } | NodeStatus::Frozen))
            .count();
        session.terminal.line(&format!(
            "{} nodes: {} cached, {to_run} to run or to decide",
            rows.len(),
            rows.len() - to_run
        ));
    }
    Ok(work)
}

pub(super) fn words(status: &NodeStatus) -> (&'static str, String) {
    match status {
        NodeStatus::Cached { .. } => ("cached", String::new()),
        NodeStatus::Frozen => ("cached", "frozen".to_owned()),
        NodeStatus::Run { reasons, .. } => {
            ("run", reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        }
        NodeStatus::Unknown { waits_for } => ("decided later", format!("waits for {}", waits_for.join(", "))),
        NodeStatus::Broken { problem } => ("broken", problem.clone()),
    }
}
