//! Outcomes of a pipeline's nodes in earlier runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use crate::node_id::NodeId;
use crate::plan::{Node, Plan};
use crate::spec::RowLimit;
use crate::store::{NodeRun, RunRecord, Store};

/// Earlier runs searched for the reason why a node runs (at most), newest first.
const RUNS: usize = 50;

/// Outcomes of a pipeline's nodes in earlier runs, read on first use.
pub(crate) struct History {
    /// Id of the current run, which is excluded.
    own: String,
    nodes: OnceLock<BTreeMap<NodeId, NodeRun>>,
    /// The last results of the plan's frozen nodes.
    frozen: OnceLock<BTreeMap<NodeId, LastOutputs>>,
}

/// The last outputs of a frozen node, or why they cannot be used.
type LastOutputs = Result<NodeRun, String>;

impl History {
    pub(crate) fn before(own: &str) -> Self {
        Self { own: own.to_owned(), nodes: OnceLock::new(), frozen: OnceLock::new() }
    }

    /// Returns the newest record of a node that has a key.
    pub(crate) fn last(&self, plan: &Plan, store: &Store, node: &str) -> Option<&NodeRun> {
        self.nodes.get_or_init(|| self.read(plan, store)).get(node)
    }

    /// Returns the newest outputs of the frozen nodes computed under that limit, or why the newest ones cannot be used.
    pub(crate) fn frozen(&self, plan: &Plan, store: &Store, limit: &RowLimit) -> &BTreeMap<NodeId, LastOutputs> {
        self.frozen.get_or_init(|| self.read_frozen(plan, store, limit))
    }

    /// Iterates over the pipeline's runs among the newest `most` runs, newest first, imported ones last.
    fn earlier<'a>(&'a self, plan: &'a Plan, store: &'a Store, most: usize) -> impl Iterator<Item = RunRecord> + 'a {
        let ids = store.newest_runs().into_iter().filter(|id| *id != self.own).take(most);
        // Read one by one: most searches end after the newest run.
        ids.filter_map(|id| store.run(&id)).filter(|record| record.pipeline == plan.name)
    }

    /// Reads the last results of frozen nodes. Searches all runs if necessary: a frozen node without a last result
    /// would run.
    fn read_frozen(&self, plan: &Plan, store: &Store, limit: &RowLimit) -> BTreeMap<NodeId, LastOutputs> {
        let mut found = BTreeMap::new();
        let mut missing: BTreeMap<&str, &Node> = BTreeMap::new();
        for node in plan.nodes.iter().filter(|node| node.spec.freeze) {
            missing.insert(node.id().as_str(), node);
        }
        for run in self.earlier(plan, store, usize::MAX) {
            if missing.is_empty() {
                break;
            }
            // Imported runs do not count: they belong to another store.
            if store.is_imported(&run.id) {
                continue;
            }
            // Of a node that was recorded twice in a run, the later record counts.
            for last in store.run_nodes(&run.id).into_iter().rev() {
                let Some(node) = missing.get(last.node.as_str()) else { continue };
                if last.outputs.is_empty() {
                    continue;
                }
                let id = last.node.clone();
                if let Some(why) = unfit(node, &last, &run, limit) {
                    // An older run may have one that fits; until then, the newest reason counts.
                    found.entry(id).or_insert(Err(why));
                } else {
                    missing.remove(id.as_str());
                    found.insert(id, Ok(last));
                }
            }
        }
        found
    }

    /// Reads records, newest run first, until every node of the plan was found.
    fn read(&self, plan: &Plan, store: &Store) -> BTreeMap<NodeId, NodeRun> {
        let mut nodes = BTreeMap::new();
        let mut missing: BTreeSet<&str> = plan.nodes.iter().map(|node| node.id().as_str()).collect();
        for run in self.earlier(plan, store, RUNS) {
            if missing.is_empty() {
                break;
            }
            for node in store.run_nodes(&run.id) {
                if node.key.is_some() {
                    missing.remove(node.node.as_str());
                    nodes.entry(node.node.clone()).or_insert(node);
                }
            }
        }
        nodes
    }
}

/// Returns why the recorded outputs cannot be used for a frozen node.
fn unfit(node: &Node, last: &NodeRun, run: &RunRecord, limit: &RowLimit) -> Option<String> {
    let id = &run.id;
    if last.operator != node.entry.name {
        return Some(format!("run {id} made it with `{}`, not `{}`", last.operator, node.entry.name));
    }
    for (port, port_type) in &node.outputs {
        let output = last.outputs.get(port);
        if output.is_none_or(|output| output.artifact_type != port_type.into()) {
            return Some(format!("run {id} has outputs of other types"));
        }
    }
    let had = words(&run.limit);
    (run.limit != *limit).then(|| format!("run {id} had {had}, this one has {}", words(limit)))
}

fn words(limit: &RowLimit) -> String {
    if limit.is_none() { "no --limit".to_owned() } else { limit.to_string() }
}
