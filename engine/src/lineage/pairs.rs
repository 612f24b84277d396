//! Pairs the nodes of two runs: by name, or a chosen node with another one and what each of them read with what the other
//! read at the same port.

use std::collections::{BTreeMap, VecDeque};

use indexmap::IndexSet;

use crate::fingerprint::{Digest, InputIdentity};
use crate::node_id;
use crate::store::{NodeRun, Store};

/// Two nodes that stand for one another; `None` if a run has no such node.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) one: Option<&'a NodeRun>,
    pub(super) other: Option<&'a NodeRun>,
}

/// Pairs nodes of the same name, in the order in which those of the second run ended.
pub(super) fn by_name<'a>(one: &'a [NodeRun], other: &'a [NodeRun]) -> Vec<Pair<'a>> {
    let names: IndexSet<&str> = other.iter().chain(one).map(|node| node.node.as_str()).collect();
    names.into_iter().map(|name| Pair { one: last(one, name), other: last(other, name) }).collect()
}

/// Returns the last record of a node.
pub(super) fn last<'a>(nodes: &'a [NodeRun], name: &str) -> Option<&'a NodeRun> {
    nodes.iter().rfind(|node| node.node == name)
}

/// Nodes of a run by the tables and folders that they made: equal content may have several makers.
type Makers<'a> = BTreeMap<Digest, Vec<&'a NodeRun>>;

fn makers(nodes: &[NodeRun]) -> Makers<'_> {
    let mut makers = Makers::new();
    for node in nodes {
        for (port, output) in &node.outputs {
            // Nodes without rejects have equal ones: they say nothing of who read whose.
            if port != "rejects" || output.rows > 0 {
                makers.entry(output.id.digest()).or_default().push(node);
            }
        }
    }
    makers
}

/// Returns the makers of what a node read.
fn makers_of<'a>(makers: &Makers<'a>, read: &InputIdentity, reader: &NodeRun) -> Vec<&'a NodeRun> {
    let mut found = makers.get(&read.digest).cloned().unwrap_or_default();
    found.retain(|maker| maker.node != reader.node);
    found
}

/// Chooses the makers that stand for one another: variants of one node, or else the last ones. (A filter that keeps all rows
/// gives what it read.)
fn alike<'a>(makers: &[&'a NodeRun], partners: &[&'a NodeRun]) -> Option<(&'a NodeRun, &'a NodeRun)> {
    for maker in makers {
        for partner in partners {
            if node_id::name(&maker.node) == node_id::name(&partner.node) {
                return Some((maker, partner));
            }
        }
    }
    Some((makers.last()?, partners.last()?))
}

/// Pairs two nodes and, step by step, the makers of what they read at the same port. What both read is left out: it is
/// equal. Sorted by the order in which the nodes of the second run ended.
pub(super) fn upstream<'a>(store: &Store, nodes: [&'a [NodeRun]; 2], start: [&'a NodeRun; 2]) -> Vec<Pair<'a>> {
    let ([first, second], [one, other]) = (nodes, start);
    let [makers, partners] = nodes.map(makers);
    let mut found: IndexSet<(&str, &str)> = IndexSet::new();
    let mut open = VecDeque::from([(one, other)]);
    while let Some((one, other)) = open.pop_front() {
        if !found.insert((&one.node, &other.node)) {
            continue;
        }
        let mut others = store.inputs_of(other);
        for read in store.inputs_of(one) {
            let Some(index) = others.iter().position(|other| other.port == read.port) else { continue };
            let partner = others.remove(index);
            if read.digest != partner.digest {
                open.extend(alike(&makers_of(&makers, &read, one), &makers_of(&partners, &partner, other)));
            }
        }
    }
    found.sort_by_cached_key(|(_, other)| second.iter().rposition(|node| node.node == *other));
    found.into_iter().map(|(one, other)| Pair { one: last(first, one), other: last(second, other) }).collect()
}
