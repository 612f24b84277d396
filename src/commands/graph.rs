//! `graph`: prints the DAG as a drawing or as data.

use std::collections::BTreeSet;

use searchmill_engine::{Failure, Input, Node, NodeStatus, Pipeline, Plan, RunOptions, Session};
use serde_json::json;

use super::pipeline;
use crate::args::{GraphArgs, GraphFormat};
use crate::display::{Drawing, Terminal};
use crate::exit::OK;

pub(super) fn graph(terminal: &Terminal, session: &Session, args: &GraphArgs) -> Result<u8, Failure> {
    let checked = pipeline::check(session, &args.pipeline)?;
    let ended = ended(session, &checked)?;
    let plan = checked.plan;
    let format = if terminal.is_json() { GraphFormat::Json } else { args.format };
    let text = match format {
        GraphFormat::Mermaid => drawing(&plan, &ended).mermaid(),
        GraphFormat::Dot => drawing(&plan, &ended).dot(),
        GraphFormat::Json => serde_json::to_string_pretty(&as_json(&plan, &ended)).unwrap_or_default(),
    };
    terminal.line(text.trim_end());
    Ok(OK)
}

/// Returns the edges: maker, input and reader.
fn edges(plan: &Plan) -> impl Iterator<Item = (usize, &Input, usize)> {
    let nodes = plan.nodes.iter().enumerate();
    nodes.flat_map(|(to, node)| node.inputs.iter().map(move |input| (input.node, input, to)))
}

/// Returns the nodes that do not run because a loop ended before them. Reads the store only if there is such a loop.
fn ended(session: &Session, checked: &Pipeline) -> Result<BTreeSet<usize>, Failure> {
    if checked.plan.loops().iter().all(|repeats| !repeats.stops) {
        return Ok(BTreeSet::new());
    }
    let survey = session.survey(checked, &RunOptions::default())?;
    let ended = survey.nodes.iter().filter(|(_, status)| matches!(status, NodeStatus::Ended { .. }));
    Ok(ended.map(|(place, _)| *place).collect())
}

fn drawing(plan: &Plan, ended: &BTreeSet<usize>) -> Drawing {
    let shown: Vec<usize> = (0..plan.nodes.len()).filter(|place| !ended.contains(place)).collect();
    let node = |place: &usize| (plan.nodes[*place].id().to_owned(), plan.nodes[*place].entry.name.to_owned());
    let at = |place: usize| shown.binary_search(&place).ok();
    let edges = edges(plan).filter_map(|(from, input, to)| Some((at(from)?, at(to)?, input.output.clone())));
    Drawing { title: "pipeline", quote: "", nodes: shown.iter().map(node).collect(), edges: edges.collect() }
}

fn as_json(plan: &Plan, ended: &BTreeSet<usize>) -> serde_json::Value {
    let id = |place: usize| plan.nodes[place].id();
    let node = |(place, node): (usize, &Node)| {
        let mut told = json!({"id": node.id(), "operator": node.entry.name});
        if ended.contains(&place) {
            told["ended"] = json!(true);
        }
        told
    };
    let nodes: Vec<_> = plan.nodes.iter().enumerate().map(node).collect();
    let edge = |(from, input, to): (usize, &Input, usize)| {
        let kind = input.port_type.to_string();
        json!({"from": id(from), "to": id(to), "port": input.output, "type": kind})
    };
    let edges: Vec<_> = edges(plan).map(edge).collect();
    json!({"pipeline": plan.name, "nodes": nodes, "edges": edges})
}
