//! Is a node's result known? If not, why does it run?

use crate::fingerprint::{NodeKey, Reason, diff};
use crate::operator::Effect;
use crate::plan::Node;
use crate::spec::OnError;
use crate::store::{Damage, NodeResult, NodeRun, Store};

/// What the store says about a key.
pub(super) enum Lookup {
    /// The result, with all its files.
    Hit(Box<NodeResult>),
    /// Why not.
    Miss(Vec<Reason>),
}

/// Which rows that failed outside are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// None.
    Nothing,
    /// Rejects.
    Failed,
    /// Those also that `on_error: drop` passed over.
    Dropped,
}

/// Looks a key up. A hit whose files are gone or damaged is a miss with that reason; so is one with rows that are to be
/// tried again.
pub(super) fn lookup(store: &Store, node: &Node, key: &NodeKey, retry: Retry) -> Lookup {
    let Some(result) = store.result(key) else {
        let collected = store.tombstone(key).map(|_| Reason::Collected);
        return Lookup::Miss(collected.into_iter().collect());
    };
    for (port, output) in &result.outputs {
        if let Err(damage) = store.check(&output.id) {
            return Lookup::Miss(vec![damage_reason(port, damage)]);
        }
    }
    let rejects = result.rejects();
    if retry == Retry::Nothing {
        return Lookup::Hit(Box::new(result));
    }
    if node.entry.effect == Effect::External && rejects > 0 {
        return Lookup::Miss(vec![Reason::RejectsRetried { rows: rejects }]);
    }
    if result.dropped > 0 && (node.spec.on_error != OnError::Drop || retry == Retry::Dropped) {
        return Lookup::Miss(vec![Reason::RejectsRetried { rows: result.dropped }]);
    }
    Lookup::Hit(Box::new(result))
}

pub(super) fn damage_reason(port: &str, damage: Damage) -> Reason {
    let port = port.to_owned();
    match damage {
        Damage::Missing => Reason::ArtifactMissing { port },
        Damage::Corrupt => Reason::ArtifactCorrupt { port },
    }
}

/// Why a node runs, seen from the last run in which it was recorded.
pub(super) fn reasons(
    store: &Store,
    last: Option<&NodeRun>,
    key: &NodeKey,
    preimage: &serde_json::Value,
) -> Vec<Reason> {
    let Some(before) = last.and_then(|last| last.key) else { return vec![Reason::NeverRan] };
    if before == *key {
        return vec![Reason::Unfinished];
    }
    match store.result(&before).or_else(|| store.tombstone(&before)) {
        Some(result) => diff(&result.preimage, preimage),
        None => vec![Reason::Unfinished],
    }
}
