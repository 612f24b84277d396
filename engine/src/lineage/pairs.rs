//! Pairs the nodes of two runs: by name, or a chosen node with another one and what each of them read with what the other
//! read at the same port.

use std::collections::{BTreeMap, VecDeque};

use indexmap::IndexSet;

use super::catalog::Catalog;
use crate::store::NodeRun;

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

/// What a node read at a port.
struct Read<'a> {
    port: String,
    artifact: String,
    /// The nodes of the run that made it: equal content may have several makers.
    makers: Vec<&'a NodeRun>,
}

/// One of the runs.
struct Side<'a> {
    nodes: &'a [NodeRun],
    makers: BTreeMap<String, Vec<&'a NodeRun>>,
}

impl<'a> Side<'a> {
    fn new(nodes: &'a [NodeRun]) -> Self {
        let mut makers: BTreeMap<String, Vec<&NodeRun>> = BTreeMap::new();
        for node in nodes {
            for output in node.outputs.values() {
                makers.entry(output.id.to_string()).or_default().push(node);
            }
        }
        Self { nodes, makers }
    }

    /// Returns what a node read: the inputs in its key's preimage, each with port, type and artifact.
    fn reads(&self, catalog: &Catalog, node: &NodeRun) -> Vec<Read<'a>> {
        let result = node.key.as_ref().and_then(|key| catalog.result(key));
        let Some(preimage) = result.map(|result| &result.preimage).or(node.preimage.as_ref()) else {
            return Vec::new();
        };
        let mut reads = Vec::new();
        for input in preimage["inputs"].as_array().into_iter().flatten() {
            if let (Some(port), Some(artifact)) = (input[0].as_str(), input[2].as_str()) {
                let mut makers = self.makers.get(artifact).cloned().unwrap_or_default();
                makers.retain(|maker| maker.node != node.node);
                reads.push(Read { port: port.to_owned(), artifact: artifact.to_owned(), makers });
            }
        }
        reads
    }
}

/// Returns the name that all variants of a node have.
fn base(id: &str) -> &str {
    id.split('@').next().unwrap_or(id)
}

/// Chooses the makers that stand for one another: variants of one node, or else the last ones. (A filter that keeps all rows
/// gives what it read.)
fn alike<'a>(makers: &[&'a NodeRun], partners: &[&'a NodeRun]) -> Option<(&'a NodeRun, &'a NodeRun)> {
    for maker in makers {
        for partner in partners {
            if base(&maker.node) == base(&partner.node) {
                return Some((maker, partner));
            }
        }
    }
    Some((makers.last()?, partners.last()?))
}

/// Pairs two nodes and, step by step, the makers of what they read at the same port. What both read is left out: it is
/// equal. Sorted by the order in which the nodes of the second run ended.
pub(super) fn upstream<'a>(
    catalog: &Catalog,
    nodes: [&'a [NodeRun]; 2],
    one: &'a NodeRun,
    other: &'a NodeRun,
) -> Vec<Pair<'a>> {
    let [first, second] = nodes.map(Side::new);
    let mut found: IndexSet<(&str, &str)> = IndexSet::new();
    let mut open = VecDeque::from([(one, other)]);
    while let Some((one, other)) = open.pop_front() {
        if !found.insert((&one.node, &other.node)) {
            continue;
        }
        let mut partners = second.reads(catalog, other);
        for read in first.reads(catalog, one) {
            let Some(place) = partners.iter().position(|partner| partner.port == read.port) else { continue };
            let partner = partners.remove(place);
            if read.artifact != partner.artifact
                && let Some(makers) = alike(&read.makers, &partner.makers)
            {
                open.push_back(makers);
            }
        }
    }
    let place = |name: &str| second.nodes.iter().rposition(|node| node.node == name);
    let mut names: Vec<(&str, &str)> = found.into_iter().collect();
    names.sort_by_key(|(_, other)| place(other));
    let pair = |(one, other): (&str, &str)| Pair { one: last(first.nodes, one), other: last(second.nodes, other) };
    names.into_iter().map(pair).collect()
}
