//! `status`: lists which nodes are up to date, and their outputs.

use searchmill_engine::{Failure, NodeStatus, RunOptions, Session};
use serde_json::json;

use super::pipeline;
use super::store::note_if_missing;
use crate::args::PipelineArgs;
use crate::display::{self, Terminal};
use crate::exit::OK;

pub(super) fn status(terminal: &Terminal, session: &Session, args: &PipelineArgs) -> Result<u8, Failure> {
    let checked = pipeline::check(session, args)?;
    note_if_missing(terminal, session)?;
    let survey = session.survey(&checked, &RunOptions::default())?;
    let mut rows = Vec::new();
    for (node, status) in checked.plan.nodes.iter().zip(survey.nodes.values()) {
        let (word, _) = super::plan::words(node.id(), status);
        let word = match status {
            NodeStatus::Cached { released, .. } if !released.is_empty() => "released",
            _ => word,
        };
        let result = match status {
            NodeStatus::Cached { result, .. } => Some(result),
            _ => None,
        };
        let output = result.and_then(|result| result.outputs.first()).map(|(_, output)| output);
        if terminal.is_json() {
            terminal.json(&json!({"node": node.id(), "status": word, "result": result}));
        }
        if matches!(status, NodeStatus::Ended { .. }) {
            continue;
        }
        rows.push(vec![
            node.id().to_owned(),
            node.entry.name.to_owned(),
            word.to_owned(),
            output.map_or_else(String::new, |output| output.rows.to_string()),
            output.map_or_else(String::new, |output| display::bytes(output.bytes)),
            result.map_or_else(String::new, |result| result.rejects().to_string()),
            output.map_or_else(String::new, |output| output.id.digest().short()),
        ]);
    }
    if !terminal.is_json() {
        terminal.table(&["node", "operator", "status", "rows", "size", "rejects", "artifact"], &rows);
        super::plan::tell_loops(terminal, &survey);
    }
    Ok(OK)
}
