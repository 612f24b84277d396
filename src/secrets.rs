//! Secrets that nodes need and that are not set: told before anything is paid for.

use std::collections::BTreeSet;

use searchmill_engine::diagnostic::Diagnostic;
use searchmill_engine::execute::{Request, not_known};
use searchmill_engine::plan::{Node, Plan};
use searchmill_engine::store::Store;

use crate::exit::Failure;
use crate::pipeline;

/// The value of a secret: an environment variable.
pub(crate) fn look_up(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Names of the secrets that a node refers to and that are not set.
pub(crate) fn unset(node: &Node) -> Vec<String> {
    node.secrets().into_iter().filter(|name| look_up(name).is_none()).collect()
}

/// In a sentence.
pub(crate) fn unset_words(node: &Node, names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let (word, verb) = if names.len() == 1 { ("secret", "is") } else { ("secrets", "are") };
    format!("`{}` needs the {word} {}, which {verb} not set", node.id(), quoted.join(" and "))
}

/// Nodes that are certain to run and would fail for want of a secret fail before anything runs.
pub(crate) fn check(
    plan: &Plan,
    store: &Store,
    selected: &BTreeSet<usize>,
    request: Request<'_>,
) -> Result<(), Failure> {
    let lacking = selected.iter().copied().filter(|place| !unset(&plan.nodes()[*place]).is_empty()).collect();
    let lacking = not_known(plan, store, request, lacking)?;
    let findings: Vec<Diagnostic> = lacking.iter().map(|place| finding(&plan.nodes()[*place])).collect();
    if findings.is_empty() { Ok(()) } else { Err(Failure::Pipeline(findings, Box::new(pipeline::texts(plan)))) }
}

fn finding(node: &Node) -> Diagnostic {
    let names = unset(node);
    let help = names.iter().map(|name| format!("set the environment variable {name}")).collect::<Vec<_>>().join("; ");
    Diagnostic::error("secret-not-set", unset_words(node, &names)).at(node.spec.id_span, "").help(help)
}
