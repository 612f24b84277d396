//! A session: operators, a working folder and a store; and its view of the store.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::failure::Failure;
use super::store_location::StorePlace;
use crate::execute::{WorkerPipes, unix_time, work};
use crate::operator::{Registry, SecretLookup};
use crate::plan::pipeline_schema;
use crate::store::{Label, Schedules, ShownPage, Store, StoreError};

/// Characters of a note (at most).
const NOTE: usize = 10_000;
/// Characters of an author's name (at most).
const AUTHOR: usize = 100;

/// Operators, a working folder and a store.
///
/// The store is opened by the first call that needs it. Calls that only read create nothing: [`Session::survey`] treats
/// a missing store as empty, and queries for results fail. Calls that write ([`Session::run`], [`StoreView::import`], …)
/// create the store.
///
/// All methods block. In async code, call them in `spawn_blocking`; those that say "not for code that already runs on
/// tokio" create a runtime of their own and panic inside another one.
pub struct Session {
    registry: Registry,
    directory: PathBuf,
    pub(super) place: StorePlace,
    pub(super) secrets: SecretLookup,
    looked: OnceLock<Store>,
    opened: OnceLock<Store>,
    /// Set once all records of a shared store have been fetched.
    complete: OnceLock<()>,
}

impl Session {
    /// Opens the store `.searchmill` in `directory`, and creates it if it does not exist. Relative paths of pipelines
    /// start at `directory`; secrets are environment variables. To plan without creating a store, use [`Session::new`].
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

    /// Returns the artifacts, pins, labels and schedules of the store.
    pub fn store(&self) -> StoreView<'_> {
        StoreView { session: self }
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
fn once<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T, StoreError>) -> Result<&T, Failure> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    // Outside of the cell, as it may fail: of two threads at the same time, the value of one stays.
    let value = make()?;
    Ok(cell.get_or_init(|| value))
}

/// The artifacts, pins, labels and schedules of a session's store. [`Session::store`] returns it.
pub struct StoreView<'s> {
    pub(super) session: &'s Session,
}

impl StoreView<'_> {
    /// Returns the store's folder relative to the working folder, or its address.
    pub fn location(&self) -> String {
        self.session.place.shown(self.session.directory())
    }

    /// Returns the message for a missing store.
    pub fn missing_message(&self) -> String {
        format!("there is no store at {} yet", self.location())
    }

    /// Whether the store exists.
    ///
    /// # Errors
    /// Fails if the place cannot be read, or holds a store of another format.
    pub fn exists(&self) -> Result<bool, Failure> {
        Ok(self.session.look()?.exists())
    }

    /// Opens the store and writes to it, to check that a run could.
    ///
    /// # Errors
    /// Fails if the store cannot be opened or written.
    pub fn probe(&self) -> Result<(), Failure> {
        let store = self.session.create()?;
        store.drop_task(&store.keep_task(b"")?);
        Ok(())
    }

    /// Notes that this process serves a page of the store, so that runs can name it. `None` if there is no store yet, or
    /// it cannot be written to.
    ///
    /// # Errors
    /// Fails if the store cannot be used.
    pub fn show_page(&self, address: &str) -> Result<Option<ShownPage>, Failure> {
        if !self.exists()? {
            return Ok(None);
        }
        // The page can be looked at all the same.
        let shown = self.session.create()?.show_page(address);
        Ok(shown.inspect_err(|error| tracing::debug!("runs will not name the page: {error}")).ok())
    }

    /// Returns the addresses at which other processes of this machine show the store now.
    ///
    /// # Errors
    /// Fails if the store cannot be used.
    pub fn shown_pages(&self) -> Result<Vec<String>, Failure> {
        if self.exists()? { Ok(self.session.existing()?.shown_pages()) } else { Ok(Vec::new()) }
    }

    /// Returns the schedules of the store, which is created if it does not exist.
    ///
    /// # Errors
    /// Fails if the store cannot be used.
    pub fn schedules(&self) -> Result<Schedules, Failure> {
        Ok(Schedules::of(self.session.create()?.clone()))
    }

    /// Keeps what a person says of a row of the store; the time is now. One without mark and note takes back what the
    /// author said of the row.
    ///
    /// # Errors
    /// Fails if the table is not in the store, if no author is named, if a text is too long, or if it cannot be written.
    pub fn label(&self, label: Label) -> Result<Label, Failure> {
        let store = self.session.existing()?;
        if store.artifact(&label.artifact).is_none() {
            return Err(Failure::usage(format!("the artifact {} is not in the store", label.artifact)));
        }
        let author = label.author.trim().to_owned();
        if author.is_empty() || author.chars().count() > AUTHOR {
            return Err(Failure::usage(format!("`author` must be a name of 1 to {AUTHOR} characters")));
        }
        if label.note.chars().count() > NOTE {
            return Err(Failure::usage(format!("`note` has more than {NOTE} characters")));
        }
        let label = Label { author, note: label.note.trim().to_owned(), time: unix_time(), ..label };
        store.add_label(&label)?;
        Ok(label)
    }

    /// Returns all labels, the newest first, and the number of damaged ones.
    ///
    /// # Errors
    /// Fails if they cannot be read.
    pub fn labels(&self) -> Result<(Vec<Label>, usize), Failure> {
        if !self.exists()? {
            return Ok((Vec::new(), 0));
        }
        Ok(self.session.existing()?.labels()?)
    }
}
