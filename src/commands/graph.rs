//! `graph`: prints the DAG as a drawing or as data.

use searchmill_engine::{Failure, Input, Plan, Session};
use serde_json::json;

use super::pipeline;
use crate::args::{GraphArgs, GraphFormat};
use crate::display::{Drawing, Terminal};
use crate::exit::OK;

pub(super) fn graph(terminal: &Terminal, session: &Session, args: &GraphArgs) -> Result<u8, Failure> {
    let plan = pipeline::check(session, &args.pipeline)?.plan;
    let format = if terminal.is_json() { GraphFormat::Json } else { args.format };
    let text = match format {
        GraphFormat::Mermaid => drawing(&plan).mermaid(),
        GraphFormat::Dot => drawing(&plan).dot(),
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

fn drawing(plan: &Plan) -> Drawing {
    let nodes = plan.nodes.iter().map(|node| (node.id().to_owned(), node.entry.name.to_owned())).collect();
    let edges = edges(plan).map(|(from, input, to)| (from, to, input.output.clone())).collect();
    Drawing { title: "pipeline", quote: "", nodes, edges }
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
