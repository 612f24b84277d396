//! Garbage collection: removes what no kept run, no pin and no age limit protects.
//!
//! A result is collected by one rename of its record to `collected/`, where the record remains as a tombstone. Its
//! artifacts follow only while no other process uses the store. A run that has looked up a result therefore finds its
//! files. A collection that is killed halfway leaves whole results, or unreferenced artifacts that the next collection
//! removes.
//!
//! With `release`, folders of middle rounds are released as well (`loop_rounds`): their results stay.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::loop_rounds::Middle;
use super::release::{Releasing, Trash};
use super::retained::Stock;
use crate::fingerprint::{Digest, NodeKey};
use crate::store::artifacts::artifact::ArtifactId;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::{clear, folder_bytes, if_there, modified, names_below, names_in, remove};
use crate::store::layout::Store;
use crate::store::lease::Others;
use crate::store::nofollow;
use crate::store::paths::recorded_key;
use crate::store::records::node_result::NodeResult;
use crate::store::records::results::read_record;
use crate::store::records::tombstones::Collection;

/// While a run is active, recent files are not collected: the run may not have registered them yet.
pub(crate) const GRACE: Duration = Duration::from_mins(10);
/// Without file locks, an unfinished run counts as alive up to this age in seconds.
pub(crate) const ALIVE: f64 = 7.0 * 86_400.0;

/// What a collection keeps.
#[derive(Clone, Copy, Debug)]
pub struct KeepPolicy {
    /// Keeps the results of this many newest runs of each pipeline. Results of the last run and of the last successful
    /// run are always kept.
    pub runs: usize,
    /// Keeps results used within this time.
    pub age: Duration,
    /// Whether to collect cached rows that no kept result used and that are older than `age`.
    pub memo: bool,
    /// Whether to remove the records of runs that are not kept.
    pub forget_runs: bool,
    /// Whether to release folders (models, states, indexes) of middle rounds, whatever their age and run.
    pub release: bool,
}

/// A result to collect.
#[derive(Clone, Debug)]
pub struct Collected {
    /// Its key.
    pub key: NodeKey,
    /// Its most recent name: `pipeline/node`.
    pub name: String,
    /// Unix time (seconds) of its last creation or use.
    pub used: f64,
    /// Bytes removed with it.
    pub bytes: u64,
}

/// Everything to collect.
#[derive(Clone, Debug, Default)]
pub struct Garbage {
    /// Results, longest unused first.
    pub results: Vec<Collected>,
    /// Artifacts with their sizes in bytes.
    pub artifacts: Vec<(ArtifactId, u64)>,
    /// Memos with their sizes in bytes.
    pub memos: Vec<(Digest, u64)>,
    /// Runs with their sizes in bytes.
    pub runs: Vec<(String, u64)>,
    /// Number and bytes of memos of external nodes that are kept.
    pub kept_memos: (usize, u64),
    /// Number of kept results.
    pub kept_results: usize,
    /// Bytes of kept artifacts.
    pub kept_bytes: u64,
    /// Whether another process uses the store. Results are then collected now, files by the next collection.
    pub in_use: bool,
    /// Number and bytes of unreferenced artifacts that are too young to collect.
    pub waiting: (usize, u64),
    /// Folders of middle rounds to release, by node.
    pub released: Vec<Middle>,
    /// Notes of releases that no result refers to any more.
    pub(crate) stale_notes: Vec<ArtifactId>,
    /// Whether other machines share the store. Files of the results collected now then remain for a while.
    pub shared: bool,
}

impl Garbage {
    /// Returns the total number of bytes.
    pub fn bytes(&self) -> u64 {
        let artifacts: u64 = self.artifacts.iter().map(|(_, bytes)| bytes).sum();
        let released: u64 = self.released.iter().map(|middle| middle.bytes).sum();
        let memos: u64 = self.memos.iter().map(|(_, bytes)| bytes).sum();
        let runs: u64 = self.runs.iter().map(|(_, bytes)| bytes).sum();
        artifacts + released + memos + runs
    }
}

/// Outcome of a collection.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    /// What was collected, or would be.
    pub garbage: Garbage,
    /// Bytes freed now.
    pub freed: u64,
}

impl Store {
    /// Returns the tombstone of a collected result.
    pub fn tombstone(&self, key: &NodeKey) -> Option<NodeResult> {
        if let Ok(text) = fs::read(self.record_path(key, "collected"))
            && let Some(result) = read_record(&text)
            && result.key == *key
        {
            return Some(result);
        }
        self.fetch_record(key, "collected", 0)
    }

    /// Returns the keys of the records in `results` or `collected`, sorted.
    pub fn keys_below(&self, folder: &str) -> Vec<NodeKey> {
        names_below(&self.root().join(folder)).iter().filter_map(|(name, _)| recorded_key(name)).collect()
    }

    /// Determines what a collection would remove. `now` is the Unix time in seconds.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn garbage(&self, policy: &KeepPolicy, now: f64) -> Result<Garbage, StoreError> {
        if self.is_shared() {
            return self.shared_garbage(policy, now);
        }
        // A read-only store can be inspected too.
        let others = self.alone().unwrap_or(Others::Unknown);
        self.garbage_beside(policy, now, self.is_used(&others, now))
    }

    /// Collects. The store's lease excludes other collections. While a run is active, only results are collected; their
    /// files follow next time.
    ///
    /// # Errors
    /// Fails if something cannot be moved or removed; the next collection finds the rest.
    pub fn collect(&self, policy: &KeepPolicy, now: f64) -> Result<Swept, StoreError> {
        if self.is_shared() {
            return self.collect_shared(policy, now);
        }
        // Held until the files are in `tmp/`: no process begins to use the store meanwhile.
        let others = self.alone()?;
        let garbage = self.garbage_beside(policy, now, self.is_used(&others, now))?;
        // Before anything is removed, so that whatever is missing after a crash has a collection to name.
        if !(garbage.results.is_empty() && garbage.runs.is_empty()) {
            self.note_collection(&collection(&garbage, policy, now))?;
        }
        // Records before files: a record whose files are gone would be damage.
        for result in &garbage.results {
            self.entomb(&result.key)?;
        }
        // Who looked a result up before may still open its files; the next collection removes them as orphans.
        if garbage.in_use {
            return Ok(Swept { garbage, freed: 0 });
        }
        let mut removed = self.move_away(&garbage)?;
        let trash = self.release_all(&garbage, now)?;
        for id in &garbage.stale_notes {
            self.forget_release(id);
        }
        // No other process uses the store, so no lease of a key is held.
        for (name, path) in names_in(&self.root().join("leases")) {
            if Digest::parse(name.split('.').next().unwrap_or_default()).is_some() {
                clear(&path);
            }
        }
        // Descriptions whose folder is gone.
        for (name, path) in names_below(&self.root().join("artifacts")) {
            let id = name.strip_suffix(".json").and_then(ArtifactId::parse);
            if id.is_some_and(|id| !self.artifact_folder(&id).exists()) {
                clear(&path);
            }
        }
        // Earlier versions had folders of links to the parts of tables there.
        clear(&self.root().join("views"));
        for (_, path) in names_below(&self.root().join("checkpoints")) {
            if modified(&path) <= now - policy.age.as_secs_f64() {
                clear(&path);
            }
        }
        // Renaming is quick; runs may proceed while files are removed.
        drop(others);
        removed.extend(trash.folders);
        for trash in &removed {
            remove(trash)?;
        }
        Ok(Swept { freed: garbage.bytes(), garbage })
    }

    fn is_used(&self, others: &Others, now: f64) -> bool {
        match others {
            Others::Nobody { .. } => false,
            Others::Somebody => true,
            Others::Unknown => {
                let mut runs = self.run_ids().into_iter().filter_map(|id| self.run(&id));
                runs.any(|run| run.finished.is_none() && run.started > now - ALIVE)
            }
        }
    }

    fn garbage_beside(&self, policy: &KeepPolicy, now: f64, in_use: bool) -> Result<Garbage, StoreError> {
        let age = if in_use { policy.age.max(GRACE) } else { policy.age };
        let since = now - age.as_secs_f64();
        // While no process uses the store, a run without an end was killed.
        let alive = if in_use { f64::NEG_INFINITY } else { f64::INFINITY };
        let stock = Stock::read(self, policy.runs, since, alive)?;
        let mut artifacts = Vec::new();
        for (name, path) in names_below(&self.root().join("artifacts")) {
            let Some(id) = ArtifactId::parse(&name) else { continue };
            let bytes = self.artifact(&id).map_or_else(|| folder_bytes(&path), |artifact| artifact.bytes());
            // One that no result names may belong to a node that has not recorded its result yet.
            let idle = stock.roots.known.contains(&id) || modified(&path) <= since;
            artifacts.push(StoredArtifact { id, bytes, idle });
        }
        let mut garbage = Garbage { in_use, ..sorted_out(&stock, artifacts) };
        // Beside others, no files go.
        if policy.release && !in_use {
            garbage.released = stock.middle_rounds(self, &garbage.artifacts);
        }
        for (name, _) in names_below(&self.root().join("released")) {
            garbage.stale_notes.extend(name.strip_suffix(".json").and_then(ArtifactId::parse));
        }
        garbage.stale_notes.retain(|id| !stock.roots.known.contains(id));
        let used = stock.memos();
        for base in self.memo_bases() {
            let folder = self.memo_folder(&base);
            // Rows of a node that has not finished yet belong to no result: only their age shows that they are needed.
            let is_unused = policy.memo
                && !used.contains(&base)
                && names_in(&folder).iter().map(|(_, path)| modified(path)).fold(0.0, f64::max) <= stock.since;
            if is_unused {
                garbage.memos.push((base, folder_bytes(&folder)));
            } else {
                garbage.kept_memos.0 += 1;
                garbage.kept_memos.1 += folder_bytes(&folder);
            }
        }
        if policy.forget_runs {
            garbage.runs = stock.old_runs().map(|id| (id.to_owned(), folder_bytes(&self.run_folder(id)))).collect();
        }
        Ok(garbage)
    }

    /// Moves a result's record to the tombstones.
    pub(crate) fn entomb(&self, key: &NodeKey) -> Result<(), StoreError> {
        let from = self.record_path(key, "results");
        match self.rename(&from, &self.record_path(key, "collected")) {
            // Another collection was faster.
            Err(_) if !from.exists() => Ok(()),
            outcome => outcome,
        }
    }

    /// Moves files to `tmp/`, where they are removed, by the next process if this one dies.
    pub(crate) fn move_away(&self, garbage: &Garbage) -> Result<Vec<PathBuf>, StoreError> {
        let mut removed = Vec::new();
        // By renames: a collection that is killed leaves each of them whole, or not at all.
        for (id, _) in &garbage.artifacts {
            removed.extend(self.uninstall(id)?);
        }
        let memos = garbage.memos.iter().map(|(base, _)| self.memo_folder(base));
        for folder in memos.chain(garbage.runs.iter().map(|(id, _)| self.run_folder(id))) {
            let trash = self.temporary();
            if if_there(nofollow::rename(&folder, &trash)).context("remove", &folder)?.is_some() {
                removed.push(trash);
            }
        }
        Ok(removed)
    }

    /// Releases the folders of middle rounds.
    pub(crate) fn release_all(&self, garbage: &Garbage, now: f64) -> Result<Trash, StoreError> {
        let mut trash = Trash::default();
        for middle in &garbage.released {
            let of = Releasing { node: middle.node.clone(), pipeline: middle.pipeline.clone(), time: now };
            self.release_output(&middle.artifact, &of, &mut trash)?;
        }
        Ok(trash)
    }
}

/// An artifact's files.
pub(crate) struct StoredArtifact {
    pub(crate) id: ArtifactId,
    pub(crate) bytes: u64,
    /// Whether they may be removed if nothing kept refers to them.
    pub(crate) idle: bool,
}

/// Determines which results and artifacts to collect.
pub(crate) fn sorted_out(stock: &Stock, artifacts: Vec<StoredArtifact>) -> Garbage {
    let mut garbage = Garbage::default();
    let mut sizes: BTreeMap<ArtifactId, u64> = BTreeMap::new();
    for StoredArtifact { id, bytes, idle } in artifacts {
        let wanted = stock.roots.artifacts.contains(&id);
        if wanted || !idle {
            garbage.kept_bytes += bytes;
            if !wanted {
                garbage.waiting = (garbage.waiting.0 + 1, garbage.waiting.1 + bytes);
            }
        } else {
            garbage.artifacts.push((id, bytes));
        }
        if !wanted {
            sizes.insert(id, bytes);
        }
    }
    for result in stock.makers.live() {
        if stock.roots.keys.contains(&result.key) {
            garbage.kept_results += 1;
            continue;
        }
        // Removed, so that an artifact of several results counts once.
        let bytes = result.outputs.values().filter_map(|output| sizes.remove(&output.id)).sum();
        let name = stock.history.names.get(&result.key).cloned().unwrap_or_default();
        garbage.results.push(Collected { key: result.key, name, used: stock.history.used(result), bytes });
    }
    garbage.results.sort_by(|one, other| one.used.total_cmp(&other.used).then(one.key.cmp(&other.key)));
    garbage
}

/// Describes a collection: its id, and what it removes.
pub(crate) fn collection(garbage: &Garbage, policy: &KeepPolicy, now: f64) -> Collection {
    let moment = chrono::DateTime::from_timestamp(now as i64, 0).unwrap_or_default().format("%Y%m%d-%H%M%S");
    Collection {
        id: format!("gc-{moment}-{:04x}", std::process::id() & 0xffff),
        time: now,
        kept: format!("{} runs, younger than {:.0} s", policy.runs, policy.age.as_secs_f64()),
        keys: garbage.results.iter().map(|result| result.key).collect(),
        runs: garbage.runs.iter().map(|(id, _)| id.clone()).collect(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use indexmap::IndexMap;
    use searchmill_schemas::{Document, RecordKind, to_batch};
    use serde_json::json;

    use super::*;
    use crate::fingerprint::{encode, hash_bytes};
    use crate::operator::{OutputSink, PortType};
    use crate::store::{Pin, StoreSink};

    pub(in crate::store) const POLICY: KeepPolicy =
        KeepPolicy { runs: 1, age: Duration::ZERO, memo: false, forget_runs: false, release: false };

    pub(in crate::store) fn now() -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
    }

    /// A result that no run refers to.
    pub(in crate::store) fn made(store: &Store, text: &str) -> NodeResult {
        let ports = IndexMap::from([("rows".to_owned(), PortType::Rows(RecordKind::Document))]);
        let mut sink = StoreSink::new(store, ports);
        let row = Document { id: text.to_owned(), title: None, text: text.to_owned(), metadata: None };
        sink.write("rows", &to_batch(&[row]).unwrap()).unwrap();
        let preimage = json!({"inputs": [], "text": text});
        let record = json!({
            "key": hash_bytes(&encode(&preimage)), "preimage": preimage, "outputs": sink.commit().unwrap().outputs,
            "seconds": 0.0, "finished": now(), "run": "none", "searchmill": "0",
        });
        let result: NodeResult = serde_json::from_value(record).unwrap();
        store.record(&result).unwrap();
        result
    }

    /// A pin of a result's output.
    pub(in crate::store) fn pinned(result: &NodeResult) -> Pin {
        Pin {
            name: "kept".to_owned(),
            artifact: result.outputs["rows"].id,
            key: Some(result.key),
            from: String::new(),
            lineage: false,
            pinned: 0.0,
        }
    }

    #[test]
    fn beside_others_records_go_and_files_follow_later() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let result = made(&store, "a");
        let artifact = result.outputs["rows"].id;
        let other = store.enter().unwrap();
        assert!(store.garbage(&POLICY, now()).unwrap().results.is_empty(), "recent results may be in use");
        let swept = store.collect(&POLICY, now() + 3600.0).unwrap();
        assert!(swept.garbage.in_use && swept.garbage.results.len() == 1 && swept.freed == 0);
        assert!(store.result(&result.key).is_none() && store.tombstone(&result.key).is_some());
        assert_eq!(store.check(&artifact), Ok(()), "a run that has looked it up can still open it");
        drop(other);
        let swept = store.collect(&POLICY, now() + 3600.0).unwrap();
        assert!(!swept.garbage.in_use && swept.freed > 0);
        assert!(store.check(&artifact).is_err());
        // Recomputed, it is an ordinary result.
        store.record(&made(&store, "a")).unwrap();
        assert!(store.result(&result.key).is_some() && store.check(&artifact).is_ok());
    }

    #[test]
    fn what_two_results_gave_stays_while_one_of_them_does() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (kept, gone) = (made(&store, "a"), made(&store, "b"));
        let shared = NodeResult { outputs: kept.outputs.clone(), ..gone.clone() };
        store.record(&shared).unwrap();
        store.pin(&pinned(&kept)).unwrap();
        let swept = store.collect(&POLICY, now() + 3600.0).unwrap();
        assert_eq!(
            (swept.garbage.results.len(), swept.garbage.artifacts.len()),
            (1, 1),
            "b's first artifact is an orphan"
        );
        assert!(store.result(&kept.key).is_some() && store.check(&kept.outputs["rows"].id).is_ok());
        assert!(store.check(&gone.outputs["rows"].id).is_err());
    }
}
