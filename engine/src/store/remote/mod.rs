//! Shared stores: objects in the layout of a store, with a local store as cache.
//!
//! Local data is used without a query. Missing data is fetched, checked against its digest, and cached. New data is
//! uploaded before its node counts as done: files first, then the record by a conditional put, so the first record
//! wins, unless its outputs are damaged. Every upload is noted under `pending/` before the data is written locally, and
//! later runs repeat failed uploads from those notes.
//!
//! The rest of the engine meets a shared store only in calls of `Store`:
//!
//! - `result`, `tombstone`: local, or fetched, checked and cached.
//! - `check`: one description and one listing. Planning fetches no files.
//! - `fetch`: all files of an input, before a kernel opens it, with their digests compared; once per machine (`flights`). If an input arrives
//!   damaged, the driver recomputes it; the scheduler does not notice.
//! - `record`: uploads files, description and record.
//! - `Memo`: uploads its own segments after 0.2 seconds and then less often, at least every 3 seconds, and as one
//!   object at the end of a run. Unknown segments of other machines are fetched when a memo is opened.
//! - `try_lease`, runs, pins, floors.
//! - `sound`: reports whether the store could be queried. It is asked before the answer "unknown" has consequences.
//!
//! Every put that may meet another one is conditional, and what is there after a refusal decides (`objects`). A folder as
//! a store has conditions by numbered files (`shared_folder`).
//!
//! Connections run on two threads of their own, so that synchronous code can wait for transfers anywhere.
//!
//! `collect` removes objects in two steps. It uses the same rules (`gc`) on listings of objects.
//! One machine collects at a time, under a lease, and every step can be repeated. Other machines read the notes under
//! `gc/` when they open the store. They remove those results from their caches, except results that they recomputed
//! since or have not uploaded yet.

mod artifacts;
mod claims;
mod collect;
mod connect;
mod flights;
mod floors;
mod objects;
mod pending;
mod records;
mod rows;
mod runs;
mod segments;
mod shared_folder;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Runtime;
use tokio::task::unconstrained;

use self::flights::{Flights, aside};
use self::objects::{Objects, Reply};
use self::segments::Segments;
use super::artifacts::artifact::{Artifact, ArtifactId};
use super::error::StoreError;
use crate::fingerprint::Digest;

pub(super) use self::claims::RemoteLease;
pub(super) use self::pending::Pending;

/// File in the cache that identifies its shared store.
const NAMEPLATE: &str = "remote.json";

/// Facts learnt about objects since the store was opened.
#[derive(Default)]
pub(super) struct Learnt {
    /// Why the store could not be queried when the answer had to be "unknown".
    pub(super) fault: Option<Arc<StoreError>>,
    descriptions: BTreeMap<ArtifactId, Artifact>,
    whole: BTreeSet<ArtifactId>,
    /// Floors that were fetched.
    floors: BTreeSet<Digest>,
    /// Artifacts with a damaged object; they are uploaded again completely.
    broken: BTreeSet<ArtifactId>,
}

/// The shared store behind a cache.
pub(super) struct Remote {
    objects: Objects,
    pub(super) url: String,
    cache: PathBuf,
    machine: String,
    /// Whether the store has been created.
    pub(super) exists: bool,
    runtime: Option<Runtime>,
    learnt: Mutex<Learnt>,
    segments: Arc<Segments>,
    /// Fetches under way.
    flights: Flights,
}

impl Remote {
    pub(super) fn learnt(&self) -> MutexGuard<'_, Learnt> {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for work whose connections live on the remote's own threads; callable from any thread.
    fn wait<T>(&self, work: impl Future<Output = Reply<T>>) -> Reply<T> {
        let Some(runtime) = &self.runtime else { return Err(objects::generic("the store is closed")) };
        aside(|| {
            let _entered = runtime.enter();
            futures::executor::block_on(unconstrained(work))
        })
    }

    /// Waits for work and converts a failure to a user error.
    fn call<T>(&self, action: &'static str, work: impl Future<Output = Reply<T>>) -> Result<T, StoreError> {
        self.wait(work).map_err(|error| {
            let (url, source, cache) = (self.url.clone(), Box::new(error), self.cache.clone());
            StoreError::Shared { action, url, source, cache }
        })
    }

    /// Waits for work whose failure the caller treats as "unknown"; `Store::sound` reports the cause later.
    fn ask<T: Default>(&self, action: &'static str, work: impl Future<Output = Reply<T>>) -> T {
        self.call(action, work).unwrap_or_else(|error| {
            // The first failure is the cause; those after it may follow from it.
            self.learnt().fault.get_or_insert_with(|| Arc::new(error));
            T::default()
        })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The last reference may be dropped on another runtime's thread, which must not block.
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
