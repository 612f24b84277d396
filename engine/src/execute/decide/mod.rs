//! Decides what to do with a node (reuse its result, run it, wait, hold it) and why. `run`, `plan`, `why` and `status`
//! share this code.
//!
//! [`Parts`] is what enters the node's key, [`look_up`] asks the store for its result, and [`History`] has what became of
//! the node in earlier runs.

pub(super) mod loop_decision;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use indexmap::IndexMap;
use serde_json::Value;

use super::settings::options::{Request, Retry};
use crate::endpoint::EndpointUse;
use crate::error::OperatorError;
use crate::fingerprint::{
    Beside, Digest, InputIdentity, NodeIdentity, NodeKey, OutputIdentity, Reason, SeenSources, SourceDigests,
    SourceIdentity, SourceProblem, base_on, calls_base, diff,
};
use crate::node_id::NodeId;
use crate::operator::{Effect, PortType, Repeatability, processor};
use crate::plan::{Node, NodeIndex, Plan};
use crate::spec::{OnError, RowLimit};
use crate::store::{Damage, NodeResult, NodeRun, OutputRecord, RunRecord, SourceFile, Store, StoreError};

/// Outputs of completed nodes, by index in the plan.
pub type Known = BTreeMap<NodeIndex, IndexMap<String, OutputRecord>>;

/// What to do with a node.
pub(super) enum Decision {
    /// The node is frozen: its last result counts, whatever changed.
    Frozen(Box<NodeRun>),
    /// The store has a result for its key. The files of the outputs in `released` were released.
    Cached { key: NodeKey, result: Box<NodeResult>, released: Vec<String> },
    /// The node runs.
    Run(Box<Pending>),
    /// The node has no result but was not selected to run.
    Held(Box<Pending>),
    /// The key is known once the nodes in `on` are done.
    Waits { on: Vec<NodeId>, preimage: Value, reasons: Vec<Reason> },
    /// A source cannot be read.
    Broken(SourceProblem),
    /// A file needed for the key cannot be fetched.
    Unfetched(OperatorError),
    /// The node is frozen, but its last result cannot be used.
    Misfit(OperatorError),
}

/// A node without a result.
pub(super) struct Pending {
    pub(super) parts: Parts,
    pub(super) key: NodeKey,
    pub(super) preimage: Value,
    pub(super) reasons: Vec<Reason>,
}

/// How thoroughly the files of a cached result are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Planning: files must exist locally or in the shared store.
    There,
    /// Running: folders to be delivered must exist locally.
    Here,
    /// A file was found damaged: all files are read and compared.
    Closely,
}

/// Decides about the nodes of one plan.
#[derive(Clone, Copy)]
pub(super) struct Decider<'a> {
    pub(super) plan: &'a Plan,
    pub(super) store: &'a Store,
    pub(super) request: Request<'a>,
    pub(super) history: &'a History,
}

impl Decider<'_> {
    /// Decides about the node at `index`, given the outputs known so far.
    pub(super) fn decide(
        &self,
        index: NodeIndex,
        known: &Known,
        sources: &SourceDigests,
        look: Look,
    ) -> Result<Decision, StoreError> {
        let node = &self.plan[index];
        let mut last = None;
        if node.spec.freeze {
            last = self.history.frozen(self.plan, self.store, self.request.limit).get(node.id());
        }
        let frozen = match last {
            Some(Ok(last)) if self.is_cut_short(last) => return Ok(Decision::Misfit(misfit(CUT_SHORT))),
            Some(Ok(last)) if self.is_whole(last, look) => return Ok(Decision::Frozen(Box::new(last.clone()))),
            Some(Ok(last)) => Some(last),
            Some(Err(why)) => return Ok(Decision::Misfit(misfit(why))),
            None => None,
        };
        let (directory, limit) = (self.request.directory, self.request.rows_of(node));
        let parts = match Parts::gather(node, known, sources, directory, limit) {
            Err(problem) => return Ok(Decision::Broken(problem)),
            Ok(None) => return Ok(self.waits(node, known, sources)),
            Ok(Some(parts)) => parts,
        };
        let (key, preimage) = parts.key(node);
        // The output of a frozen node is damaged or missing: only the same key can recompute the same content.
        if frozen.is_some_and(|last| last.key != Some(key)) {
            return Ok(Decision::Misfit(misfit(GONE)));
        }
        let needed = look == Look::Closely || self.request.is_asked_for(self.plan, index);
        let may_run = self.request.may_run(index);
        let mut reasons = match self.request.forced(node) {
            Some(reason) if may_run => vec![reason],
            _ => match self.look_up(node, &parts, &key, may_run, needed, look)? {
                Lookup::Hit(result, released) => return Ok(Decision::Cached { key, result, released }),
                Lookup::Miss(found) => found,
            },
        };
        if frozen.is_some() && node.operator.declaration.effect == Effect::External {
            return Ok(Decision::Misfit(misfit(GONE)));
        }
        if reasons.is_empty() {
            reasons = self.reasons(node, Some(&key), &preimage);
        }
        let pending = Box::new(Pending { parts, key, preimage, reasons });
        // The result of a released output is known: making it again is nothing new.
        let again = matches!(pending.reasons[..], [Reason::Released { .. }]);
        Ok(if may_run || again { Decision::Run(pending) } else { Decision::Held(pending) })
    }

    /// Whether a budget was used up before all rows of the recorded node were asked.
    fn is_cut_short(&self, last: &NodeRun) -> bool {
        let result = last.key.and_then(|key| self.store.result(&key));
        result.is_some_and(|result| result.unasked > 0 && result.outputs == last.outputs)
    }

    /// Whether all outputs of the recorded node still exist.
    fn is_whole(&self, last: &NodeRun, look: Look) -> bool {
        last.outputs.values().all(|output| match self.store.check_output(output) {
            Ok(()) => look != Look::Closely || matches!(self.store.intact(&output.id), Ok(Ok(()))),
            Err(damage) => damage == Damage::Released && look != Look::Closely,
        })
    }

    fn look_up(
        &self,
        node: &Node,
        parts: &Parts,
        key: &NodeKey,
        may_run: bool,
        needed: bool,
        look: Look,
    ) -> Result<Lookup, StoreError> {
        let retry = if may_run { self.request.retry } else { Retry::Nothing };
        let found = look_up(self.store, node, parts, key, retry, needed);
        let Lookup::Hit(result, released) = &found else { return Ok(found) };
        for (port, output) in result.outputs.iter().filter(|(port, _)| !released.contains(port)) {
            let handed_over = matches!(node.outputs.get(port), Some(PortType::Tree(_)));
            let state = match look {
                Look::Closely => self.store.intact(&output.id)?,
                // Outputs that are about to be delivered are compared with their digests first.
                Look::Here if handed_over && !node.operator.declaration.destinations().is_empty() => {
                    self.store.intact_once(&output.id)?
                }
                // A loop with `keep:` fetches no more than it reads.
                Look::Here if handed_over && (needed || node.spec.keep.is_none()) => self.store.fetch(&output.id)?,
                Look::Here | Look::There => Ok(()),
            };
            if let Err(damage) = state {
                return Ok(Lookup::Miss(vec![damage_reason(port, damage)]));
            }
        }
        Ok(found)
    }

    /// Describes a node with unknown inputs: the nodes it waits for, and the changes known so far.
    fn waits(&self, node: &Node, known: &Known, sources: &SourceDigests) -> Decision {
        // Stands for the digest of an unknown input: no content has it.
        let unknown = Digest::from_bytes([0; 32]);
        let mut on: Vec<NodeId> = Vec::new();
        let mut filled = Known::new();
        for input in &node.inputs {
            if !known.contains_key(&input.node) {
                on.push(self.plan[input.node].id().to_owned());
            }
            let artifact_type = (&input.port_type).into();
            let output = match known.get(&input.node).and_then(|outputs| outputs.get(&input.output)) {
                Some(output) => output.clone(),
                None => OutputRecord { id: unknown.into(), artifact_type, rows: 0, bytes: 0 },
            };
            filled.entry(input.node).or_default().insert(input.output.clone(), output);
        }
        on.dedup();
        let (directory, limit) = (self.request.directory, self.request.rows_of(node));
        let Ok(Some(parts)) = Parts::gather(node, &filled, sources, directory, limit) else {
            return Decision::Waits { on, preimage: Value::Null, reasons: Vec::new() };
        };
        let mut preimage = parts.key(node).1;
        // No key can be derived from it by mistake.
        for input in preimage["inputs"].as_array_mut().into_iter().flatten() {
            if input[2].as_str() == Some(unknown.hex().as_str()) {
                input[2] = Value::Null;
            }
        }
        let mut reasons = self.reasons(node, None, &preimage);
        // `NeverRan` and `Unfinished` are not conclusive yet: they depend on the inputs.
        reasons.retain(|reason| !matches!(reason, Reason::NeverRan | Reason::Unfinished));
        Decision::Waits { on, preimage, reasons }
    }

    /// Returns why a node runs, compared with the last run that recorded it.
    fn reasons(&self, node: &Node, key: Option<&NodeKey>, preimage: &Value) -> Vec<Reason> {
        let Some(last) = self.history.last(self.plan, self.store, node.id()) else { return vec![Reason::NeverRan] };
        // It began with this key and has no result: it was interrupted or failed.
        if last.key.as_ref() == key {
            return vec![Reason::Unfinished];
        }
        match self.store.preimage_of(last) {
            Some(before) => diff_known(&before, preimage),
            None => vec![Reason::Unfinished],
        }
    }
}

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

fn damage_reason(port: &str, damage: Damage) -> Reason {
    let port = port.to_owned();
    match damage {
        Damage::Missing => Reason::ArtifactMissing { port },
        Damage::Corrupt => Reason::ArtifactCorrupt { port },
        Damage::Released => Reason::Released { port },
    }
}

/// Returns the differences between two preimages; in `now`, contents may be unknown (`null`).
pub(crate) fn diff_known(before: &Value, now: &Value) -> Vec<Reason> {
    let mut now = now.clone();
    for (index, input) in now["inputs"].as_array_mut().into_iter().flatten().enumerate() {
        let same_port = before["inputs"][index][0] == input[0];
        if input[2].is_null() && same_port {
            input[2] = before["inputs"][index][2].clone();
        }
    }
    diff(before, &now)
}

/// Why the result of a frozen node cannot be used.
const GONE: &str = "its last result is damaged or missing in the store";

const CUT_SHORT: &str = "a budget was used up before all rows of its last result were asked";

fn misfit(why: &str) -> OperatorError {
    let help = "run it once without `freeze: true` to recompute it";
    OperatorError::pipeline(format!("the node is frozen and does not run: {why}")).with_help(help)
}

/// Returns the key that a run would give the node, and its preimage; `None` while an input is unknown. For tools and
/// tests: all keys come from this code.
///
/// # Errors
/// Fails if a source cannot be read.
pub fn node_key(
    node: &Node,
    known: &Known,
    sources: &SourceDigests,
    directory: &Path,
) -> Result<Option<(NodeKey, Value)>, SourceProblem> {
    Ok(Parts::gather(node, known, sources, directory, None)?.map(|parts| parts.key(node)))
}

/// The parts of a node's key.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) inputs: Vec<InputIdentity>,
    outputs: Vec<OutputIdentity>,
    sources: Vec<SourceIdentity>,
    /// The sources as the key saw them.
    pub(crate) seen: Arc<SeenSources>,
    params: Value,
}

impl Parts {
    /// Gathers the parts; `None` while an input is unknown.
    fn gather(
        node: &Node,
        known: &Known,
        sources: &SourceDigests,
        directory: &Path,
        limit: Option<u64>,
    ) -> Result<Option<Self>, SourceProblem> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            let Some(record) = known.get(&input.node).and_then(|outputs| outputs.get(&input.output)) else {
                return Ok(None);
            };
            let artifact_type = input.port_type.to_string();
            inputs.push(InputIdentity { port: input.port.clone(), artifact_type, digest: record.id.digest() });
        }
        let named = node.operator.declaration.sources(directory);
        let (mut found, seen) = sources.identify(&named, directory)?;
        let seen = Arc::new(SeenSources::new(named, seen, directory));
        // `--limit` shortens what sources produce, so it is part of their identity.
        if let Some(rows) = limit {
            found.push(SourceIdentity { name: "--limit".to_owned(), content: rows.to_string(), place: 0 });
        }
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for (port, port_type) in &node.outputs {
            let kind = match port_type {
                PortType::Rows(kind) => format!("{kind} v{}", kind.version()),
                PortType::Tree(kind) => kind.name().to_owned(),
            };
            outputs.push(OutputIdentity { port: port.clone(), kind });
        }
        Ok(Some(Self { inputs, outputs, sources: found, seen, params: node.identity_params.clone() }))
    }

    /// Returns the digest shared by all rows of the row input; it names the memo folder.
    pub(crate) fn row_base(&self, node: &Node) -> Digest {
        let side = self.side_inputs(node.main_port.as_deref());
        on_its_processor(node, NodeIdentity { params: &node.row_params, ..self.identity(node, &side) }.key().0.0)
    }

    /// Returns the digest shared by all parts of the row input; it excludes that input.
    pub(crate) fn block_base(&self, node: &Node) -> Digest {
        let side = self.side_inputs(node.main_port.as_deref());
        on_its_processor(node, self.identity(node, &side).key().0.0)
    }

    fn identity<'a>(&'a self, node: &'a Node, inputs: &'a [InputIdentity]) -> NodeIdentity<'a> {
        NodeIdentity {
            operator: node.entry.name,
            version: node.version(),
            params: &self.params,
            inputs,
            outputs: &self.outputs,
            sources: &self.sources,
            seed: (node.operator.declaration.effect != Effect::Pure).then_some(node.spec.seed),
            services: &node.services,
        }
    }

    /// Returns the base of the calls to the node's endpoint.
    pub(crate) fn calls_base(&self, node: &Node, endpoint: &EndpointUse, is_observed: bool) -> Digest {
        let beside = Beside { services: &node.services, inputs: &self.inputs, sources: &self.sources };
        calls_base(endpoint, &beside, is_observed)
    }

    /// Returns the local files behind the sources.
    pub(crate) fn files(&self) -> Vec<SourceFile> {
        let mut files = Vec::new();
        for file in self.seen.seen().iter().flat_map(|source| &source.files) {
            let Some(digest) = file.digest else { continue };
            let path = std::path::absolute(&file.path).unwrap_or_else(|_| file.path.clone());
            let (name, path) = (file.name.clone(), path.display().to_string());
            files.push(SourceFile { name, path, content: digest.hex() });
        }
        files
    }

    /// Returns the node's key and its preimage.
    fn key(&self, node: &Node) -> (NodeKey, Value) {
        self.identity(node, &self.inputs).key()
    }

    /// Returns the inputs at all ports except `main_port`.
    fn side_inputs(&self, main_port: Option<&str>) -> Vec<InputIdentity> {
        self.inputs.iter().filter(|input| Some(input.port.as_str()) != main_port).cloned().collect()
    }
}

/// Separates rows by processor and GPU: a result that mixed them could not be reproduced anywhere.
fn on_its_processor(node: &Node, base: Digest) -> Digest {
    if node.operator.declaration.repeatability != Repeatability::Processor {
        return base;
    }
    let resources = &node.spec.resources;
    let device = match (resources.gpus > 0, resources.cpu_fallback) {
        (false, _) => processor(),
        (true, true) => format!("GPU or {}", processor()),
        (true, false) => "GPU".to_owned(),
    };
    base_on(&base, &device)
}

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
    fn frozen(&self, plan: &Plan, store: &Store, limit: &RowLimit) -> &BTreeMap<NodeId, LastOutputs> {
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
    let had = limit_text(&run.limit);
    (run.limit != *limit).then(|| format!("run {id} had {had}, this one has {}", limit_text(limit)))
}

fn limit_text(limit: &RowLimit) -> String {
    if limit.is_none() { "no --limit".to_owned() } else { limit.to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contents_that_are_not_known_yet_are_no_difference() {
        let of = |size: u64, inputs: Value| {
            json!({
                "format": 1, "operator": "chunk", "version": 1, "params": {"size": size}, "inputs": inputs,
                "outputs": [], "sources": [], "seed": null,
            })
        };
        let before = of(6, json!([["documents", "document rows", "aa"], ["more", "document rows", "bb"]]));
        let waits = of(7, json!([["documents", "document rows", null], ["more", "document rows", "cc"]]));
        let reasons = diff_known(&before, &waits);
        assert_eq!(
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["param `size` changed from 6 to 7", "the content of input `more` changed",]
        );
        let rebound = of(6, json!([["documents", "document rows", null]]));
        assert_eq!(diff_known(&before, &rebound), [Reason::InputsRebound { port: "more".to_owned() }]);
    }
}
