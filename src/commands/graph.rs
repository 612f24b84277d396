//! `graph`: prints the DAG as a drawing or as data.

use std::collections::{BTreeMap, BTreeSet};

use searchmill_engine::{Failure, Input, Plan, Session};
use serde_json::json;

use super::pipeline;
use crate::args::{GraphArgs, GraphFormat};
use crate::display::rounds::{Group, folded};
use crate::display::{Drawing, Terminal};
use crate::exit::OK;

pub(super) fn graph(terminal: &Terminal, session: &Session, args: &GraphArgs) -> Result<u8, Failure> {
    let plan = pipeline::check(session, &args.pipeline)?.plan;
    let format = if terminal.is_json() { GraphFormat::Json } else { args.format };
    let text = match format {
        GraphFormat::Mermaid => drawing(&plan, args.all).mermaid(),
        GraphFormat::Dot => drawing(&plan, args.all).dot(),
        GraphFormat::Json => serde_json::to_string_pretty(&as_json(&plan)).unwrap_or_default(),
    };
    terminal.line(text.trim_end());
    Ok(OK)
}

/// Returns the edges: maker, input and reader.
fn edges(plan: &Plan) -> impl Iterator<Item = (usize, &Input, usize)> {
    let nodes = plan.nodes.iter().enumerate();
    nodes.flat_map(|(to, node)| node.inputs.iter().map(move |input| (input.node, input, to)))
}

/// Draws the plan. Without `all`, the rounds of a node are one node, and what a round hands on to the next one leads back.
fn drawing(plan: &Plan, all: bool) -> Drawing {
    let groups = folded(plan, 0..plan.nodes.len(), all);
    let operator = |group: &Group| group.places.first().map(|place| plan.nodes[*place].entry.name.to_owned());
    let nodes = groups.iter().map(|group| (group.name.clone(), operator(group).unwrap_or_default())).collect();
    let members = groups.iter().enumerate().flat_map(|(at, group)| group.places.iter().map(move |place| (*place, at)));
    let group_of: BTreeMap<usize, usize> = members.collect();
    let (mut seen, mut drawn) = (BTreeSet::new(), Vec::new());
    for (from, input, to) in edges(plan) {
        let edge = (group_of[&from], group_of[&to], input.output.clone());
        if all || seen.insert(edge.clone()) {
            drawn.push(edge);
        }
    }
    Drawing { title: "pipeline", quote: "", nodes, edges: drawn }
}

fn as_json(plan: &Plan) -> serde_json::Value {
    let id = |place: usize| plan.nodes[place].id();
    let nodes: Vec<_> = plan.nodes.iter().map(|node| json!({"id": node.id(), "operator": node.entry.name})).collect();
    let edge = |(from, input, to): (usize, &Input, usize)| {
        let kind = input.port_type.to_string();
        json!({"from": id(from), "to": id(to), "port": input.output, "type": kind})
    };
    let edges: Vec<_> = edges(plan).map(edge).collect();
    json!({"pipeline": plan.name, "nodes": nodes, "edges": edges})
}
