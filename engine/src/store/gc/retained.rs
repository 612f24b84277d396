//! Determines what a collection keeps: results and artifacts protected by runs, pins or age.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::PathBuf;

use super::producers::Makers;
use crate::fingerprint::{Digest, NodeKey};
use crate::store::artifacts::artifact::ArtifactId;
use crate::store::error::StoreError;
use crate::store::files::if_there;
use crate::store::layout::Store;
use crate::store::records::node_result::NodeResult;
use crate::store::records::pins::Pin;
use crate::store::records::runs::{NodeRun, RunRecord};

/// All results of a store, and which of them stay.
pub(crate) struct Stock {
    pub(crate) ledger: Ledger,
    pub(crate) makers: Makers,
    pub(super) kept_runs: BTreeSet<String>,
    pub(crate) roots: Roots,
    pub(crate) pins: Vec<Pin>,
    /// Everything created or used since then (Unix time in seconds) stays.
    pub(crate) since: f64,
}

impl Stock {
    /// Keeps `newest` runs of each pipeline, and unfinished ones that began after `alive`.
    pub(crate) fn read(store: &Store, newest: usize, since: f64, alive: f64) -> Result<Self, StoreError> {
        all_readable(store)?;
        let ledger = Ledger::read(store);
        let (makers, pins) = (Makers::read(store), store.pins()?);
        let kept_runs = ledger.kept(newest, since, alive);
        let roots = Roots::new(&ledger, &kept_runs, &makers, &pins, since);
        Ok(Self { ledger, makers, kept_runs, roots, pins, since })
    }

    /// Returns the memos used by results that stay.
    pub(crate) fn memos(&self) -> BTreeSet<Digest> {
        let kept = self.roots.keys.iter().filter_map(|key| self.makers.result(key));
        kept.flat_map(NodeResult::memos).collect()
    }

    /// Returns the runs that do not stay.
    pub(crate) fn old_runs(&self) -> impl Iterator<Item = &str> {
        self.ledger.runs.iter().map(|run| run.id.as_str()).filter(|id| !self.kept_runs.contains(*id))
    }
}

/// Fails if a pin, a run or a result cannot be read, because what it protects is then unknown.
fn all_readable(store: &Store) -> Result<(), StoreError> {
    let mut pending: Vec<PathBuf> = ["pins", "runs", "results"].map(|name| store.root().join(name)).into();
    while let Some(folder) = pending.pop() {
        let entries = if_there(fs::read_dir(&folder)).map_err(StoreError::io("read", &folder))?;
        for entry in entries.into_iter().flatten() {
            let path = entry.map_err(StoreError::io("read", &folder))?.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                if_there(File::open(&path)).map_err(StoreError::io("read", &path))?;
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
pub(crate) struct Ledger {
    pub(crate) runs: Vec<Run>,
    pub(crate) names: BTreeMap<NodeKey, String>,
    used: BTreeMap<NodeKey, f64>,
}

impl Ledger {
    fn read(store: &Store) -> Self {
        let read = |id: String| {
            let (record, nodes) = (store.run(&id), store.run_nodes(&id));
            Run { imported: store.is_imported(&id), record, nodes, id }
        };
        let runs: Vec<Run> = store.newest_runs().into_iter().map(read).collect();
        let (mut names, mut used) = (BTreeMap::new(), BTreeMap::new());
        for run in &runs {
            let Some(record) = &run.record else { continue };
            for node in &run.nodes {
                let Some(key) = node.key else { continue };
                names.entry(key).or_insert_with(|| format!("{}/{}", record.pipeline, node.node));
                let time: &mut f64 = used.entry(key).or_insert(0.0);
                *time = time.max(record.started);
            }
        }
        Self { runs, names, used }
    }

    pub(crate) fn used(&self, result: &NodeResult) -> f64 {
        self.used.get(&result.key).copied().unwrap_or_default().max(result.finished)
    }

    /// Returns the runs whose results stay.
    fn kept(&self, newest: usize, since: f64, alive: f64) -> BTreeSet<String> {
        // Imported runs are counted separately from this store's runs.
        let mut count: BTreeMap<(&str, bool), usize> = BTreeMap::new();
        let mut went_well: BTreeSet<(&str, bool)> = BTreeSet::new();
        let mut kept = BTreeSet::new();
        for run in &self.runs {
            // A run with a torn record stays: its outcome is unknown.
            let stays = run.record.as_ref().is_none_or(|record| {
                let pipeline = (record.pipeline.as_str(), run.imported);
                let number = count.entry(pipeline).or_default();
                *number += 1;
                let first_good = matches!(record.exit, Some(0 | 3)) && went_well.insert(pipeline);
                let running = record.finished.is_none() && record.started > alive;
                *number <= newest.max(1) || first_good || running || record.started > since
            });
            if stays {
                kept.insert(run.id.clone());
            }
        }
        kept
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
    fn new(ledger: &Ledger, runs: &BTreeSet<String>, makers: &Makers, pins: &[Pin], since: f64) -> Self {
        let mut roots = Self { keys: BTreeSet::new(), artifacts: BTreeSet::new(), known: BTreeSet::new() };
        for run in ledger.runs.iter().filter(|run| runs.contains(&run.id)) {
            roots.keys.extend(run.nodes.iter().filter_map(|node| node.key));
            roots.artifacts.extend(run.nodes.iter().flat_map(|node| node.outputs.values()).map(|output| output.id));
        }
        roots.keys.extend(makers.live().filter(|result| ledger.used(result) > since).map(|result| result.key));
        for pin in pins {
            roots.artifacts.insert(pin.artifact);
            let keys = pin.key.map_or_else(|| makers.of(&pin.artifact, &BTreeSet::new(), None), |key| vec![key]);
            roots.keys.extend(if pin.lineage {
                makers.ancestry(keys, &roots.keys)
            } else {
                keys.into_iter().collect()
            });
        }
        for result in makers.live() {
            let outputs = result.outputs.values().map(|output| output.id);
            if roots.keys.contains(&result.key) {
                roots.artifacts.extend(outputs.clone());
            }
            roots.known.extend(outputs);
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
        let ledger = Ledger { runs, names: BTreeMap::new(), used: BTreeMap::new() };
        assert_eq!(ledger.kept(1, 5.0, f64::INFINITY), ["3", "9"].map(str::to_owned).into());
    }
}
