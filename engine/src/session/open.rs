//! A session: operators, a working folder and a store.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::failure::Failure;
use super::store_location::StorePlace;
use crate::execute::{WorkerPipes, work};
use crate::operator::{Registry, SecretLookup};
use crate::plan::pipeline_schema;
use crate::store::Store;

/// Operators, a working folder and a store.
///
/// The store is opened by the first call that needs it. Calls that only read create nothing: [`Session::survey`] treats
/// a missing store as empty, and queries for results fail. Calls that write ([`Session::run`], [`StoreView::import`], …)
/// create the store.
///
/// [`StoreView::import`]: super::StoreView::import
pub struct Session {
    registry: Registry,
    directory: PathBuf,
    place: StorePlace,
    pub(super) secrets: SecretLookup,
    looked: OnceLock<Store>,
    opened: OnceLock<Store>,
    /// Set once all records of a shared store have been fetched.
    complete: OnceLock<()>,
}

impl Session {
    /// Opens the store `.searchmill` in `directory`, and creates it if it does not exist. Relative paths start at
    /// `directory`; secrets are environment variables.
    ///
    /// # Errors
    /// Fails if the store cannot be used.
    pub fn open(directory: impl AsRef<Path>, registry: Registry) -> Result<Self, Failure> {
        let directory = std::path::absolute(directory)?;
        let session = Self::new(StorePlace::Folder(directory.join(".searchmill")), directory, registry);
        session.create()?;
        Ok(session)
    }

    /// Creates a session that opens its store on first use.
    pub fn new(place: StorePlace, directory: impl Into<PathBuf>, registry: Registry) -> Self {
        let secrets: SecretLookup = Arc::new(|name| std::env::var(name).ok());
        let (looked, opened, complete) = Default::default();
        Self { registry, directory: directory.into(), place, secrets, looked, opened, complete }
    }

    /// Replaces the lookup of secrets (default: environment variables).
    #[must_use]
    pub fn with_secrets(self, secrets: SecretLookup) -> Self {
        Self { secrets, ..self }
    }

    /// Returns the operators.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the base folder of relative paths.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the JSON Schema of pipelines with these operators.
    pub fn schema(&self) -> Value {
        pipeline_schema(&self.registry)
    }

    /// Computes one node for a run in another process, which wrote `task`. For the worker programs named in `Workers`.
    ///
    /// # Errors
    /// Fails if the task cannot be read; errors of the node are reported through the pipes.
    pub fn work(&self, task: &Path, pipes: WorkerPipes) -> Result<(), Failure> {
        Ok(work(task, &self.registry, Arc::clone(&self.secrets), pipes)?)
    }

    pub(super) fn place(&self) -> &StorePlace {
        &self.place
    }

    /// Returns the store, created if it does not exist.
    pub(super) fn create(&self) -> Result<&Store, Failure> {
        once(&self.opened, || self.place.open())
    }

    /// Returns the store for reading. A missing store is empty.
    pub(super) fn look(&self) -> Result<&Store, Failure> {
        match self.opened.get() {
            // Open already, so with what this process has written.
            Some(store) => Ok(store),
            None => once(&self.looked, || self.place.look()),
        }
    }

    /// Returns the store for calls that need an existing one, with all records of a shared store.
    pub(super) fn existing(&self) -> Result<&Store, Failure> {
        let store = self.look()?;
        if !store.exists() {
            let help = "`searchmill run FILE` creates it; --store names another one, -C another folder";
            return Err(Failure::usage(self.store().missing_message()).with_help(help));
        }
        once(&self.complete, || store.fetch_records())?;
        Ok(store)
    }
}

/// Returns the value of a cell, set by the first call that succeeds.
fn once<T, E: Into<Failure>>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T, E>) -> Result<&T, Failure> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    // Outside of the cell, as it may fail: of two threads at the same time, the value of one stays.
    let value = make().map_err(Into::into)?;
    Ok(cell.get_or_init(|| value))
}
