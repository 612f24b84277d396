//! `status`: which nodes are up to date, and what they hold.

use searchmill_engine::execute::{NodeStatus, Request, survey};
use serde_json::json;

use super::Session;
use crate::args::PipelineArgs;
use crate::exit::{Failure, OK};
use crate::{display, pipeline};

pub(super) fn status(session: &Session<'_>, args: &PipelineArgs) -> Result<u8, Failure> {
    let plan = pipeline::plan(&args.file, &args.set, &args.params, &session.directory)?;
    let store = session.store_if_any()?;
    let survey = survey(&plan, &store, Request::new(&session.directory))?;
    let mut rows = Vec::new();
    for (node, status) in plan.nodes().iter().zip(survey.nodes.values()) {
        let (word, _) = super::plan::words(status);
        let result = match status {
            NodeStatus::Cached { result, .. } => Some(result),
            _ => None,
        };
        let output = result.and_then(|result| result.outputs.first()).map(|(_, output)| output);
        if session.terminal.is_json() {
            session.terminal.line(&json!({"node": node.id(), "status": word, "result": result}).to_string());
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
    if !session.terminal.is_json() {
        session.terminal.table(&["node", "operator", "status", "rows", "size", "rejects", "artifact"], &rows);
    }
    Ok(OK)
}
