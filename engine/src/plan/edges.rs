//! The checks of edges: ports exist, types match, required inputs are bound, and no binding is unused.

use indexmap::IndexMap;

use super::graph::Input;
use crate::diagnostic::{Diagnostic, Span};
use crate::operator::{Accept, Arity, InputPort, OutputType, PortType, Ports, TreeKind};
use crate::spec::{Binding, NodeSpec, Reference, service_of, suggest};

/// A resolved reference, and how it was written.
pub(super) struct Edge {
    pub(super) input: Input,
    pub(super) span: Span,
    pub(super) written: String,
}

/// Returns the port of a binding, or the error.
pub(super) fn port_of(node: &NodeSpec, ports: &Ports, binding: &Binding) -> Result<InputPort, Box<Diagnostic>> {
    let operator = &node.operator;
    if let Some(accept) = &ports.named_inputs {
        let name = binding.port.clone().unwrap_or_else(|| "input".to_owned());
        // Inputs of services stand among those of the node.
        if service_of(&name).is_some() {
            let message = format!("`{name}` cannot be the name of an input: the inputs of services begin like this");
            return Err(Box::new(Diagnostic::error("unknown-port", message).at(binding.port_span, "")));
        }
        let (accept, arity, about) = (accept.clone(), Arity::One, String::new());
        return Ok(InputPort { name, accept, arity, about, rejects_of: None });
    }
    let found = match &binding.port {
        None => ports.inputs.first(),
        Some(name) => ports.inputs.iter().find(|port| port.name == *name),
    };
    let error = match (found, &binding.port) {
        (Some(port), _) => return Ok(port.clone()),
        (None, None) => {
            Diagnostic::error("unused-input", format!("`{operator}` takes no input")).help("remove `from:`")
        }
        (None, Some(name)) => {
            let names: Vec<&str> = ports.inputs.iter().map(|port| port.name.as_str()).collect();
            let error = Diagnostic::error("unknown-port", format!("`{operator}` has no input `{name}`"));
            error.help(suggest(name, &names, "its inputs"))
        }
    };
    Err(Box::new(error.at(binding.port_span, "")))
}

/// Checks one port's edges against what it accepts.
pub(super) fn check_edges(operator: &str, port: &InputPort, edges: &[Edge], span: Span, errors: &mut Vec<Diagnostic>) {
    if edges.len() > 1 && matches!(port.arity, Arity::One | Arity::Optional) {
        let message = format!("`{operator}` takes one artifact at `{}`, {} are given", port.name, edges.len());
        let given: Vec<String> = edges.iter().take(4).map(|edge| format!("`{}`", edge.written)).collect();
        let more = if edges.len() > given.len() { ", …" } else { "" };
        let matrix = matrix_of(edges).map(|node| format!(", or run this node for each: `matrix: {node}`"));
        let help = format!("name one of them: {}{more}{}", given.join(", "), matrix.unwrap_or_default());
        errors.push(Diagnostic::error("too-many-inputs", message).at(span, "").help(help));
    }
    if port.accept == Accept::Tree(TreeKind::Model)
        && !matches!(port.arity, Arity::One | Arity::Optional)
        && let Some(several) = edges.chunk_by(|one, other| one.span == other.span).find(|of_one| of_one.len() > 1)
    {
        let written = &several[0].written;
        let message =
            format!("one name stands for {} models at `{}`: `{written}` and others", several.len(), port.name);
        let help = format!(
            "name one of them: `{written}`; of a loop, what it hands on (`LOOP.NAME`); of a matrix, one variant, or give \
             this node the matrix too"
        );
        errors.push(Diagnostic::error("too-many-inputs", message).at(several[0].span, "").help(help));
    }
    for Edge { input, span, written } in edges.iter().filter(|edge| !port.accept.accepts(&edge.input.port_type)) {
        let message = format!("`{operator}` wants {}, but `{written}` gives {}", port.accept, input.port_type);
        let error = Diagnostic::error("port-kind", message).at(*span, input.port_type.to_string());
        errors.push(match &port.accept {
            Accept::Tree(_) => error.help(format!("put a node that makes {} in between", port.accept)),
            _ => error.help(format!("give `{}` a node that makes {}", port.name, port.accept)),
        });
    }
}

/// Returns the node whose matrix all edges come from.
fn matrix_of(edges: &[Edge]) -> Option<&str> {
    let (first, _) = edges.first()?.written.split_once('@')?;
    edges.iter().all(|edge| matches!(edge.written.split_once('@'), Some((node, _)) if node == first)).then_some(first)
}

/// Reports required ports that are not bound.
pub(super) fn check_missing(node: &NodeSpec, ports: &Ports, bound: &[&str], errors: &mut Vec<Diagnostic>) {
    for port in &ports.inputs {
        if matches!(port.arity, Arity::One | Arity::Many) && !bound.contains(&port.name.as_str()) {
            let message = format!("`{}` needs an input `{}` ({})", node.operator, port.name, port.accept);
            // Without `from:`, only the node itself has a place in the text.
            let span = node.from_span.unwrap_or(node.id_span);
            let error = Diagnostic::error("missing-input", message).at(span, "");
            errors.push(error.help(format!("add `from: {{{}: NODE}}`", port.name)));
        }
    }
    if ports.named_inputs.is_some() && !ports.optional_inputs && bound.is_empty() {
        let message = format!("`{}` needs at least one named input", node.operator);
        let error = Diagnostic::error("missing-input", message).at(node.id_span, "");
        errors.push(error.help("add `from: {name: NODE}`; the query then reads the table `name`"));
    }
}

/// Returns the output of a reference; with `equal` outputs, the reference must name one.
pub(super) fn output_of(
    reference: &Reference,
    outputs: &IndexMap<String, PortType>,
    equal: bool,
) -> Result<(String, PortType), Box<Diagnostic>> {
    let parts: Vec<&str> = outputs.keys().map(String::as_str).filter(|name| *name != "rejects").collect();
    if equal && reference.port.is_none() && parts.len() > 1 {
        let message = format!("`{}` has {} outputs, and none is the default one", reference.node, parts.len());
        let named: Vec<String> = parts.iter().map(|part| format!("`{}.{part}`", reference.node)).collect();
        let error = Diagnostic::error("unnamed-port", message).at(reference.span, "");
        return Err(Box::new(error.help(format!("write {}", named.join(" or ")))));
    }
    let (name, port_type) = find_output(&reference.node, outputs, reference.port.as_deref(), reference.span)?;
    Ok((name.clone(), port_type.clone()))
}

/// Returns the named output of a node, or the default one.
pub(super) fn find_output<'o>(
    node: &str,
    outputs: &'o IndexMap<String, PortType>,
    port: Option<&str>,
    at: Span,
) -> Result<(&'o String, &'o PortType), Box<Diagnostic>> {
    let found = port.map_or_else(|| outputs.first(), |port| outputs.get_key_value(port));
    found.ok_or_else(|| {
        let (port, names) = (port.unwrap_or_default(), outputs.keys().map(String::as_str).collect::<Vec<_>>());
        let error = Diagnostic::error("unknown-port", format!("`{node}` has no output `{port}`")).at(at, "");
        Box::new(error.help(suggest(port, &names, "its outputs")))
    })
}

/// Returns the output types for these inputs. Omits an output whose input is not bound.
pub(super) fn output_types(ports: &Ports, inputs: &[Input]) -> IndexMap<String, PortType> {
    let mut types = IndexMap::new();
    for output in &ports.outputs {
        let port_type = match &output.output {
            OutputType::Fixed(port_type) => Some(port_type),
            OutputType::SameAs(port) => inputs.iter().find(|input| input.port == *port).map(|input| &input.port_type),
        };
        types.extend(port_type.map(|port_type| (output.name.clone(), port_type.clone())));
    }
    let rejects = PortType::Rows(searchmill_schemas::RecordKind::Reject);
    // Every node has rejects, also one whose operator declares no such output.
    types.entry("rejects".to_owned()).or_insert(rejects);
    types
}
