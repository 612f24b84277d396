//! `status`: lists which nodes are up to date, and their outputs.

use searchmill_engine::{Failure, Node, NodeIndex, NodeStatus, RunOptions, Session};
use serde_json::json;

use super::pipeline;
use super::store::note_if_missing;
use crate::args::StatusArgs;
use crate::display::rounds::folded;
use crate::display::{self, Terminal};
use crate::exit::OK;

pub(super) fn status(terminal: &Terminal, session: &Session, args: &StatusArgs) -> Result<u8, Failure> {
    let checked = pipeline::check(session, &args.pipeline)?;
    note_if_missing(terminal, session)?;
    let survey = session.survey(&checked, &RunOptions::default())?;
    let plan = &checked.plan;
    let told = |place: NodeIndex| Some((plan.get(place)?, survey.nodes.get(&place)?));
    if terminal.is_json() {
        for (node, status) in survey.nodes.keys().filter_map(|place| told(*place)) {
            let result = match status {
                NodeStatus::Cached { result, .. } => Some(result),
                _ => None,
            };
            terminal.json(&json!({"node": node.id(), "status": word(node, status), "result": result}));
        }
        return Ok(OK);
    }
    let shown = survey.nodes.iter().filter(|(_, status)| !status.is_after_the_end());
    let groups = folded(plan, shown.map(|(place, _)| *place), args.all);
    let row =
        |(name, places): (String, Vec<NodeIndex>)| row(name, &places.into_iter().filter_map(told).collect::<Vec<_>>());
    let rows: Vec<_> = groups.into_iter().map(|group| row((group.name, group.places))).collect();
    terminal.table(&["node", "operator", "status", "rows", "size", "rejects", "artifact"], &rows);
    super::plan::print_loops(terminal, &survey);
    Ok(OK)
}

/// Formats a node, or the rounds of one: how many of each status, and the rows, bytes and rejects of all.
fn row(name: String, told: &[(&Node, &NodeStatus)]) -> Vec<String> {
    let operator = told.first().map(|(node, _)| node.entry.name.to_owned()).unwrap_or_default();
    let status = match told {
        [(node, status)] => word(node, status).to_owned(),
        _ => display::rounds::counted(told.iter().map(|(node, status)| word(node, status))),
    };
    let results = told.iter().filter_map(|(_, status)| match status {
        NodeStatus::Cached { result, .. } => Some(result),
        _ => None,
    });
    let results: Vec<_> = results.collect();
    let outputs: Vec<_> = results.iter().filter_map(|result| Some(result.outputs.first()?.1)).collect();
    let shown = |text: String, is_known: bool| if is_known { text } else { String::new() };
    let rows = outputs.iter().map(|output| output.rows).sum::<u64>().to_string();
    let bytes = display::bytes(outputs.iter().map(|output| output.bytes).sum());
    let rejects = results.iter().map(|result| result.rejects()).sum::<u64>().to_string();
    let artifact = match outputs[..] {
        [output] if told.len() == 1 => output.id.digest().short(),
        _ => String::new(),
    };
    let (has_output, has_result) = (!outputs.is_empty(), !results.is_empty());
    vec![
        name,
        operator,
        status,
        shown(rows, has_output),
        shown(bytes, has_output),
        shown(rejects, has_result),
        artifact,
    ]
}

fn word(node: &Node, status: &NodeStatus) -> &'static str {
    match status {
        NodeStatus::Cached { released, .. } if !released.is_empty() => "released",
        _ => crate::display::planned::words(node.id(), status).0,
    }
}
