//! Gathers the rows of a node with a matrix: where an input takes one table and is given all variants of a node, a node
//! in between makes one table of them, with a column for each key of the matrix.

use std::collections::BTreeMap;

use super::edges::port_of;
use crate::diagnostic::Span;
use crate::node_id::NodeId;
use crate::operator::{Accept, Arity, OperatorEntry, OutputType, PortType, Ports, RetryPolicy};
use crate::spec::{Binding, Coordinate, Gathers, Key, NodeSpec, OnError, Reference, Resources, Spanned, Value};

/// The param with the gathered tables.
pub(super) const TABLES: &str = "tables";

/// Binds such inputs to nodes that gather, and returns these. `ports`: those of the nodes that are bound.
pub(super) fn gather(nodes: &mut [NodeSpec], ports: &[Option<&Ports>], entry: &OperatorEntry) -> Vec<NodeSpec> {
    let of_matrices = nodes.iter().zip(ports.iter().copied()).filter(|(node, _)| !node.matrix.is_empty());
    let variants: Variants<'_> =
        of_matrices.filter_map(|(node, ports)| Some((node.id.clone(), (node.matrix.clone(), ports?)))).collect();
    let mut made = BTreeMap::new();
    for (node, ports) in nodes.iter_mut().zip(ports) {
        let taken: Vec<_> = node.from.iter().map(|binding| taken(node, *ports, binding)).collect();
        for (binding, taken) in node.from.iter_mut().zip(taken) {
            let Some(only_stated) = taken else { continue };
            let written = binding.references.chunk_by(|one, next| one.span == next.span && one.gathers == next.gathers);
            let bind = |group: &[Reference]| match gathered(group, &variants, only_stated) {
                None => group.to_vec(),
                Some(reference) => {
                    let node = || node_of(reference.node.as_str().into(), group, &variants, entry);
                    made.entry(reference.node.clone()).or_insert_with(node);
                    vec![reference]
                }
            };
            binding.references = written.flat_map(bind).collect();
        }
    }
    made.into_values().collect()
}

/// The nodes of matrices that are bound, with their coordinates and ports.
type Variants<'p> = BTreeMap<NodeId, (Vec<Coordinate>, &'p Ports)>;

/// Returns the reference that takes the place of references to several variants; `None`: they stay.
fn gathered(group: &[Reference], variants: &Variants<'_>, only_stated: bool) -> Option<Reference> {
    let first = group.first()?;
    let gathers = first.gathers.as_ref().filter(|gathers| gathers.stated || !only_stated)?;
    let gives_rows = |reference: &Reference| {
        variants.get(reference.node.as_str()).is_some_and(|(_, ports)| is_table(reference, ports))
    };
    if !group.iter().all(gives_rows) {
        return None;
    }
    let default = variants.get(first.node.as_str()).and_then(|(_, ports)| ports.outputs.first());
    let port = first.port.as_deref().filter(|port| default.is_none_or(|default| default.name != *port));
    Some(Reference::to(id_of(gathers, port).into(), first.span))
}

/// Whether a binding can take a gathered table; `Some(true)`: it takes several tables, so that `@all` must be written.
fn taken(node: &NodeSpec, ports: Option<&Ports>, binding: &Binding) -> Option<bool> {
    let port = port_of(node, ports?, binding).ok()?;
    let many = matches!(port.arity, Arity::Many | Arity::AnyNumber);
    (!matches!(port.accept, Accept::Tree(_))).then_some(many)
}

/// Whether the output is a table.
fn is_table(reference: &Reference, ports: &Ports) -> bool {
    let named = |name: &String| ports.outputs.iter().find(|output| output.name == *name);
    let output = reference.port.as_ref().map_or_else(|| ports.outputs.first(), named);
    // Every node has rejects, which are not declared.
    output.is_none_or(|output| !matches!(output.output, OutputType::Fixed(PortType::Tree(_))))
}

/// Returns the id of the node that gathers: `hits@all`, for another output than the first one `hits.rejects@all`.
fn id_of(gathers: &Gathers, port: Option<&str>) -> NodeId {
    match (gathers.id.split_once('@'), port) {
        (Some((base, rest)), Some(port)) => format!("{base}.{port}@{rest}").into(),
        _ => gathers.id.clone(),
    }
}

fn node_of(id: NodeId, group: &[Reference], variants: &Variants<'_>, entry: &OperatorEntry) -> NodeSpec {
    let span = group[0].span;
    let coordinates = |reference: &Reference| variants.get(reference.node.as_str()).map_or(&[][..], |(found, _)| found);
    let columns = coordinates(&group[0]).iter().map(|coordinate| text(&coordinate.key, span)).collect();
    let named = |reference: &Reference| {
        let values = coordinates(reference).iter().map(|coordinate| cell(coordinate, span)).collect();
        map(vec![("name", text(variant(reference), span)), ("values", list(values, span))], span)
    };
    let tables = group.iter().map(named).collect();
    let with = map(vec![("columns", list(columns, span)), (TABLES, list(tables, span))], span);
    let binding = |reference: &Reference| Binding {
        port: Some(variant(reference).to_owned()),
        port_span: span,
        references: vec![reference.clone()],
    };
    NodeSpec {
        id,
        id_span: span,
        operator: entry.name.to_owned(),
        operator_span: span,
        from: group.iter().map(binding).collect(),
        from_span: Some(span),
        with,
        services: Vec::new(),
        resources: Resources::default(),
        retry: RetryPolicy::default(),
        on_error: OnError::default(),
        settings: Vec::new(),
        freeze: false,
        seed: 0,
        matrix: Vec::new(),
        keep: None,
        checks: Vec::new(),
    }
}

/// Returns the coordinates of a variant as they stand in its id.
fn variant(reference: &Reference) -> &str {
    variant_of(&reference.node)
}

/// Returns the coordinates of a node as they stand in its id, which name its table.
pub(super) fn variant_of(id: &str) -> &str {
    id.split_once('@').map_or(id, |(_, coordinates)| coordinates)
}

/// Returns the name of a table in the params of a node that gathers.
pub(super) fn name_of_table(table: &serde_json::Value) -> Option<&str> {
    table["name"].as_str()
}

/// Returns the value of a column: a scalar itself, a named value, a list or a map by its name.
fn cell(coordinate: &Coordinate, span: Span) -> Spanned {
    if coordinate.is_named || matches!(coordinate.value.value, Value::List(_) | Value::Map(_)) {
        return text(&coordinate.name, span);
    }
    Spanned { span, via: None, ..coordinate.value.clone() }
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
