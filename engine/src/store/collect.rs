//! Garbage collection: what no kept run, no pin and no age protects goes.
//!
//! A result goes by one rename of its record into `collected/`, where it says later what it was. Only then do its
//! artifacts go, and only while nobody else uses the store; so a run that has looked a result up finds its files, and a
//! collection that is killed half-way leaves results that are whole, or artifacts that nobody asks for and that the next
//! collection takes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::artifact::ArtifactId;
use super::error::StoreError;
use super::folder::{folder_bytes, modified, names_below, names_in, remove};
use super::keep::Stock;
use super::layout::Store;
use super::lease::Others;
use super::manifest::NodeResult;
use super::results::read_record;
use super::runs::RunRecord;
use super::tombstones::Collection;
use crate::fingerprint::{Digest, NodeKey};

/// Beside a run, nothing this young goes: the run may not have said yet that it uses it.
pub(super) const GRACE: Duration = Duration::from_mins(10);
/// Where the file system has no locks, an unfinished run this young is taken to be alive.
pub(super) const ALIVE: f64 = 7.0 * 86_400.0;

/// What is kept.
#[derive(Clone, Copy, Debug)]
pub struct KeepPolicy {
    /// The results of so many newest runs of each pipeline. Those of the last run and of the last one that went well are
    /// always kept.
    pub runs: usize,
    /// Results used since then.
    pub age: Duration,
    /// Collect remembered rows that no kept result used and that are older than `age`, too.
    pub memo: bool,
    /// Forget the records of runs that are not kept, too.
    pub forget_runs: bool,
}

/// A result that goes.
#[derive(Clone, Debug)]
pub struct Collected {
    /// Its key.
    pub key: NodeKey,
    /// What it was called last: `pipeline/node`.
    pub name: String,
    /// Unix time (seconds) when it was last made or used.
    pub used: f64,
    /// What goes with it.
    pub bytes: u64,
}

/// All that goes.
#[derive(Clone, Debug, Default)]
pub struct Garbage {
    /// Results, longest unused first.
    pub results: Vec<Collected>,
    /// Artifacts with their bytes.
    pub artifacts: Vec<(ArtifactId, u64)>,
    /// Memos with their bytes.
    pub memos: Vec<(Digest, u64)>,
    /// Runs with their bytes.
    pub runs: Vec<(String, u64)>,
    /// Remembered rows of external nodes that stay: memos, and their bytes.
    pub kept_memos: (usize, u64),
    /// Results that stay.
    pub kept_results: usize,
    /// Bytes of the artifacts that stay.
    pub kept_bytes: u64,
    /// Is another process using the store? Then only results go now, and files with the next collection.
    pub in_use: bool,
    /// Artifacts that nothing kept names and that are too young to go, and their bytes.
    pub waiting: (usize, u64),
    /// Do other machines share the store? Then the files of results that go now stay for another while.
    pub shared: bool,
}

impl Garbage {
    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let artifacts = self.artifacts.iter().map(|(_, bytes)| bytes);
        artifacts.chain(self.memos.iter().map(|(_, bytes)| bytes)).chain(self.runs.iter().map(|(_, b)| b)).sum()
    }
}

/// What a collection did.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    /// What went, or was to go.
    pub garbage: Garbage,
    /// Bytes given back now.
    pub freed: u64,
}

impl Store {
    /// What is left of a result that was collected.
    #[must_use]
    pub fn tombstone(&self, key: &NodeKey) -> Option<NodeResult> {
        let here = fs::read(self.tombstone_path(key)).ok().and_then(|text| read_record(&text));
        here.filter(|result| result.key == *key).or_else(|| self.fetch_record(key, "collected"))
    }

    /// Keys of results that were collected, sorted.
    #[must_use]
    pub fn collected_keys(&self) -> Vec<NodeKey> {
        self.keys_below("collected")
    }

    /// Keys of the records in `results` or `collected`, sorted.
    pub(super) fn keys_below(&self, folder: &str) -> Vec<NodeKey> {
        let names = names_below(&self.root().join(folder)).into_iter();
        let key = |(name, _): (String, PathBuf)| name.strip_suffix(".json").and_then(Digest::parse).map(NodeKey);
        names.filter_map(key).collect()
    }

    /// What a collection would take. `now` is the Unix time in seconds.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn garbage(&self, policy: &KeepPolicy, now: f64) -> Result<Garbage, StoreError> {
        if self.is_shared() {
            return self.shared_garbage(policy, now);
        }
        // A store that cannot be written can be looked at.
        let others = self.alone().unwrap_or(Others::Unknown);
        self.garbage_beside(policy, now, self.is_used(&others, now))
    }

    /// Collects. Kept from running with others by the store's lease; beside a run it takes results only, and their files
    /// the next time.
    ///
    /// # Errors
    /// When something cannot be moved or removed; what is left is found by the next collection.
    pub fn collect(&self, policy: &KeepPolicy, now: f64) -> Result<Swept, StoreError> {
        if self.is_shared() {
            return self.collect_shared(policy, now);
        }
        let others = self.alone()?;
        let garbage = self.garbage_beside(policy, now, self.is_used(&others, now))?;
        if !(garbage.results.is_empty() && garbage.runs.is_empty()) {
            self.note_collection(&collection(&garbage, policy, now))?;
        }
        for result in &garbage.results {
            self.entomb(&result.key)?;
        }
        if garbage.in_use {
            return Ok(Swept { garbage, freed: 0 });
        }
        let removed = self.move_away(&garbage)?;
        self.remove_stale_leases();
        self.remove_stale_checkpoints(now - policy.age.as_secs_f64());
        // Renaming is quick; while files are removed, runs may go on.
        drop(others);
        for trash in &removed {
            remove(trash)?;
        }
        Ok(Swept { freed: garbage.bytes(), garbage })
    }

    fn is_used(&self, others: &Others, now: f64) -> bool {
        let alive = |id: &String| {
            let unfinished = |run: RunRecord| run.finished.is_none() && run.started > now - ALIVE;
            self.run(id).is_some_and(unfinished)
        };
        match others {
            Others::Nobody { .. } => false,
            Others::Somebody => true,
            Others::Unknown => self.run_ids().iter().any(alive),
        }
    }

    fn garbage_beside(&self, policy: &KeepPolicy, now: f64, in_use: bool) -> Result<Garbage, StoreError> {
        let age = if in_use { policy.age.max(GRACE) } else { policy.age };
        let since = now - age.as_secs_f64();
        let alive = if in_use { f64::NEG_INFINITY } else { f64::INFINITY };
        let stock = Stock::read(self, policy.runs, since, alive)?;
        let artifacts = self.all_artifacts().into_iter().map(|(id, path)| Lying {
            id,
            bytes: self.artifact(&id).map_or_else(|| folder_bytes(&path), |artifact| artifact.bytes()),
            idle: stock.roots.known.contains(&id) || modified(&path) <= since,
        });
        let mut garbage = Garbage { in_use, ..sorted_out(&stock, artifacts) };
        if policy.memo {
            garbage.memos = self.unused_memos(&stock);
        }
        let gone: BTreeSet<Digest> = garbage.memos.iter().map(|(base, _)| *base).collect();
        let kept = self.memo_bases().into_iter().filter(|base| !gone.contains(base));
        let sizes: Vec<u64> = kept.map(|base| folder_bytes(&self.memo_folder(&base))).collect();
        garbage.kept_memos = (sizes.len(), sizes.iter().sum());
        if policy.forget_runs {
            garbage.runs = stock.old_runs().map(|id| (id.to_owned(), folder_bytes(&self.run_folder(id)))).collect();
        }
        Ok(garbage)
    }

    fn all_artifacts(&self) -> Vec<(ArtifactId, PathBuf)> {
        let found = names_below(&self.root().join("artifacts")).into_iter();
        found.filter_map(|(name, path)| Some((ArtifactId::parse(&name)?, path))).collect()
    }

    /// Memos that no kept result used, and that nobody has written to for that long.
    fn unused_memos(&self, stock: &Stock) -> Vec<(Digest, u64)> {
        let kept = stock.memos();
        let unused = |base: &Digest| {
            let newest = names_in(&self.memo_folder(base)).iter().map(|(_, path)| modified(path)).fold(0.0, f64::max);
            !kept.contains(base) && newest <= stock.since
        };
        let bases = self.memo_bases().into_iter().filter(unused);
        bases.map(|base| (base, folder_bytes(&self.memo_folder(&base)))).collect()
    }

    /// Makes a result a thing of the past.
    pub(super) fn entomb(&self, key: &NodeKey) -> Result<(), StoreError> {
        let from = self.result_path(key);
        match self.rename(&from, &self.tombstone_path(key)) {
            // Another collection was there first.
            Err(_) if !from.exists() => Ok(()),
            outcome => outcome,
        }
    }

    /// Moves the files of the garbage under `tmp/`, from where they are removed, by the next process if this one dies.
    pub(super) fn move_away(&self, garbage: &Garbage) -> Result<Vec<PathBuf>, StoreError> {
        let artifacts = garbage.artifacts.iter().map(|(id, _)| self.artifact_folder(id));
        let memos = garbage.memos.iter().map(|(base, _)| self.memo_folder(base));
        let runs = garbage.runs.iter().map(|(id, _)| self.run_folder(id));
        let mut removed = Vec::new();
        for folder in artifacts.chain(memos).chain(runs) {
            let trash = self.temporary();
            match fs::rename(&folder, &trash) {
                Ok(()) => removed.push(trash),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::io("remove", &folder)(error)),
            }
        }
        Ok(removed)
    }

    /// State of nodes that nobody computes, and that nobody went on with since.
    fn remove_stale_checkpoints(&self, since: f64) {
        for (_, path) in names_below(&self.root().join("checkpoints")) {
            if modified(&path) <= since
                && let Err(error) = fs::remove_file(&path)
            {
                tracing::debug!("left {} behind: {error}", path.display());
            }
        }
    }

    /// Lease files of keys that nobody computes: nobody uses the store.
    fn remove_stale_leases(&self) {
        for (name, path) in names_in(&self.root().join("leases")) {
            if Digest::parse(name.split('.').next().unwrap_or_default()).is_some()
                && let Err(error) = fs::remove_file(&path)
            {
                tracing::debug!("left {} behind: {error}", path.display());
            }
        }
    }
}

/// An artifact's files.
pub(super) struct Lying {
    pub(super) id: ArtifactId,
    pub(super) bytes: u64,
    /// May they go, if nothing that stays names them?
    pub(super) idle: bool,
}

/// What goes of results and artifacts.
pub(super) fn sorted_out(stock: &Stock, artifacts: impl Iterator<Item = Lying>) -> Garbage {
    let mut garbage = Garbage::default();
    let mut sizes: BTreeMap<ArtifactId, u64> = BTreeMap::new();
    for Lying { id, bytes, idle } in artifacts {
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
        let bytes = result.outputs.values().filter_map(|output| sizes.remove(&output.id)).sum();
        let name = stock.ledger.names.get(&result.key).cloned().unwrap_or_default();
        let used = stock.ledger.used(result);
        garbage.results.push(Collected { key: result.key, name, used, bytes });
    }
    garbage.results.sort_by(|one, other| one.used.total_cmp(&other.used).then(one.key.cmp(&other.key)));
    garbage
}

/// What a collection is called and what it takes.
pub(super) fn collection(garbage: &Garbage, policy: &KeepPolicy, now: f64) -> Collection {
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
pub(super) mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use indexmap::IndexMap;
    use searchmill_schemas::{Document, RecordKind, to_batch};
    use serde_json::json;

    use super::*;
    use crate::fingerprint::{encode, hash_bytes};
    use crate::operator::{OutputSink, PortType};
    use crate::store::{Pin, StoreSink};

    pub(in crate::store) const POLICY: KeepPolicy =
        KeepPolicy { runs: 1, age: Duration::ZERO, memo: false, forget_runs: false };

    pub(in crate::store) fn now() -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
    }

    /// A result that no run knows of.
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

    /// A pin of what a result gave.
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
        assert!(store.garbage(&POLICY, now()).unwrap().results.is_empty(), "what is this young may be in use");
        let swept = store.collect(&POLICY, now() + 3600.0).unwrap();
        assert!(swept.garbage.in_use && swept.garbage.results.len() == 1 && swept.freed == 0);
        assert!(store.result(&result.key).is_none() && store.tombstone(&result.key).is_some());
        assert_eq!(store.check(&artifact), Ok(()), "whoever has looked it up can still open it");
        drop(other);
        let swept = store.collect(&POLICY, now() + 3600.0).unwrap();
        assert!(!swept.garbage.in_use && swept.freed > 0);
        assert!(store.check(&artifact).is_err());
        // Made again, it is a result like any other.
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
