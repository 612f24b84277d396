//! `graph`: prints the DAG as a drawing or as data.

use std::fmt::Write;

use searchmill_engine::{Failure, Input, Plan, Session};
use serde_json::json;

use super::pipeline;
use crate::args::{GraphArgs, GraphFormat};
use crate::display::Terminal;
use crate::exit::OK;

pub(super) fn graph(terminal: &Terminal, session: &Session, args: &GraphArgs) -> Result<u8, Failure> {
    let plan = pipeline::check(session, &args.pipeline)?.plan;
    let format = if terminal.is_json() { GraphFormat::Json } else { args.format };
    let text = match format {
        GraphFormat::Mermaid => mermaid(&plan),
        GraphFormat::Dot => dot(&plan),
        GraphFormat::Json => serde_json::to_string_pretty(&as_json(&plan)).unwrap_or_default(),
    };
    terminal.line(text.trim_end());
    Ok(OK)
}

struct Edge<'a> {
    from: usize,
    to: usize,
    label: &'a str,
    kind: String,
}

fn edges(plan: &Plan) -> impl Iterator<Item = Edge<'_>> {
    plan.nodes().iter().enumerate().flat_map(|(to, node)| {
        let edge = move |input: &'_ Input| (input.node, to, input.port_type.to_string());
        node.inputs.iter().map(move |input| {
            let (from, to, kind) = edge(input);
            Edge { from, to, label: input.output.as_str(), kind }
        })
    })
}

fn mermaid(plan: &Plan) -> String {
    let mut text = "flowchart TD\n".to_owned();
    for (place, node) in plan.nodes().iter().enumerate() {
        let id = node.id().replace('"', "'");
        writeln!(text, "  n{place}[\"{id}<br/><small>{}</small>\"]", node.entry.name).unwrap_or_default();
    }
    for edge in edges(plan) {
        writeln!(text, "  n{} -->|{}| n{}", edge.from, edge.label, edge.to).unwrap_or_default();
    }
    text
}

fn dot(plan: &Plan) -> String {
    let mut text = "digraph pipeline {\n  node [shape=box, fontname=\"sans-serif\"];\n".to_owned();
    for (place, node) in plan.nodes().iter().enumerate() {
        let id = node.id().replace('"', "'");
        writeln!(text, "  n{place} [label=\"{id}\\n{}\"];", node.entry.name).unwrap_or_default();
    }
    for edge in edges(plan) {
        writeln!(text, "  n{} -> n{} [label=\"{}\"];", edge.from, edge.to, edge.label).unwrap_or_default();
    }
    text.push_str("}\n");
    text
}

fn as_json(plan: &Plan) -> serde_json::Value {
    let id = |place: usize| plan.nodes()[place].id();
    let nodes: Vec<_> = plan.nodes().iter().map(|node| json!({"id": node.id(), "operator": node.entry.name})).collect();
    let edges: Vec<_> = edges(plan)
        .map(|edge| json!({"from": id(edge.from), "to": id(edge.to), "port": edge.label, "type": edge.kind}))
        .collect();
    json!({"pipeline": plan.name(), "nodes": nodes, "edges": edges})
}
