//! Compares two runs, or two nodes: params, code, inputs, row counts, metrics, numbers of questions and rows. Reports
//! differences only.
//!
//! Nodes are paired by name, or a chosen node with another one and what each of them read with what the other read at
//! the same port.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use indexmap::IndexSet;
use searchmill_schemas::{Metric, RecordKind};
use serde::Serialize;
use serde_json::Value;

use super::catalog::Catalog;
use super::lookup::whole_table;
use super::output_name::{NotFound, output_of};
use super::row_changes::{TableChange, compared};
use super::target::no_node;
use crate::error::OperatorError;
use crate::fingerprint::{Digest, InputIdentity, Reason, diff, differing_leaves};
use crate::node_id::{self, NodeId};
use crate::operator::{PortType, RowsInput};
use crate::store::{NodeOutcome, NodeResult, NodeRun, RunRecord, Store};

/// A value that differs between the runs; `null` if a run does not have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Changed {
    /// Its name: a param's path, a port, a metric.
    pub name: String,
    /// Value in the first run.
    pub from: Value,
    /// Value in the second run.
    pub to: Value,
}

/// A metric that differs between the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricChange {
    /// `<group>/<name>`.
    pub id: String,
    /// Value in the first run, with its interval.
    pub from: Option<Metric>,
    /// Value in the second run.
    pub to: Option<Metric>,
}

/// A table that differs but cannot be read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotCompared {
    /// Port of the table.
    pub port: String,
    /// Why it cannot be read.
    pub reason: String,
}

/// A node that differs between the runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeChange {
    /// The node.
    pub node: NodeId,
    /// The node of the second run that stands for it, if it has another name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with: Option<NodeId>,
    /// The only run (1 or 2) that has the node, if it is not in both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_in: Option<u8>,
    /// The outcomes, if they differ (cached and finished count as equal).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Changed>,
    /// Why its key differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Reason>,
    /// Whether it differs only because its inputs do.
    pub follows: bool,
    /// Row counts that differ, by port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<Changed>,
    /// Ports whose content differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Recorded metrics of the operator that differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Changed>,
    /// Rows of metric tables that differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<MetricChange>,
    /// Tables whose numbers differ, by question or row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableChange>,
    /// Tables that differ but cannot be compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_compared: Vec<NotCompared>,
}

/// The difference of two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunDiff {
    /// Both runs, in the order given.
    pub runs: [String; 2],
    /// The two nodes that are compared, if not the whole runs are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<[NodeId; 2]>,
    /// Pipeline, file and exit code, if they differ.
    pub about: Vec<Changed>,
    /// Pipeline params that differ.
    pub params: Vec<Changed>,
    /// Nodes that differ, in the order they ended in the second run.
    pub nodes: Vec<NodeChange>,
    /// Number of equal nodes. Of two nodes, what both read alike is not counted.
    pub same: usize,
}

impl RunDiff {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.about.is_empty() && self.params.is_empty() && self.nodes.is_empty()
    }
}

/// Compares two runs.
pub fn diff_runs(store: &Store, catalog: &Catalog, one: &RunRecord, other: &RunRecord) -> RunDiff {
    let (before, after) = (store.run_nodes(&one.id), store.run_nodes(&other.id));
    Comparison { store, catalog }.runs(one, other, &by_name(&before, &after))
}

/// Compares a node of a run with a node of another run, or of the same one, and what they read.
///
/// # Errors
/// Fails if a run has no such node.
pub fn diff_nodes(
    store: &Store,
    catalog: &Catalog,
    one: &RunRecord,
    other: &RunRecord,
    names: [&str; 2],
) -> Result<RunDiff, NotFound> {
    let (before, after) = (store.run_nodes(&one.id), store.run_nodes(&other.id));
    let from = named(store, one, &before, names[0])?;
    let to = named(store, other, &after, names[1])?;
    let pairs = upstream(store, [&before, &after], [from, to]);
    let found = Comparison { store, catalog }.runs(one, other, &pairs);
    Ok(RunDiff { of: Some([from.node.clone(), to.node.clone()]), ..found })
}

/// Finds a node of a run by its id or by one of its outputs: `NODE.PORT`, or what a loop hands on.
fn named<'a>(store: &Store, run: &RunRecord, nodes: &'a [NodeRun], name: &str) -> Result<&'a NodeRun, NotFound> {
    if let Some(node) = last(nodes, name) {
        return Ok(node);
    }
    if let Some((_, node, _)) = output_of(store, std::slice::from_ref(&run.id), name)?
        && let Some(node) = last(nodes, &node.node)
    {
        return Ok(node);
    }
    Err(no_node(store, &run.id, name))
}

fn changed(name: &str, from: Value, to: Value) -> Option<Changed> {
    if from == to { None } else { Some(Changed { name: name.to_owned(), from, to }) }
}

struct Comparison<'a> {
    store: &'a Store,
    catalog: &'a Catalog,
}

impl Comparison<'_> {
    fn runs(&self, one: &RunRecord, other: &RunRecord, pairs: &[Pair<'_>]) -> RunDiff {
        let nodes: Vec<NodeChange> = pairs.iter().filter_map(|pair| self.node(*pair)).collect();
        let mut about = Vec::new();
        about.extend(changed("pipeline", one.pipeline.as_str().into(), other.pipeline.as_str().into()));
        about.extend(changed("file", one.file.as_str().into(), other.file.as_str().into()));
        about.extend(changed("exit code", one.exit.into(), other.exit.into()));
        let mut params = Vec::new();
        differing_leaves(&one.params, &other.params, String::new(), &mut |name, from, to| {
            params.push(Changed { name, from: from.clone(), to: to.clone() });
        });
        let (runs, same) = ([one.id.clone(), other.id.clone()], pairs.len() - nodes.len());
        RunDiff { runs, of: None, about, params, nodes, same }
    }

    fn node(&self, pair: Pair<'_>) -> Option<NodeChange> {
        let (Some(one), Some(other)) = (pair.one, pair.other) else {
            let node = pair.one.or(pair.other)?.node.clone();
            let only_in = Some(if pair.one.is_some() { 1 } else { 2 });
            return Some(NodeChange { node, only_in, ..NodeChange::default() });
        };
        let mut change = NodeChange { node: one.node.clone(), ..NodeChange::default() };
        change.with = (one.node != other.node).then(|| other.node.clone());
        change.outcome = changed("outcome", outcome(one).into(), outcome(other).into());
        if one.key == other.key && one.outputs == other.outputs && change.outcome.is_none() {
            return None;
        }
        if one.outputs.is_empty() != other.outputs.is_empty() {
            // One of the runs did not come to this node: there is nothing to compare.
            return Some(change);
        }
        let results = [self.result(one), self.result(other)];
        change.reasons = reasons(one, other, &results);
        let mut reasons = change.reasons.iter();
        change.follows =
            !change.reasons.is_empty() && reasons.all(|reason| matches!(reason, Reason::InputChanged { .. }));
        if let [Some(one), Some(other)] = results {
            for name in one.figures.keys().chain(other.figures.keys()).collect::<BTreeSet<_>>() {
                let (from, to) = (one.figures.get(name).copied(), other.figures.get(name).copied());
                change.figures.extend(changed(name, from.into(), to.into()));
            }
        }
        // The metrics of both runs by id, over all metric tables of the node.
        let mut metrics = <[BTreeMap<String, Metric>; 2]>::default();
        for port in one.outputs.keys().chain(other.outputs.keys()).collect::<BTreeSet<_>>() {
            let (from, to) = (one.outputs.get(port), other.outputs.get(port));
            let (before, after) = (from.map(|output| output.rows), to.map(|output| output.rows));
            change.rows.extend(changed(port, before.into(), after.into()));
            if from.map(|output| output.id) == to.map(|output| output.id) {
                continue;
            }
            change.outputs.push(port.clone());
            match self.tables(port, one, other) {
                Ok((table, [from, to])) => {
                    change.tables.extend(table);
                    metrics[0].extend(from);
                    metrics[1].extend(to);
                }
                Err(error) => change.not_compared.push(NotCompared { port: port.clone(), reason: error.message }),
            }
        }
        let [before, after] = &metrics;
        for id in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
            let (from, to) = (before.get(id).cloned(), after.get(id).cloned());
            if from != to {
                change.metrics.push(MetricChange { id: id.clone(), from, to });
            }
        }
        Some(change)
    }

    fn result(&self, node: &NodeRun) -> Option<&NodeResult> {
        self.catalog.result(node.key.as_ref()?)
    }

    /// Opens the table of a port; `None`: the run has none.
    fn table(&self, node: &NodeRun, port: &str) -> Result<Option<RowsInput>, OperatorError> {
        match node.outputs.get(port) {
            // A kind that this build does not know is an error, and no folder.
            Some(output) if !matches!(output.artifact_type.port_type(), Some(PortType::Tree(_))) => {
                whole_table(self.store, &output.id)
            }
            _ => Ok(None),
        }
    }

    /// Compares the tables of a port whose content differs: the numbers of their rows, and the metrics in each of them. If
    /// one of them cannot be read, nothing of either counts.
    fn tables(&self, port: &str, one: &NodeRun, other: &NodeRun) -> Result<Tables, OperatorError> {
        let (from, to) = (self.table(one, port)?, self.table(other, port)?);
        let metrics = [metric_rows(from.as_ref())?, metric_rows(to.as_ref())?];
        let (Some(from), Some(to)) = (from, to) else { return Ok((None, metrics)) };
        Ok((compared(port, &from, &to)?, metrics))
    }
}

/// How the tables of a port differ, and the metrics in them by id.
type Tables = (Option<TableChange>, [BTreeMap<String, Metric>; 2]);

fn metric_rows(table: Option<&RowsInput>) -> Result<BTreeMap<String, Metric>, OperatorError> {
    let Some(table) = table.filter(|table| table.kind == RecordKind::Metric) else { return Ok(BTreeMap::new()) };
    Ok(table.read_all::<Metric>()?.into_iter().map(|metric| (metric.id.clone(), metric)).collect())
}

fn reasons(one: &NodeRun, other: &NodeRun, results: &[Option<&NodeResult>; 2]) -> Vec<Reason> {
    match results {
        _ if one.key == other.key => Vec::new(),
        [Some(one), Some(other)] => diff(&one.preimage, &other.preimage),
        _ if one.operator != other.operator => {
            vec![Reason::OperatorChanged { from: one.operator.clone(), to: other.operator.clone() }]
        }
        _ => Vec::new(),
    }
}

fn outcome(node: &NodeRun) -> &'static str {
    match node.outcome {
        NodeOutcome::Cached | NodeOutcome::Finished => "finished",
        NodeOutcome::HeldBack => "held back",
        NodeOutcome::CheckFailed => "check failed",
        NodeOutcome::Failed => "failed",
        NodeOutcome::Skipped if node.was_interrupted() => "interrupted",
        NodeOutcome::Skipped => "skipped",
        NodeOutcome::Ended => "ended",
        NodeOutcome::Begun => "stopped",
    }
}

/// Two nodes that stand for one another; `None` if a run has no such node.
#[derive(Clone, Copy)]
struct Pair<'a> {
    one: Option<&'a NodeRun>,
    other: Option<&'a NodeRun>,
}

/// Pairs nodes of the same name, in the order in which those of the second run ended.
fn by_name<'a>(one: &'a [NodeRun], other: &'a [NodeRun]) -> Vec<Pair<'a>> {
    let names: IndexSet<&str> = other.iter().chain(one).map(|node| node.node.as_str()).collect();
    names.into_iter().map(|name| Pair { one: last(one, name), other: last(other, name) }).collect()
}

/// Returns the last record of a node.
fn last<'a>(nodes: &'a [NodeRun], name: &str) -> Option<&'a NodeRun> {
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
fn upstream<'a>(store: &Store, nodes: [&'a [NodeRun]; 2], start: [&'a NodeRun; 2]) -> Vec<Pair<'a>> {
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
