//! Records, tombstones and pins of a shared store: fetches and uploads them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use object_store::path::Path;

use super::{Remote, objects};
use crate::fingerprint::NodeKey;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::{if_there, names_in};
use crate::store::layout::Store;
use crate::store::nofollow;
use crate::store::paths::{record_place, recorded_key};
use crate::store::records::checksum::sealed_json;
use crate::store::records::node_result::NodeResult;
use crate::store::records::pins::Pin;
use crate::store::records::results::read_record;

/// Parses a record if it is intact and has that key.
fn whole(text: &[u8], key: &NodeKey) -> Option<NodeResult> {
    read_record(text).filter(|result| result.key == *key)
}

pub(super) fn object_path(key: &NodeKey, folder: &str) -> Path {
    Path::from(record_place(key, folder))
}

impl Remote {
    /// Returns the keys of the records in `results` or `collected`.
    fn keys(&self, folder: &str) -> Result<BTreeSet<NodeKey>, StoreError> {
        let found = self.call("list", objects::list(&self.objects, &Path::from(folder)))?;
        Ok(found.iter().filter_map(|object| recorded_key(object.path.filename()?)).collect())
    }

    /// Whether a result that another machine recorded first stands against this one.
    fn stands(&self, winner: &NodeResult, result: &NodeResult) -> bool {
        // A result computed after `--force` is not given up for an earlier one.
        let is_less = result.unasked > 0 && winner.unasked == 0;
        let is_outdated = winner.since() < result.since() && !is_less;
        // A result with rejected rows, or cut short by a budget, does not displace a better one.
        !is_outdated
            && !result.is_better_than(winner)
            && winner.outputs.values().all(|output| {
                self.check(&output.id).is_ok()
                    && self.artifact(&output.id).is_some_and(|artifact| output.fits(&artifact))
            })
    }
}

impl Store {
    /// Fetches the record of a key from the shared store if it stands on at least that floor, and caches it in place of the
    /// local one.
    pub(crate) fn fetch_record(&self, key: &NodeKey, folder: &str, since: u64) -> Option<NodeResult> {
        let remote = self.remote.as_ref()?;
        let text = remote.ask("read a result of", objects::get(&remote.objects, &object_path(key, folder)))?.0;
        let Some(result) = whole(&text, key) else {
            tracing::warn!("ignoring the damaged record of key {} in the shared store", key.0.short());
            return None;
        };
        if result.since() < since {
            return None;
        }
        if let Err(error) = self.write_file(&self.record_path(key, folder), &text) {
            tracing::warn!("cannot cache a fetched record: {error}");
        }
        Some(result)
    }

    /// Uploads a finished node's outputs and record. If another machine recorded a different result first, that one
    /// replaces ours and is returned.
    pub(crate) fn send_result(&self, result: &NodeResult, anew: bool) -> Result<Option<NodeResult>, StoreError> {
        let Some(remote) = &self.remote else { return Ok(None) };
        // Before the record: whoever finds it must find its files.
        for output in result.outputs.values() {
            self.send_artifact(&output.id)?;
        }
        let (path, own) = (object_path(&result.key, "results"), Bytes::from(Self::record_text(result)?));
        let first = remote.call("record a result in", objects::put_first(&remote.objects, &path, own.clone()))?;
        let Some(first) = first.filter(|first| *first != own) else { return Ok(None) };
        let winner = whole(&first, &result.key).filter(|winner| !anew && remote.stands(winner, result));
        let Some(winner) = winner else {
            remote.call("record a result in", objects::put(&remote.objects, &path, own))?;
            return Ok(None);
        };
        if winner.outputs == result.outputs {
            return Ok(None);
        }
        self.write_file(&self.record_path(&winner.key, "results"), &Self::record_text(&winner)?)?;
        Ok(Some(winner))
    }

    /// Uploads a tombstone.
    pub(super) fn send_tombstone(&self, key: &NodeKey) -> Result<(), StoreError> {
        let text = std::fs::read(self.record_path(key, "collected"));
        let (Some(remote), Ok(text)) = (&self.remote, text) else { return Ok(()) };
        let path = object_path(key, "collected");
        remote.call("write to", objects::put_if(&remote.objects, &path, text.into(), None)).map(drop)
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
            let missing = keys.difference(&here).map(|key| (key, object_path(key, folder)));
            for (key, text) in remote.call("read", objects::get_all(&remote.objects, missing))? {
                let Some(text) = text else { continue };
                if whole(&text, key).is_some() {
                    self.write_file(&self.record_path(key, folder), &text)?;
                } else {
                    tracing::warn!("ignoring the damaged record {} in the shared store", object_path(key, folder));
                }
            }
        }
        Ok(())
    }

    /// Uploads a pin unless one of that name exists; returns the existing one.
    pub(in crate::store) fn send_pin(&self, pin: &Pin, text: &[u8]) -> Result<Option<Pin>, StoreError> {
        let Some(remote) = &self.remote else { return Ok(None) };
        let (path, content) = (Path::from(format!("pins/{}.json", pin.name)), Bytes::copy_from_slice(text));
        let first = remote.call("pin in", objects::put_first(&remote.objects, &path, content))?;
        Ok(first.and_then(|text| sealed_json(&text)))
    }

    /// Removes a pin from the shared store.
    pub(in crate::store) fn remove_pin(&self, name: &str) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        remote.call("unpin in", objects::delete(&remote.objects, &Path::from(format!("pins/{name}.json"))))
    }

    /// Replaces the local pins by those of the shared store.
    pub(in crate::store) fn fetch_pins(&self) -> Result<(), StoreError> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let found = remote.call("read the pins of", async {
            let found = objects::list(&remote.objects, &Path::from("pins")).await?.into_iter();
            let named = found.filter_map(|found| Some((found.path.filename()?.to_owned(), found.path)));
            objects::get_all(&remote.objects, named).await
        })?;
        let folder = self.root().join("pins");
        let pins: BTreeMap<String, Bytes> = found.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
        for (name, path) in names_in(&folder) {
            if !pins.contains_key(&name) {
                // Another process may remove it at the same time.
                if_there(nofollow::remove_file(&path)).context("remove", &path)?;
            }
        }
        pins.iter().try_for_each(|(name, text)| self.write_file(&folder.join(name), text))
    }
}
