//! What every command is given: the terminal, the folder it works in, and the store.

use std::path::{Path, PathBuf};

use searchmill_engine::plan::{Plan, check_store};
use searchmill_engine::store::Store;

use super::place::Place;
use crate::display::Terminal;
use crate::exit::Failure;
use crate::pipeline;

/// What every command may need.
pub(crate) struct Session<'a> {
    pub(crate) terminal: &'a Terminal,
    pub(crate) directory: PathBuf,
    pub(super) store: Place,
}

impl Session<'_> {
    /// The store, made if it is not there: for commands that write to it.
    pub(crate) fn store(&self) -> Result<Store, Failure> {
        Ok(match &self.store {
            Place::Folder(folder) => Store::open(folder)?,
            Place::Shared { url, cache } => Store::open_shared(url, cache)?,
        })
    }

    /// The store as it is, for commands that only read. Where there is none, that is said, and it is empty.
    pub(crate) fn store_if_any(&self) -> Result<Store, Failure> {
        let store = self.look()?;
        if !store.exists() {
            self.terminal.note(&self.no_store());
        }
        Ok(store)
    }

    /// The store as it is, for commands that make no sense without one.
    pub(crate) fn existing_store(&self) -> Result<Store, Failure> {
        let store = self.look()?;
        if store.exists() {
            // Whoever asks about the store asks about all of it.
            store.fetch_records()?;
            return Ok(store);
        }
        let help = "`searchmill run FILE` makes it; --store names another one, -C another folder";
        Err(Failure::usage(self.no_store()).with_help(help))
    }

    pub(super) fn look(&self) -> Result<Store, Failure> {
        Ok(match &self.store {
            Place::Folder(folder) => Store::look(folder)?,
            Place::Shared { url, cache } => Store::look_shared(url, cache)?,
        })
    }

    /// The store as it is shown to people.
    pub(super) fn shown_store(&self) -> String {
        match &self.store {
            Place::Folder(folder) => folder.strip_prefix(&self.directory).unwrap_or(folder).display().to_string(),
            Place::Shared { url, .. } => url.clone(),
        }
    }

    /// Refuses a plan that writes into the store.
    pub(crate) fn check_destinations(&self, plan: &Plan) -> Result<(), Failure> {
        let roots = match &self.store {
            Place::Folder(folder) => vec![folder.as_path()],
            Place::Shared { url, cache } => vec![Path::new(url), cache.as_path()],
        };
        let found: Vec<_> = roots.into_iter().flat_map(|root| check_store(plan, root, &self.directory)).collect();
        if found.is_empty() { Ok(()) } else { Err(Failure::Pipeline(found, Box::new(pipeline::texts(plan)))) }
    }

    fn no_store(&self) -> String {
        format!("there is no store at {} yet", self.shown_store())
    }
}
