//! `status`: lists which nodes are up to date, and their outputs.

use searchmill_engine::{Failure, Node, NodeStatus, RunOptions, Session};
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
    if terminal.is_json() {
        for (index, status) in &survey.nodes {
            let Some(node) = plan.get(*index) else { continue };
            let result = if let NodeStatus::Cached { result, .. } = status { Some(result) } else { None };
            terminal.json(&json!({"node": node.id(), "status": word(node, status), "result": result}));
        }
        return Ok(OK);
    }
    // A loop may end many rounds early: their nodes would fill the screen.
    let shown = survey.nodes.iter().filter(|(_, status)| !status.is_after_the_end());
    let mut rows = Vec::new();
    for group in folded(plan, shown.map(|(index, _)| *index), args.all) {
        let places = group.places.iter();
        let rounds: Vec<_> = places.filter_map(|at| Some((plan.get(*at)?, survey.nodes.get(at)?))).collect();
        rows.push(row(group.name, &rounds));
    }
    terminal.table(&["node", "operator", "status", "rows", "size", "rejects", "artifact"], &rows);
    super::plan::print_loops(terminal, &survey);
    Ok(OK)
}

/// Formats a node, or the rounds of one: how many of each status, and the rows, bytes and rejects of all.
fn row(name: String, rounds: &[(&Node, &NodeStatus)]) -> Vec<String> {
    let operator = rounds.first().map(|(node, _)| node.entry.name.to_owned()).unwrap_or_default();
    let status = match rounds {
        [(node, status)] => word(node, status).to_owned(),
        _ => display::rounds::counted(rounds.iter().map(|(node, status)| word(node, status))),
    };
    let (mut rows, mut bytes, mut rejects) = (0, 0, 0);
    let (mut outputs, mut has_result) = (Vec::new(), false);
    for (_, status) in rounds {
        let NodeStatus::Cached { result, .. } = status else { continue };
        has_result = true;
        rejects += result.rejects();
        // The first output is the main one.
        if let Some((_, output)) = result.outputs.first() {
            rows += output.rows;
            bytes += output.bytes;
            outputs.push(output);
        }
    }
    let artifact = match outputs[..] {
        [output] if rounds.len() == 1 => output.id.digest().short(),
        _ => String::new(),
    };
    // Nothing stored is an empty cell: 0 would be the size of an empty table.
    let (rows, bytes) = match outputs[..] {
        [] => (String::new(), String::new()),
        _ => (rows.to_string(), display::bytes(bytes)),
    };
    let rejects = if has_result { rejects.to_string() } else { String::new() };
    vec![name, operator, status, rows, bytes, rejects, artifact]
}

fn word(node: &Node, status: &NodeStatus) -> &'static str {
    match status {
        NodeStatus::Cached { released, .. } if !released.is_empty() => "released",
        _ => crate::display::planned::words(node.id(), status).0,
    }
}
