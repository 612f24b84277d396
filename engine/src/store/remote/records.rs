//! Records, tombstones and pins of a shared store: fetches and uploads them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;

use super::objects::{self, Objects, Put};
use super::{AT_ONCE, Remote};
use crate::fingerprint::{Digest, NodeKey};
use crate::store::error::StoreError;
use crate::store::intake::record_place;
use crate::store::layout::Store;
use crate::store::manifest::{NodeResult, OutputRecord};
use crate::store::pins::Pin;
use crate::store::results::read_record;

/// Parses a record if it is intact and has that key.
fn whole(text: &[u8], key: &NodeKey) -> Option<NodeResult> {
    read_record(text).filter(|result| result.key == *key)
}

pub(super) fn place(key: &NodeKey, folder: &str) -> Path {
    Path::from(record_place(key, folder))
}

/// Reads objects by name, skipping missing ones.
async fn get_all(objects: Objects, paths: Vec<Path>) -> object_store::Result<Vec<(Path, Bytes)>> {
    let gets: Vec<_> = paths.into_iter().map(|path| get_named(Arc::clone(&objects), path)).collect();
    let found: Vec<Option<(Path, Bytes)>> = stream::iter(gets).buffered(AT_ONCE).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

async fn get_named(objects: Objects, path: Path) -> object_store::Result<Option<(Path, Bytes)>> {
    Ok(objects::get(&objects, &path).await?.map(|found| (path, found.0)))
}

impl Remote {
    fn record(&self, key: &NodeKey, folder: &str) -> Option<(Bytes, NodeResult)> {
        let (objects, path) = (Arc::clone(&self.objects), place(key, folder));
        let text = self.ask("read a result of", async move { objects::get(&objects, &path).await })?.0;
        let result = whole(&text, key);
        if result.is_none() {
            tracing::warn!("ignoring the damaged record of key {} in the shared store", key.0.short());
        }
        Some((text, result?))
    }

    /// Returns the keys of the records in `results` or `collected`.
    fn keys(&self, folder: &'static str) -> Result<BTreeSet<NodeKey>, StoreError> {
        let objects = Arc::clone(&self.objects);
        let found = self.call("list", async move { objects::list(&objects, &Path::from(folder)).await })?;
        let key = |(name, _): &(String, u64)| {
            let name = name.split('/').next_back()?;
            Digest::parse(name.strip_suffix(".json")?).map(NodeKey)
        };
        Ok(found.iter().filter_map(key).collect())
    }

    /// Uploads a record unless one exists. Returns the existing record if it differs.
    fn send_record(&self, result: &NodeResult, text: Vec<u8>, anew: bool) -> Result<Option<NodeResult>, StoreError> {
        let (objects, path, content) = (Arc::clone(&self.objects), place(&result.key, "results"), Bytes::from(text));
        let (key, own) = (result.key, content.clone());
        let first = self.call("record a result in", async move {
            match objects::put_new(&objects, &path, content).await? {
                Put::Made(_) => Ok(None),
                Put::Refused => Ok(objects::get(&objects, &path).await?.map(|found| found.0)),
            }
        })?;
        let Some(first) = first.filter(|first| *first != own) else { return Ok(None) };
        let usable = |winner: &NodeResult| {
            // A result with rejected rows does not displace a better one.
            let ours_is_better = winner.rejects() + winner.dropped > result.rejects() + result.dropped;
            let fits = |output: &OutputRecord| {
                self.check(&output.id).is_ok()
                    && self.artifact(&output.id).is_some_and(|artifact| output.fits(&artifact))
            };
            // A result computed after `--force` is not given up for an earlier one.
            let stands = winner.since() >= result.since();
            !anew && stands && !ours_is_better && winner.outputs.values().all(fits)
        };
        if let Some(winner) = whole(&first, &key).filter(usable) {
            return Ok(Some(winner));
        }
        let (objects, path) = (Arc::clone(&self.objects), place(&key, "results"));
        self.call("record a result in", async move { objects::put(&objects, &path, own).await })?;
        Ok(None)
    }
}

impl Store {
    /// Fetches the record of a key from the shared store and caches it.
    pub(in crate::store) fn fetch_record(&self, key: &NodeKey, folder: &'static str) -> Option<NodeResult> {
        let (text, result) = self.remote.as_ref()?.record(key, folder)?;
        self.keep_record(key, folder, &text);
        Some(result)
    }

    /// Fetches the result of a key from the shared store if it stands on at least that floor. It replaces the local
    /// one.
    #[must_use]
    pub fn result_since(&self, key: &NodeKey, since: u64) -> Option<NodeResult> {
        let (text, result) = self.remote.as_ref()?.record(key, "results")?;
        (result.since() >= since).then(|| {
            self.keep_record(key, "results", &text);
            result
        })
    }

    fn keep_record(&self, key: &NodeKey, folder: &str, text: &[u8]) {
        if let Err(error) = self.write_file(&self.root().join(record_place(key, folder)), text) {
            tracing::warn!("cannot cache a fetched record: {error}");
        }
    }

    /// Uploads a finished node's outputs and record. If another machine recorded a different result first, that one
    /// replaces ours and is returned.
    pub(in crate::store) fn send_result(
        &self,
        result: &NodeResult,
        anew: bool,
    ) -> Result<Option<NodeResult>, StoreError> {
        let Some(remote) = &self.remote else { return Ok(None) };
        for output in result.outputs.values() {
            self.send_artifact(&output.id)?;
        }
        let winner = remote.send_record(result, Self::record_text(result)?, anew)?;
        let Some(winner) = winner.filter(|winner| winner.outputs != result.outputs) else { return Ok(None) };
        self.write_file(&self.result_path(&winner.key), &Self::record_text(&winner)?)?;
        Ok(Some(winner))
    }

    /// Uploads a tombstone.
    pub(super) fn send_tombstone(&self, key: &NodeKey) -> Result<(), StoreError> {
        let (Some(remote), Ok(text)) = (&self.remote, std::fs::read(self.tombstone_path(key))) else { return Ok(()) };
        let (objects, path) = (Arc::clone(&remote.objects), place(key, "collected"));
        remote.call("write to", async move { objects::put_new(&objects, &path, Bytes::from(text)).await.map(drop) })
    }

    /// Fetches all records that are missing here, for commands that read everything.
    ///
    /// # Errors
    /// Fails if the shared store cannot be reached or records cannot be written.
    pub fn fetch_records(&self) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let (live, collected) = (remote.keys("results")?, remote.keys("collected")?);
        for (folder, keys) in [("results", &live), ("collected", &collected)] {
            let here: BTreeSet<NodeKey> = self.keys_below(folder).into_iter().collect();
            let missing = keys.difference(&here).map(|key| place(key, folder)).collect();
            let objects = Arc::clone(&remote.objects);
            for (path, text) in remote.call("read", get_all(objects, missing))? {
                let key = path.filename().and_then(|name| Digest::parse(name.strip_suffix(".json")?)).map(NodeKey);
                if key.is_some_and(|key| whole(&text, &key).is_some()) {
                    self.write_file(&self.root().join(path.as_ref()), &text)?;
                } else {
                    tracing::warn!("ignoring the damaged record {path} in the shared store");
                }
            }
        }
        Ok(())
    }

    /// Uploads a pin unless one of that name exists; returns the existing one.
    pub(in crate::store) fn send_pin(&self, pin: &Pin, text: &[u8]) -> Result<Option<Pin>, StoreError> {
        let Some(remote) = &self.remote else { return Ok(None) };
        let (objects, path) = (Arc::clone(&remote.objects), Path::from(format!("pins/{}.json", pin.name)));
        let content = Bytes::copy_from_slice(text);
        let first = remote.call("pin in", async move {
            match objects::put_new(&objects, &path, content).await? {
                Put::Made(_) => Ok(None),
                Put::Refused => Ok(objects::get(&objects, &path).await?.map(|found| found.0)),
            }
        })?;
        Ok(first.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Removes a pin from the shared store.
    pub(in crate::store) fn remove_pin(&self, name: &str) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let (objects, path) = (Arc::clone(&remote.objects), Path::from(format!("pins/{name}.json")));
        remote.call("unpin in", async move { objects::delete(&objects, &path).await })
    }

    /// Replaces the local pins by those of the shared store.
    pub(in crate::store) fn fetch_pins(&self) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let objects = Arc::clone(&remote.objects);
        let found = remote.call("read the pins of", async move {
            let names = objects::list(&objects, &Path::from("pins")).await?;
            get_all(objects, names.into_iter().map(|(name, _)| Path::from(format!("pins/{name}"))).collect()).await
        })?;
        let folder = self.root().join("pins");
        let names: BTreeSet<String> = found.iter().filter_map(|(path, _)| path.filename().map(str::to_owned)).collect();
        for entry in std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            if !names.contains(&*entry.file_name().to_string_lossy()) {
                std::fs::remove_file(entry.path()).map_err(StoreError::io("remove", &entry.path()))?;
            }
        }
        for (path, text) in found {
            if let Some(name) = path.filename() {
                self.write_file(&folder.join(name), &text)?;
            }
        }
        Ok(())
    }
}
