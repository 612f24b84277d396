//! The runs of the store: records, events, and differences between two runs.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::failure::Failure;
use super::open::Session;
use crate::fingerprint::Digest;
use crate::lineage::{Catalog, RunDiff, diff_nodes, diff_runs, name_in, run_of};
use crate::node_id::NodeId;
use crate::store::{NodeResult, NodeRun, RunRecord, Store};

/// A run of the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PastRun {
    /// The run's record; `None` if it is damaged.
    pub record: Option<RunRecord>,
    /// Whether the run was imported with an archive.
    pub imported: bool,
    /// Whether a process on this machine is running it now.
    pub running: bool,
}

/// A table or folder that one node of a run read from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunEdge {
    /// The node that made it.
    pub from: NodeId,
    /// Its output.
    pub output: String,
    /// The node that read it.
    pub to: NodeId,
}

/// The runs that a session's store has recorded. [`Session::runs`] returns it.
pub struct RunsView<'s> {
    pub(super) session: &'s Session,
}

impl Session {
    /// Returns the runs of the store.
    pub fn runs(&self) -> RunsView<'_> {
        RunsView { session: self }
    }
}

impl RunsView<'_> {
    /// Returns the ids of all runs, oldest first.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn ids(&self) -> Result<Vec<String>, Failure> {
        Ok(self.session.look()?.run_ids())
    }

    /// Whether there is a run of that id. Ask this of ids from outside before anything else: they may be paths.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn contains(&self, id: &str) -> Result<bool, Failure> {
        Ok(self.session.look()?.has_run(id))
    }

    /// Returns the newest run of this store, imported ones excluded.
    ///
    /// # Errors
    /// Fails if there is no store.
    pub fn last(&self) -> Result<Option<RunRecord>, Failure> {
        let store = self.session.existing()?;
        Ok(store.newest_runs().iter().find_map(|id| store.run(id)))
    }

    /// Returns the id of the newest run of the pipeline in that file.
    ///
    /// # Errors
    /// Fails if there is no store, if the file cannot be read, or if its pipeline never ran.
    pub fn newest_of(&self, file: &Path) -> Result<String, Failure> {
        let store = self.session.existing()?;
        let (path, shown) = (self.session.directory().join(file), file.display());
        let name = name_in(&path);
        if name.is_none() && path.exists() {
            let message = format!("the name of the pipeline in `{shown}` cannot be read");
            return Err(Failure::usage(message).with_help(format!("`searchmill validate {shown}` says why")));
        }
        if let Some(name) = name
            && let Some((run, _)) = store.last_run(&name)
        {
            return Ok(run.id);
        }
        let failure = Failure::usage(format!("the store has no run of `{shown}`"));
        Err(failure.with_help("`searchmill runs` lists the runs"))
    }

    /// Returns one run.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn get(&self, id: &str) -> Result<PastRun, Failure> {
        let store = self.session.look()?;
        let record = store.run(id);
        // The record of a run that ended says so: no lock has to be looked at.
        let may_run = record.as_ref().is_none_or(|record| record.finished.is_none());
        Ok(PastRun { record, imported: store.is_imported(id), running: may_run && store.is_running(id) })
    }

    /// Returns the records of a run's nodes.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn nodes(&self, id: &str) -> Result<Vec<NodeRun>, Failure> {
        Ok(self.session.look()?.run_nodes(id))
    }

    /// Returns the events of a run, or of the newest one: one JSON object per line.
    ///
    /// # Errors
    /// Fails if there is no such run.
    pub fn events(&self, run: Option<&str>) -> Result<String, Failure> {
        let store = self.session.existing()?;
        Ok(store.run_events(&run_of(store, run.unwrap_or("latest"))?))
    }

    /// Returns the events of a run from a byte of its record on, in whole lines, and the byte after them.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn events_from(&self, id: &str, byte: u64) -> Result<(String, u64), Failure> {
        Ok(self.session.look()?.run_events_from(id, byte)?)
    }

    /// Returns the last event of a run that ended: its summary.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn end(&self, id: &str) -> Result<Option<Value>, Failure> {
        Ok(self.session.look()?.run_end(id))
    }

    /// Returns what the nodes of a run read from one another, by the order in which the readers ended.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn edges(&self, id: &str) -> Result<Vec<RunEdge>, Failure> {
        let store = self.session.look()?;
        let nodes = store.run_nodes(id);
        let mut makers: BTreeMap<Digest, Vec<(&str, &str)>> = BTreeMap::new();
        for node in &nodes {
            for (port, output) in &node.outputs {
                // Nodes without rejects have equal ones: they say nothing of who read whose.
                if port == "rejects" && output.rows == 0 {
                    continue;
                }
                makers.entry(output.id.digest()).or_default().push((&node.node, port));
            }
        }
        let mut edges = Vec::new();
        for node in &nodes {
            for read in store.inputs_of(node) {
                // Equal content has several makers: one is enough to see where it is from.
                // A node that passes its input on is no maker of it.
                if let Some(made) = makers.get(&read.digest)
                    && let Some((from, output)) = made.iter().find(|(from, _)| node.node != *from)
                {
                    edges.push(RunEdge { from: (*from).into(), output: (*output).to_owned(), to: node.node.clone() });
                }
            }
        }
        edges.dedup();
        Ok(edges)
    }

    /// Returns the record of a node's result in a run; `None` if it has none.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn result(&self, node: &NodeRun) -> Result<Option<NodeResult>, Failure> {
        let store = self.session.look()?;
        Ok(node.key.and_then(|key| store.result(&key)))
    }

    /// Compares two runs. If `one` is `previous`, it is the run of the same pipeline before `other`.
    ///
    /// # Errors
    /// Fails if a run does not exist or its record is damaged.
    pub fn diff(&self, one: &str, other: &str) -> Result<RunDiff, Failure> {
        let store = self.session.existing()?;
        let (one, other) = two_runs(store, one, other)?;
        Ok(diff_runs(store, &Catalog::read(store), &one, &other))
    }

    /// Compares a node of the run `one` with a node of the run `other`, which may be the same run, and what both read.
    ///
    /// # Errors
    /// Fails if a run or a node does not exist, or a record is damaged.
    pub fn diff_nodes(&self, one: &str, other: &str, nodes: [&str; 2]) -> Result<RunDiff, Failure> {
        let store = self.session.existing()?;
        let (one, other) = two_runs(store, one, other)?;
        Ok(diff_nodes(store, &Catalog::read(store), &one, &other, nodes)?)
    }
}

fn two_runs(store: &Store, one: &str, other: &str) -> Result<(RunRecord, RunRecord), Failure> {
    let other = record(store, other)?;
    if one != "previous" {
        return Ok((record(store, one)?, other));
    }
    for id in store.run_ids().iter().rev() {
        // An imported run is no earlier run of this store.
        if *id < other.id
            && !store.is_imported(id)
            && let Some(earlier) = store.run(id)
            && earlier.pipeline == other.pipeline
        {
            return Ok((earlier, other));
        }
    }
    let message = format!("there is no earlier run of the pipeline `{}` than {}", other.pipeline, other.id);
    Err(Failure::usage(message).with_help("`searchmill runs` lists runs; name the two to compare"))
}

fn record(store: &Store, text: &str) -> Result<RunRecord, Failure> {
    let id = run_of(store, text)?;
    store.run(&id).ok_or_else(|| Failure::Other(format!("the record of run {id} cannot be read")))
}
