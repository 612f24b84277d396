//! `graph`: prints the DAG as a drawing or as data.

use std::collections::{BTreeMap, BTreeSet};

use searchmill_engine::{Failure, NodeIndex, NodeStatus, Plan, RunOptions, Session};
use serde_json::json;

use super::pipeline;
use crate::args::{GraphArgs, GraphFormat};
use crate::display::rounds::folded;
use crate::display::{Drawing, Terminal};
use crate::exit::OK;

pub(super) fn graph(terminal: &Terminal, session: &Session, args: &GraphArgs) -> Result<u8, Failure> {
    let checked = pipeline::check(session, &args.pipeline)?;
    // Nodes that do not run because a loop ended before them. Reads the store only if there is such a loop.
    let mut ended = BTreeSet::new();
    if checked.plan.loops().iter().any(|repeats| repeats.stops) {
        for (index, status) in session.survey(&checked, &RunOptions::default())?.nodes {
            if matches!(status, NodeStatus::Ended { .. }) {
                ended.insert(index);
            }
        }
    }
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

/// Draws the plan. Without `all`, the rounds of a node are one node, and what a round hands on to the next one leads back.
fn drawing(plan: &Plan, ended: &BTreeSet<NodeIndex>, all: bool) -> Drawing {
    let mut nodes = Vec::new();
    let mut group_of = BTreeMap::new();
    for group in folded(plan, plan.indices().filter(|index| !ended.contains(index)), all) {
        let operator = group.places.first().map(|index| plan[*index].entry.name.to_owned()).unwrap_or_default();
        for index in group.places {
            group_of.insert(index, nodes.len());
        }
        nodes.push((group.name, operator));
    }
    let (mut seen, mut drawn) = (BTreeSet::new(), Vec::new());
    for (reader, node) in plan.indexed() {
        for input in &node.inputs {
            // What a loop hands on is read from a round that ran.
            let maker = [input.node].into_iter().chain(plan.may_read(input)).find_map(|maker| group_of.get(&maker));
            // Nodes after the end of a loop are not drawn: their edges neither.
            let (Some(from), Some(to)) = (maker, group_of.get(&reader)) else { continue };
            let edge = (*from, *to, input.output.clone());
            // The rounds of folded nodes have the same edge many times.
            if all || seen.insert(edge.clone()) {
                drawn.push(edge);
            }
        }
    }
    Drawing { title: "pipeline", quote: "", nodes, edges: drawn }
}

fn as_json(plan: &Plan, ended: &BTreeSet<NodeIndex>) -> serde_json::Value {
    let (mut nodes, mut edges) = (Vec::new(), Vec::new());
    for (index, node) in plan.indexed() {
        let mut shown = json!({"id": node.id(), "operator": node.entry.name});
        if ended.contains(&index) {
            shown["ended"] = json!(true);
        }
        nodes.push(shown);
        for input in &node.inputs {
            let (from, kind) = (plan[input.node].id(), input.port_type.to_string());
            edges.push(json!({"from": from, "to": node.id(), "port": input.output, "type": kind}));
        }
    }
    json!({"pipeline": plan.name, "nodes": nodes, "edges": edges})
}
