//! Gathers the rows of a node with a matrix: where an input takes one table and is given all variants of a node, a node
//! in between makes one table of them, with a column for each key of the matrix.

use std::collections::BTreeMap;

use super::edges::port_of;
use crate::diagnostic::Span;
use crate::node_id::NodeId;
use crate::operator::{Accept, Arity, OperatorEntry, OutputType, PortType, Ports};
use crate::spec::{Binding, Coordinate, Key, NodeSpec, Reference, Spanned, Value};

/// The param with the gathered tables.
pub(super) const TABLES: &str = "tables";

/// Binds such inputs to nodes that gather, and returns these. `ports`: those of the nodes that are bound.
pub(super) fn gather(nodes: &mut [NodeSpec], ports: &[Option<&Ports>], entry: &OperatorEntry) -> Vec<NodeSpec> {
    let mut variants: Variants<'_> = BTreeMap::new();
    for (node, ports) in nodes.iter().zip(ports) {
        if let Some(ports) = ports
            && !node.matrix.is_empty()
        {
            variants.insert(node.id.clone(), Variant { coordinates: node.matrix.clone(), ports });
        }
    }
    let mut gathering: BTreeMap<String, NodeSpec> = BTreeMap::new();
    for (node, ports) in nodes.iter_mut().zip(ports) {
        let takes: Vec<_> = node.from.iter().map(|binding| takes(node, *ports, binding)).collect();
        for (binding, takes) in node.from.iter_mut().zip(takes) {
            let Some(takes) = takes else { continue };
            let mut references = Vec::with_capacity(binding.references.len());
            // The variants of one written reference stand side by side.
            for group in binding.references.chunk_by(|one, next| one.span == next.span && one.gathers == next.gathers) {
                let Some(reference) = gathered(group, &variants, takes) else {
                    references.extend_from_slice(group);
                    continue;
                };
                let id = reference.node.as_str();
                // Several nodes may read the same variants: they share one table.
                if !gathering.contains_key(id) {
                    gathering.insert(id.to_owned(), node_of(id.into(), group, &variants, entry));
                }
                references.push(reference);
            }
            binding.references = references;
        }
    }
    gathering.into_values().collect()
}

/// The nodes of matrices that are bound.
type Variants<'p> = BTreeMap<NodeId, Variant<'p>>;

struct Variant<'p> {
    coordinates: Vec<Coordinate>,
    ports: &'p Ports,
}

/// Returns the reference that takes the place of references to several variants; `None`: they stay.
fn gathered(group: &[Reference], variants: &Variants<'_>, takes: Arity) -> Option<Reference> {
    let first = group.first()?;
    let gathers = first.gathers.as_ref()?;
    // For an input that takes several tables, they are gathered only if `@all` is written.
    if matches!(takes, Arity::Many | Arity::AnyNumber) && !gathers.stated {
        return None;
    }
    for reference in group {
        let variant = variants.get(reference.node.as_str())?;
        let outputs = &variant.ports.outputs;
        let output = match &reference.port {
            Some(name) => outputs.iter().find(|output| output.name == *name),
            None => outputs.first(),
        };
        // Every node has rejects, which are not declared.
        if output.is_some_and(|output| matches!(output.output, OutputType::Fixed(PortType::Tree(_)))) {
            return None;
        }
    }
    let default = variants.get(first.node.as_str()).and_then(|variant| variant.ports.outputs.first());
    let port = first.port.as_deref().filter(|port| default.is_none_or(|default| default.name != *port));
    // `hits@all`; for another output than the first one, `hits.rejects@all`.
    let id = match (gathers.id.split_once('@'), port) {
        (Some((base, rest)), Some(port)) => format!("{base}.{port}@{rest}"),
        _ => gathers.id.to_string(),
    };
    Some(Reference::to(id, first.span))
}

/// Returns how many tables the input of a binding takes; `None`: it takes a folder, or is unknown.
fn takes(node: &NodeSpec, ports: Option<&Ports>, binding: &Binding) -> Option<Arity> {
    let port = port_of(node, ports?, binding).ok()?;
    (!matches!(port.accept, Accept::Tree(_))).then_some(port.arity)
}

fn node_of(id: NodeId, group: &[Reference], variants: &Variants<'_>, entry: &OperatorEntry) -> NodeSpec {
    let span = group[0].span;
    let (mut columns, mut tables, mut from) = (Vec::new(), Vec::new(), Vec::new());
    for (position, reference) in group.iter().enumerate() {
        let name = variant_of(&reference.node);
        let mut values = Vec::new();
        if let Some(variant) = variants.get(reference.node.as_str()) {
            for coordinate in &variant.coordinates {
                // A scalar stands for itself; a named value, a list or a map is known by its name.
                let is_by_name = matches!(coordinate.value.value, Value::List(_) | Value::Map(_));
                if coordinate.is_named || is_by_name {
                    values.push(text(&coordinate.name, span));
                } else {
                    values.push(Spanned { span, via: None, ..coordinate.value.clone() });
                }
                // All variants have the same keys.
                if position == 0 {
                    columns.push(text(&coordinate.key, span));
                }
            }
        }
        tables.push(map(vec![("name", text(name, span)), ("values", list(values, span))], span));
        from.push(Binding { port: Some(name.to_owned()), port_span: span, references: vec![reference.clone()] });
    }
    let with = map(vec![("columns", list(columns, span)), (TABLES, list(tables, span))], span);
    NodeSpec {
        id,
        id_span: span,
        operator: entry.name.to_owned(),
        operator_span: span,
        from,
        from_span: Some(span),
        with,
        ..NodeSpec::default()
    }
}

/// Returns the coordinates of a node as they stand in its id, which name its table.
pub(super) fn variant_of(id: &str) -> &str {
    id.split_once('@').map_or(id, |(_, coordinates)| coordinates)
}

fn text(text: &str, span: Span) -> Spanned {
    Spanned::new(Value::String(text.to_owned()), span)
}

fn list(items: Vec<Spanned>, span: Span) -> Spanned {
    Spanned::new(Value::List(items), span)
}

fn map(entries: Vec<(&str, Spanned)>, span: Span) -> Spanned {
    let entries = entries.into_iter().map(|(key, value)| (Key { text: key.to_owned(), span }, value));
    Spanned::new(Value::Map(entries.collect()), span)
}
