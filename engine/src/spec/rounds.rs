//! Loops after unrolling: what their last rounds hand on, and references to it.

use std::collections::BTreeMap;

use super::coordinate::base;
use super::field::Problems;
use super::pipeline::{NodeSpec, Reference};
use super::suggest;
use crate::diagnostic::{Diagnostic, Span};

/// Name of the coordinate of a round.
pub(super) const ROUND: &str = "round";

/// A loop after unrolling: what its last round hands on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Loop {
    pub(super) name: String,
    pub(super) span: Span,
    /// Its last round, counted from 0.
    pub(super) last: u64,
    /// What a round carries to the next one, by name: the reference to an output.
    pub(super) next: BTreeMap<String, String>,
}

/// Returns the output that a reference to a loop (`rl.policy`) stands for: that of its last round.
pub(super) fn output(repeats: &Loop, reference: &Reference, node: &NodeSpec) -> Result<Reference, Diagnostic> {
    let name = &repeats.name;
    if node.matrix.iter().any(|coordinate| coordinate.repeats.as_ref() == Some(name)) {
        let fault = bad(
            reference.span,
            format!("`{}` is what the loop `{name}` ends with, and `{}` is part of it", reference.node, base(&node.id)),
        );
        return Err(fault.help("name what the round starts from without the name of the loop"));
    }
    let names: Vec<&str> = repeats.next.keys().map(String::as_str).collect();
    let wanted = reference.node.strip_prefix(name.as_str()).and_then(|rest| rest.strip_prefix('.')).unwrap_or_default();
    let Some(text) = repeats.next.get(wanted) else {
        let fault = bad(reference.span, format!("`{}` is nothing that the loop `{name}` carries", reference.node));
        let near = suggest::closest(wanted, names.iter().copied()).or(names.first().copied());
        return Err(fault.help_some(near.map(|near| format!("write `{name}.{near}` for what its last round hands on"))));
    };
    Ok(Reference { node: text.clone(), round: Some(repeats.last), ..reference.clone() })
}

/// Reports loops that have the name of a node or of another loop.
pub(super) fn check_names(loops: &[Loop], nodes: &[NodeSpec], problems: &mut Problems) {
    let ids: BTreeMap<&str, Span> = nodes.iter().map(|node| (base(&node.id), node.id_span)).collect();
    let mut seen: BTreeMap<&str, Span> = BTreeMap::new();
    for repeats in loops {
        let name = repeats.name.as_str();
        let first = ids.get(name).copied().or_else(|| seen.insert(name, repeats.span));
        if let Some(first) = first {
            let fault = Diagnostic::error("duplicate-node", format!("a node or loop `{name}` is there already"));
            problems.push(fault.at(repeats.span, "again here").at(first, "first here").help("rename one of them"));
        }
    }
}

/// An error in a loop.
pub(super) fn bad(span: Span, message: String) -> Diagnostic {
    Diagnostic::error("bad-repeat", message).at(span, "")
}
