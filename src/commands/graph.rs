//! `graph`: prints the DAG as a drawing or as data.

use std::collections::{BTreeMap, BTreeSet};

use searchmill_engine::{Failure, Input, Node, NodeIndex, NodeStatus, Pipeline, Plan, RunOptions, Session};
use serde_json::json;

use super::pipeline;
use crate::args::{GraphArgs, GraphFormat};
use crate::display::rounds::{Group, folded};
use crate::display::{Drawing, Terminal};
use crate::exit::OK;

pub(super) fn graph(terminal: &Terminal, session: &Session, args: &GraphArgs) -> Result<u8, Failure> {
    let checked = pipeline::check(session, &args.pipeline)?;
    let ended = ended(session, &checked)?;
    let plan = checked.plan;
    let format = if terminal.is_json() { GraphFormat::Json } else { args.format };
    let text = match format {
        GraphFormat::Mermaid => drawing(&plan, &ended, args.all).mermaid(),
        GraphFormat::Dot => drawing(&plan, &ended, args.all).dot(),
        GraphFormat::Json => serde_json::to_string_pretty(&as_json(&plan, &ended)).unwrap_or_default(),
    };
    terminal.line(text.trim_end());
    Ok(OK)
}

/// Returns the edges: maker, input and reader.
fn edges(plan: &Plan) -> impl Iterator<Item = (NodeIndex, &Input, NodeIndex)> {
    plan.indexed().flat_map(|(to, node)| node.inputs.iter().map(move |input| (input.node, input, to)))
}

/// Returns the nodes that do not run because a loop ended before them. Reads the store only if there is such a loop.
fn ended(session: &Session, checked: &Pipeline) -> Result<BTreeSet<NodeIndex>, Failure> {
    if checked.plan.loops().iter().all(|repeats| !repeats.stops) {
        return Ok(BTreeSet::new());
    }
    let survey = session.survey(checked, &RunOptions::default())?;
    let ended = survey.nodes.iter().filter(|(_, status)| matches!(status, NodeStatus::Ended { .. }));
    Ok(ended.map(|(place, _)| *place).collect())
}

/// Draws the plan. Without `all`, the rounds of a node are one node, and what a round hands on to the next one leads back.
fn drawing(plan: &Plan, ended: &BTreeSet<NodeIndex>, all: bool) -> Drawing {
    let shown = plan.indices().filter(|place| !ended.contains(place));
    let groups = folded(plan, shown, all);
    let operator = |group: &Group| group.places.first().map(|place| plan[*place].entry.name.to_owned());
    let nodes = groups.iter().map(|group| (group.name.clone(), operator(group).unwrap_or_default())).collect();
    let members = groups.iter().enumerate().flat_map(|(at, group)| group.places.iter().map(move |place| (*place, at)));
    let group_of: BTreeMap<NodeIndex, usize> = members.collect();
    let (mut seen, mut drawn) = (BTreeSet::new(), Vec::new());
    for (from, input, to) in edges(plan) {
        // What a loop hands on is read from a round that ran.
        let maker = [from].into_iter().chain(plan.may_read(input)).find_map(|maker| group_of.get(&maker));
        let Some((from, to)) = maker.zip(group_of.get(&to)) else { continue };
        let edge = (*from, *to, input.output.clone());
        if all || seen.insert(edge.clone()) {
            drawn.push(edge);
        }
    }
    Drawing { title: "pipeline", quote: "", nodes, edges: drawn }
}

fn as_json(plan: &Plan, ended: &BTreeSet<NodeIndex>) -> serde_json::Value {
    let id = |node: NodeIndex| plan[node].id();
    let node = |(place, node): (NodeIndex, &Node)| {
        let mut told = json!({"id": node.id(), "operator": node.entry.name});
        if ended.contains(&place) {
            told["ended"] = json!(true);
        }
        told
    };
    let nodes: Vec<_> = plan.indexed().map(node).collect();
    let edge = |(from, input, to): (NodeIndex, &Input, NodeIndex)| {
        let kind = input.port_type.to_string();
        json!({"from": id(from), "to": id(to), "port": input.output, "type": kind})
    };
    let edges: Vec<_> = edges(plan).map(edge).collect();
    json!({"pipeline": plan.name, "nodes": nodes, "edges": edges})
}
