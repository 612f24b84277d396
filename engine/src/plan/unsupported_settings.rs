//! Rejects node settings that would have no effect: a user who writes one relies on it.

use crate::diagnostic::Diagnostic;
use crate::operator::Declaration;
use crate::spec::{NodeSpec, OnError};

/// Rejects settings that the operator, with these params, ignores.
pub(super) fn check_settings(node: &NodeSpec, declaration: &Declaration, errors: &mut Vec<Diagnostic>) {
    for (name, span) in &node.settings {
        if let Some((why, help)) = refusal(name, node, declaration) {
            let message = format!("`{name}` changes nothing here: `{}` {why}", node.operator);
            errors.push(Diagnostic::error("not-honoured", message).at(*span, "").help(help));
        }
    }
}

/// Returns why a setting has no effect, and what to do.
fn refusal(name: &str, node: &NodeSpec, declaration: &Declaration) -> Option<(&'static str, &'static str)> {
    let resources = &node.resources;
    let has_rows = declaration.rows.is_some();
    let gpus = resources.gpus > 0;
    match name {
        "retry" if !declaration.retries => {
            let none = ("makes no calls that could be retried", "remove it; `searchmill run` resumes after a failure");
            Some(declaration.no_retry.unwrap_or(none))
        }
        // `dead_letter` is what happens in any case: unusable rows go to `rejects`.
        "on_error" if !has_rows && node.on_error != OnError::DeadLetter => {
            Some(("makes no calls per row: unusable rows go to `rejects`", "remove it"))
        }
        "concurrency" if !has_rows => Some(("has no rows in flight", "remove it; `threads` limits its CPU threads")),
        // The GPUs of a node with services may be for these.
        "gpus" if gpus && !declaration.uses_gpus && node.services.is_empty() => {
            Some(("computes nothing on a GPU with these params", "remove it"))
        }
        "fallback" if !gpus => Some(("requests no GPU", "add `gpus: 1`, or remove it")),
        "isolate" if resources.isolate && declaration.pays() => {
            Some(("calls an endpoint, whose limits and budget need a single process", "remove it"))
        }
        // In a program built for CUDA, a node with GPUs has a process of its own, which can be stopped.
        "timeout" if !resources.isolate && !gpus => {
            Some(("runs in this process and cannot be stopped", "add `isolate: true`"))
        }
        _ => None,
    }
}
