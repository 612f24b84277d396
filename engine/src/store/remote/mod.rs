//! A store that several machines share: objects in the layout of a store, and a local store that is their cache.
//!
//! What is local is used as it is. What is not is fetched, checked against its digest, and kept. What is made here goes up
//! before the node counts as done: files first, then the record by a put that fails when the record is there already, so
//! the first one wins. Before anything goes up a note is left under `pending/`; what could not go up is found by it.

mod artifacts;
mod claims;
mod collect;
mod connect;
mod floors;
mod objects;
mod pending;
mod records;
mod rows;
mod runs;
mod segments;
mod send;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::{Handle, Runtime, RuntimeFlavor};

use self::objects::Objects;
use self::segments::Segments;
use super::artifact::{Artifact, ArtifactId};
use super::error::StoreError;
use crate::fingerprint::Digest;

pub(super) use self::claims::RemoteLease;
pub(super) use self::pending::Pending;

/// Objects that are fetched or sent at once.
const AT_ONCE: usize = 16;
/// In the cache: of which store it is the cache.
const NAMEPLATE: &str = "remote.json";

/// What was learnt about the objects since the store was opened.
#[derive(Default)]
struct Learnt {
    /// Why the store could not be asked, where the answer had to be "unknown".
    fault: Option<String>,
    descriptions: BTreeMap<ArtifactId, Artifact>,
    whole: BTreeSet<ArtifactId>,
    /// Floors that were asked for.
    floors: BTreeSet<Digest>,
    /// Artifacts with an object that is not what it should be: sent again in full.
    broken: BTreeSet<ArtifactId>,
}

/// The objects behind a cache.
pub(super) struct Remote {
    objects: Objects,
    url: String,
    cache: PathBuf,
    machine: String,
    exists: bool,
    runtime: Option<Runtime>,
    learnt: Mutex<Learnt>,
    segments: Arc<Segments>,
}

impl Remote {
    /// Has anybody made the store?
    pub(super) fn exists(&self) -> bool {
        self.exists
    }

    /// What it is called.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Why it was asked in vain, if it was.
    pub(super) fn fault(&self) -> Option<String> {
        self.learnt().fault.clone()
    }

    fn learnt(&self) -> MutexGuard<'_, Learnt> {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for work on the remote's own threads, from wherever this is called.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> object_store::Result<T> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let Some(runtime) = &self.runtime else { return Err(objects::generic("the store is closed")) };
        runtime.spawn(async move {
            // The receiver waits for nothing else.
            drop(sender.send(work.await));
        });
        let receive = || receiver.recv().unwrap_or_else(|_| Err(objects::generic("a transfer died")));
        match Handle::try_current() {
            Ok(handle) if handle.runtime_flavor() == RuntimeFlavor::MultiThread => tokio::task::block_in_place(receive),
            _ => receive(),
        }
    }

    /// The same, with what failed said for people.
    fn call<T: Send + 'static>(
        &self,
        action: &str,
        work: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.wait(work).map_err(|error| self.failed(action, &error))
    }

    /// The same where the caller can say no more than "unknown": `Store::sound` says later why.
    fn ask<T: Send + Default + 'static>(
        &self,
        action: &str,
        work: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> T {
        self.call(action, work).unwrap_or_else(|error| {
            self.learnt().fault.get_or_insert_with(|| error.to_string());
            T::default()
        })
    }

    fn failed(&self, action: &str, error: &object_store::Error) -> StoreError {
        StoreError::Shared {
            action: action.to_owned(),
            url: self.url.clone(),
            reason: objects::reason(error),
            cache: self.cache.clone(),
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The last one to let go may be a thread of another runtime, where waiting is forbidden.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).field("machine", &self.machine).finish_non_exhaustive()
    }
}
