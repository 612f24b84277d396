//! What a run would do, and why, in words and as JSON.

use std::collections::BTreeSet;

use searchmill_engine::{Basis, Node, NodeStatus, Reason, Session, Work};
use serde_json::{Value, json};

/// Maximum number of reasons in a line: thousands of files of a folder may change. `why` lists all.
const NAMED: usize = 4;

/// Returns a node with what becomes of it, its rows and the expected calls.
pub(crate) fn as_json(session: &Session, node: &Node, status: &NodeStatus, work: Option<&Work>) -> Value {
    let (word, detail) = words(node.id(), status);
    let mut shown = json!({"node": node.id(), "operator": node.entry.name, "status": word, "detail": detail});
    if let Some(unset) = session.unset_secrets(node) {
        shown["secrets_not_set"] = json!(unset.names);
    }
    if let NodeStatus::Cached { released, .. } = status
        && !released.is_empty()
    {
        shown["released"] = json!(released);
    }
    if let Some(work) = work {
        shown["rows"] = match work.rows {
            Some((known, missing)) => json!({"known": known, "to_compute": missing, "at_most": work.at_most}),
            None => Value::Null,
        };
        shown["estimate"] = match work.estimate {
            Some(usage) => json!({
                "calls": usage.calls,
                "service_calls": usage.service_calls,
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "cost": work.prices.as_ref().map(|_| usage.cost()),
                "currency": work.prices.as_ref().map(|prices| &prices.currency),
                "basis": basis(work),
            }),
            None => Value::Null,
        };
    }
    shown
}

/// Returns the state of a node in words, and what there is to say of it.
pub(crate) fn words(node: &str, status: &NodeStatus) -> (&'static str, String) {
    match status {
        NodeStatus::Cached { released, .. } if released.is_empty() => ("cached", String::new()),
        NodeStatus::Cached { released, .. } => {
            let outputs = released.iter().map(|port| format!("`{port}`")).collect::<Vec<_>>().join(", ");
            ("cached", format!("{outputs} released; `searchmill run FILE {node}` makes it again"))
        }
        NodeStatus::Frozen { .. } => ("cached", "frozen".to_owned()),
        NodeStatus::Run { reasons, .. } => ("run", sentence(reasons)),
        NodeStatus::Held { .. } => ("held", "it is not chosen to run, and its result is not in the store".to_owned()),
        NodeStatus::Unknown { waits_for, reasons, .. } => {
            let waits = format!("waits for {}", listed(waits_for.iter().map(String::as_str)));
            let changed = if reasons.is_empty() { waits } else { format!("{waits}; {}", sentence(reasons)) };
            ("decided later", changed)
        }
        NodeStatus::Ended { why, .. } => ("ended", why.clone()),
        NodeStatus::Broken { problem } => ("broken", problem.clone()),
    }
}

/// Returns the first reasons, and how many more there are.
pub(crate) fn sentence(reasons: &[Reason]) -> String {
    let named: Vec<String> = reasons.iter().take(NAMED).map(ToString::to_string).collect();
    let mut text = named.join("; ");
    if reasons.len() > NAMED {
        text.push_str(&format!("; and {} more", reasons.len() - NAMED));
    }
    text
}

/// Names listed of those that a node waits for (at most).
const LISTED: usize = 8;

/// Joins names with commas, without duplicates: a node may need several outputs of another.
pub(crate) fn listed<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let (mut seen, mut first) = (BTreeSet::new(), Vec::from_iter(names));
    first.retain(|name| seen.insert(*name));
    let more = first.len().saturating_sub(LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", first[..first.len() - more].join(", "))
}

/// Returns what an estimate goes by.
pub(crate) fn basis(work: &Work) -> &'static str {
    match work.basis {
        Some(Basis::Node) => "its own rows",
        Some(Basis::Model) => "rows of the same model",
        None => "nothing yet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_reasons_are_counted() {
        let all = |count: usize| vec![Reason::NeverRan; count];
        assert_eq!(sentence(&all(1)), Reason::NeverRan.to_string());
        assert!(!sentence(&all(4)).contains("more"));
        assert!(sentence(&all(400)).ends_with("; and 396 more"), "{}", sentence(&all(400)));
    }
}
