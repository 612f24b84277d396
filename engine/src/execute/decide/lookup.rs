//! Looks node keys up in the store.

use super::identity::Parts;
use crate::execute::settings::request::Retry;
use crate::fingerprint::{NodeKey, Reason};
use crate::operator::Effect;
use crate::plan::Node;
use crate::spec::OnError;
use crate::store::{Damage, NodeResult, Store};

/// The result of a store lookup.
pub(crate) enum Lookup {
    /// A result whose files all exist, except those of the named outputs, which were released.
    Hit(Box<NodeResult>, Vec<String>),
    /// The reasons for a miss.
    Miss(Vec<Reason>),
}

/// Looks a key up. A result is a miss, with a reason, if its files are missing or damaged or differ from the record, if
/// failed rows are to be retried, or if a forced run was to replace it; with `needed`, also if they were released.
pub(crate) fn look_up(store: &Store, node: &Node, parts: &Parts, key: &NodeKey, retry: Retry, needed: bool) -> Lookup {
    let Some(result) = store.result(key) else {
        return Lookup::Miss(store.tombstone(key).map(|_| Reason::Collected).into_iter().collect());
    };
    let (result, cut_off) = after_force(store, node, parts, result);
    let mut released = Vec::new();
    for (port, port_type) in &node.outputs {
        let checked = match result.outputs.get(port) {
            Some(output) if output.artifact_type == port_type.into() => store.check_output(output),
            _ => Err(Damage::Corrupt),
        };
        match checked {
            Ok(()) => {}
            Err(Damage::Released) if !needed => released.push(port.clone()),
            Err(damage) => return Lookup::Miss(vec![damage_reason(port, damage)]),
        }
    }
    let rejects = result.rejects();
    if retry == Retry::Nothing {
        return Lookup::Hit(Box::new(result), released);
    }
    if cut_off {
        return Lookup::Miss(vec![Reason::ForceUnfinished]);
    }
    if node.operator.declaration.effect == Effect::External && rejects > 0 {
        return Lookup::Miss(vec![Reason::RejectsRetried { rows: rejects }]);
    }
    if result.dropped > 0 && (node.spec.on_error != OnError::Drop || retry == Retry::Dropped) {
        return Lookup::Miss(vec![Reason::RejectsRetried { rows: result.dropped }]);
    }
    Lookup::Hit(Box::new(result), released)
}

/// Whether the node pays for its rows: `--force` then leaves a floor that decides whether a result counts.
pub(crate) fn has_floor(node: &Node) -> bool {
    node.operator.declaration.rows.is_some() && node.operator.declaration.pays()
}

/// Returns the result that counts after the last forced run of its key, on any machine; `true` if that run was
/// interrupted and the result is the one it was to replace.
fn after_force(store: &Store, node: &Node, parts: &Parts, result: NodeResult) -> (NodeResult, bool) {
    if !has_floor(node) {
        return (result, false);
    }
    // If the floor cannot be read, the node runs and reports the error.
    let wanted = store.floor(&parts.row_base(node)).map_or(u64::MAX, |floor| floor.wanted(&result.key));
    if result.since() >= wanted {
        return (result, false);
    }
    store.fetch_record(&result.key, "results", wanted).map_or((result, true), |newer| (newer, false))
}

pub(super) fn damage_reason(port: &str, damage: Damage) -> Reason {
    let port = port.to_owned();
    match damage {
        Damage::Missing => Reason::ArtifactMissing { port },
        Damage::Corrupt => Reason::ArtifactCorrupt { port },
        Damage::Released => Reason::Released { port },
    }
}
