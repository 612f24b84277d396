//! Determines what a collection keeps: results and artifacts protected by runs, pins or age.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::PathBuf;

use super::producers::Makers;
use crate::fingerprint::{Digest, NodeKey};
use crate::store::artifacts::artifact::ArtifactId;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::if_there;
use crate::store::layout::Store;
use crate::store::records::node_result::NodeResult;
use crate::store::records::pins::Pin;
use crate::store::records::runs::{NodeRun, RunRecord};

/// All results of a store, and which of them stay.
pub(crate) struct Stock {
    pub(crate) history: RunHistory,
    pub(crate) makers: Makers,
    retained_runs: BTreeSet<String>,
    pub(crate) roots: Roots,
    pub(crate) pins: Vec<Pin>,
    /// Everything created or used since then (Unix time in seconds) stays.
    pub(crate) since: f64,
}

impl Stock {
    /// Keeps `newest` runs of each pipeline, and unfinished ones that began after `alive`.
    pub(crate) fn read(store: &Store, newest: usize, since: f64, alive: f64) -> Result<Self, StoreError> {
        all_readable(store)?;
        let history = RunHistory::read(store);
        let (makers, pins) = (Makers::read(store), store.pins()?);
        let retained_runs = history.retained(newest, since, alive);
        let roots = Roots::new(&history, &retained_runs, &makers, &pins, since);
        Ok(Self { history, makers, retained_runs, roots, pins, since })
    }

    /// Returns the memos used by results that stay.
    pub(crate) fn memos(&self) -> BTreeSet<Digest> {
        self.roots.keys.iter().filter_map(|key| self.makers.result(key)).flat_map(NodeResult::memos).collect()
    }

    /// Returns the runs that do not stay.
    pub(crate) fn old_runs(&self) -> impl Iterator<Item = &str> {
        self.history.runs.iter().map(|run| run.id.as_str()).filter(|id| !self.retained_runs.contains(*id))
    }
}

/// Fails if a pin, a run or a result cannot be read, because what it protects is then unknown.
fn all_readable(store: &Store) -> Result<(), StoreError> {
    let mut pending: Vec<PathBuf> = ["pins", "runs", "results"].map(|name| store.root().join(name)).into();
    while let Some(folder) = pending.pop() {
        // Other processes may remove records meanwhile: what is gone protects nothing.
        for entry in if_there(fs::read_dir(&folder)).context("read", &folder)?.into_iter().flatten() {
            let path = entry.context("read", &folder)?.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                if_there(File::open(&path)).context("read", &path)?;
            }
        }
    }
    Ok(())
}

pub(crate) struct Run {
    pub(crate) id: String,
    pub(crate) imported: bool,
    pub(crate) record: Option<RunRecord>,
    pub(crate) nodes: Vec<NodeRun>,
}

/// All runs, newest first and imported ones last, with what they record about keys.
pub(crate) struct RunHistory {
    pub(crate) runs: Vec<Run>,
    pub(crate) names: BTreeMap<NodeKey, String>,
    used: BTreeMap<NodeKey, f64>,
}

impl RunHistory {
    fn read(store: &Store) -> Self {
        let (mut runs, mut names, mut used) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for id in store.newest_runs() {
            let (record, nodes, imported) = (store.run(&id), store.run_nodes(&id), store.is_imported(&id));
            if let Some(record) = &record {
                for node in &nodes {
                    let Some(key) = node.key else { continue };
                    names.entry(key).or_insert_with(|| format!("{}/{}", record.pipeline, node.node));
                    let time: &mut f64 = used.entry(key).or_insert(0.0);
                    *time = time.max(record.started);
                }
            }
            runs.push(Run { id, imported, record, nodes });
        }
        Self { runs, names, used }
    }

    pub(crate) fn used(&self, result: &NodeResult) -> f64 {
        self.used.get(&result.key).copied().unwrap_or_default().max(result.finished)
    }

    /// Returns the runs whose results stay.
    fn retained(&self, newest: usize, since: f64, alive: f64) -> BTreeSet<String> {
        // Imported runs are counted separately from this store's runs.
        let mut count: BTreeMap<(&str, bool), usize> = BTreeMap::new();
        let mut has_good: BTreeSet<(&str, bool)> = BTreeSet::new();
        let mut retained = BTreeSet::new();
        for run in &self.runs {
            let Some(record) = &run.record else {
                // A run with a torn record stays: its outcome is unknown.
                retained.insert(run.id.clone());
                continue;
            };
            let pipeline = (record.pipeline.as_str(), run.imported);
            let number = count.entry(pipeline).or_default();
            *number += 1;
            // Runs come newest first, so this is the last good one (3: completed, but rows failed or outputs were held back).
            let is_last_good = matches!(record.exit, Some(0 | 3)) && has_good.insert(pipeline);
            let is_running = record.finished.is_none() && record.started > alive;
            if *number <= newest.max(1) || is_last_good || is_running || record.started > since {
                retained.insert(run.id.clone());
            }
        }
        retained
    }
}

/// What stays.
pub(crate) struct Roots {
    pub(crate) keys: BTreeSet<NodeKey>,
    pub(crate) artifacts: BTreeSet<ArtifactId>,
    /// Artifacts that some result refers to, kept or not. Their use is known exactly.
    pub(crate) known: BTreeSet<ArtifactId>,
}

impl Roots {
    fn new(history: &RunHistory, runs: &BTreeSet<String>, makers: &Makers, pins: &[Pin], since: f64) -> Self {
        let mut roots = Self { keys: BTreeSet::new(), artifacts: BTreeSet::new(), known: BTreeSet::new() };
        for run in history.runs.iter().filter(|run| runs.contains(&run.id)) {
            for node in &run.nodes {
                roots.keys.extend(node.key);
                // Also without its result: another run may have replaced it, and with it the outputs.
                roots.artifacts.extend(node.outputs.values().map(|output| output.id));
            }
        }
        roots.keys.extend(makers.live().filter(|result| history.used(result) > since).map(|result| result.key));
        for pin in pins {
            roots.artifacts.insert(pin.artifact);
            let keys = makers.chosen(pin.key, &pin.artifact, &BTreeSet::new());
            if pin.lineage {
                roots.keys.extend(makers.ancestry(&keys, &roots.keys));
            } else {
                roots.keys.extend(keys);
            }
        }
        for result in makers.live() {
            for output in result.outputs.values() {
                roots.known.insert(output.id);
                if roots.keys.contains(&result.key) {
                    roots.artifacts.insert(output.id);
                }
            }
        }
        roots
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::store::KeepPolicy;
    use crate::store::files::clear;

    #[test]
    fn nothing_is_collected_while_a_record_cannot_be_read() {
        for name in ["pins", "runs/1/nodes.jsonl", "results/ab"] {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(folder.path()).unwrap();
            let policy = KeepPolicy { runs: 1, age: Duration::ZERO, memo: false, forget_runs: false, release: false };
            store.garbage(&policy, 1.0).unwrap();
            let path = store.root().join(name);
            clear(&path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            // A link to itself: what is behind it is unknown.
            std::os::unix::fs::symlink(path.file_name().unwrap(), &path).unwrap();
            let told = store.garbage(&policy, 1.0).unwrap_err().to_string();
            assert!(told.contains(&path.display().to_string()), "{told}");
            assert!(store.collect(&policy, 1.0).is_err());
        }
    }

    #[test]
    fn imported_runs_are_counted_apart() {
        let run = |id: &str, imported| {
            let record = json!({
                "id": id, "pipeline": "p", "file": "p.yaml", "params": null, "started": 1.0, "finished": 2.0, "exit": 0,
                "nodes": 0
            });
            Run { id: id.to_owned(), imported, record: serde_json::from_value(record).ok(), nodes: Vec::new() }
        };
        let runs = vec![run("3", false), run("2", false), run("9", true), run("8", true)];
        assert!(runs.iter().all(|run| run.record.is_some()));
        let history = RunHistory { runs, names: BTreeMap::new(), used: BTreeMap::new() };
        assert_eq!(history.retained(1, 5.0, f64::INFINITY), ["3", "9"].map(str::to_owned).into());
    }
}
