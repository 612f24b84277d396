//! Compares two runs, or two nodes: params, code, inputs, row counts, metrics, numbers of questions and rows. Reports
//! differences only.

use std::collections::{BTreeMap, BTreeSet};

use searchmill_schemas::{Metric, RecordKind};
use serde::Serialize;
use serde_json::Value;

use super::catalog::Catalog;
use super::lookup::whole_table;
use super::output_name::{NotFound, output_of};
use super::pairs::{self, Pair};
use super::row_changes::{TableChange, table_change};
use super::target::no_node;
use crate::error::OperatorError;
use crate::fingerprint::{Reason, diff, differing_leaves};
use crate::node_id::NodeId;
use crate::operator::{PortType, RowsInput};
use crate::store::{NodeOutcome, NodeResult, NodeRun, OutputRecord, RunRecord, Store};

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
    Comparison { store, catalog }.runs(one, other, &pairs::by_name(&before, &after))
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
    let pairs = pairs::upstream(store, [&before, &after], from, to);
    let found = Comparison { store, catalog }.runs(one, other, &pairs);
    Ok(RunDiff { of: Some([from.node.clone(), to.node.clone()]), ..found })
}

/// Finds a node of a run by its id or by one of its outputs: `NODE.PORT`, or what a loop hands on.
fn named<'a>(store: &Store, run: &RunRecord, nodes: &'a [NodeRun], name: &str) -> Result<&'a NodeRun, NotFound> {
    if let Some(node) = pairs::last(nodes, name) {
        return Ok(node);
    }
    let found = output_of(store, std::slice::from_ref(&run.id), name)?;
    let node = found.and_then(|(_, node, _)| pairs::last(nodes, &node.node));
    node.ok_or_else(|| no_node(store, &run.id, name))
}

fn changed(name: &str, from: Value, to: Value) -> Option<Changed> {
    (from != to).then(|| Changed { name: name.to_owned(), from, to })
}

struct Comparison<'a> {
    store: &'a Store,
    catalog: &'a Catalog,
}

impl Comparison<'_> {
    fn runs(&self, one: &RunRecord, other: &RunRecord, pairs: &[Pair<'_>]) -> RunDiff {
        let changes: Vec<NodeChange> = pairs.iter().filter_map(|pair| self.node(*pair)).collect();
        let about = [
            ("pipeline", Value::from(one.pipeline.as_str()), Value::from(other.pipeline.as_str())),
            ("file", Value::from(one.file.as_str()), Value::from(other.file.as_str())),
            ("exit code", Value::from(one.exit), Value::from(other.exit)),
        ];
        let mut params = Vec::new();
        differing_leaves(&one.params, &other.params, String::new(), &mut |name, from, to| {
            params.push(Changed { name, from: from.clone(), to: to.clone() });
        });
        RunDiff {
            runs: [one.id.clone(), other.id.clone()],
            of: None,
            about: about.into_iter().filter_map(|(name, from, to)| changed(name, from, to)).collect(),
            params,
            same: pairs.len() - changes.len(),
            nodes: changes,
        }
    }

    fn node(&self, pair: Pair<'_>) -> Option<NodeChange> {
        let (Some(one), Some(other)) = (pair.one, pair.other) else {
            let node = pair.one.or(pair.other)?.node.clone();
            let only_in = Some(if pair.one.is_some() { 1 } else { 2 });
            return Some(NodeChange { node, only_in, ..NodeChange::default() });
        };
        let with = (one.node != other.node).then(|| other.node.clone());
        let empty = || NodeChange { node: one.node.clone(), with: with.clone(), ..NodeChange::default() };
        let outcome = changed("outcome", outcome(one).into(), outcome(other).into());
        if one.key == other.key && one.outputs == other.outputs && outcome.is_none() {
            return None;
        }
        if one.outputs.is_empty() != other.outputs.is_empty() {
            // One of the runs did not come to this node: there is nothing to compare.
            return Some(NodeChange { outcome, ..empty() });
        }
        let results = [self.result(one), self.result(other)];
        let reasons = reasons(one, other, &results);
        let follows = !reasons.is_empty() && reasons.iter().all(|reason| matches!(reason, Reason::InputChanged { .. }));
        let ports: BTreeSet<&String> = one.outputs.keys().chain(other.outputs.keys()).collect();
        let rows = |node: &NodeRun, port: &String| node.outputs.get(port).map(|output| output.rows).into();
        let differs =
            |port: &&&String| one.outputs.get(**port).map(|o| o.id) != other.outputs.get(**port).map(|o| o.id);
        let mut content = Content::default();
        for port in ports.iter().filter(differs) {
            content.add(self, port, one, other);
        }
        Some(NodeChange {
            outcome,
            reasons,
            follows,
            rows: ports.iter().filter_map(|port| changed(port, rows(one, port), rows(other, port))).collect(),
            outputs: ports.iter().filter(differs).map(|port| (*port).clone()).collect(),
            figures: figures(&results),
            metrics: content.metrics(),
            tables: content.tables,
            not_compared: content.not_compared,
            ..empty()
        })
    }

    fn result(&self, node: &NodeRun) -> Option<&NodeResult> {
        self.catalog.result(node.key.as_ref()?)
    }

    /// Opens the table of a port; `None`: the run has none.
    fn table(&self, node: &NodeRun, port: &str) -> Result<Option<RowsInput>, OperatorError> {
        let is_tree = |output: &&OutputRecord| matches!(output.artifact_type.port_type(), Some(PortType::Tree(_)));
        let output = node.outputs.get(port).filter(|output| !is_tree(output));
        output.map_or(Ok(None), |output| whole_table(self.store, &output.id))
    }
}

/// What differs in the tables of a node.
#[derive(Default)]
struct Content {
    /// The metrics of both runs by id.
    metrics: [BTreeMap<String, Metric>; 2],
    tables: Vec<TableChange>,
    not_compared: Vec<NotCompared>,
}

impl Content {
    /// Compares the tables of a port whose content differs.
    fn add(&mut self, comparison: &Comparison<'_>, port: &str, one: &NodeRun, other: &NodeRun) {
        let found = comparison.table(one, port).and_then(|from| {
            let to = comparison.table(other, port)?;
            let metrics = [metric_rows(from.as_ref())?, metric_rows(to.as_ref())?];
            let change = match (&from, &to) {
                (Some(from), Some(to)) => table_change(port, from, to)?,
                _ => None,
            };
            Ok((metrics, change))
        });
        match found {
            Ok((metrics, change)) => {
                self.metrics.iter_mut().zip(metrics).for_each(|(all, found)| all.extend(found));
                self.tables.extend(change);
            }
            Err(error) => self.not_compared.push(NotCompared { port: port.to_owned(), reason: error.message }),
        }
    }

    /// Returns the metrics that differ, over all metric tables of the node.
    fn metrics(&self) -> Vec<MetricChange> {
        let [from, to] = &self.metrics;
        let ids: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
        let change = |id: &&String| {
            let (from, to) = (from.get(*id).cloned(), to.get(*id).cloned());
            (from != to).then(|| MetricChange { id: (*id).clone(), from, to })
        };
        ids.iter().filter_map(change).collect()
    }
}

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

fn figures(results: &[Option<&NodeResult>; 2]) -> Vec<Changed> {
    let [Some(one), Some(other)] = results else { return Vec::new() };
    let names: BTreeSet<&String> = one.figures.keys().chain(other.figures.keys()).collect();
    let value = |result: &NodeResult, name: &String| result.figures.get(name).copied().into();
    names.iter().filter_map(|name| changed(name, value(one, name), value(other, name))).collect()
}
