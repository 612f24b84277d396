//! The store, its runs and the lineage of its results, each as a borrowed view of the session.

use super::failure::Failure;
use super::open::Session;
use crate::store::{Schedules, ShownPage};

/// The artifacts, pins, labels and schedules of a session's store. [`Session::store`] returns it.
pub struct StoreView<'s> {
    pub(super) session: &'s Session,
}

/// The runs that a session's store has recorded. [`Session::runs`] returns it.
pub struct RunsView<'s> {
    pub(super) session: &'s Session,
}

/// What results were made from, and whether they are still what was recorded. [`Session::lineage`] returns it.
pub struct LineageView<'s> {
    pub(super) session: &'s Session,
}

impl Session {
    /// Returns the artifacts, pins, labels and schedules of the store.
    pub fn store(&self) -> StoreView<'_> {
        StoreView { session: self }
    }

    /// Returns the runs of the store.
    pub fn runs(&self) -> RunsView<'_> {
        RunsView { session: self }
    }

    /// Returns traces, audits and attestations of results.
    pub fn lineage(&self) -> LineageView<'_> {
        LineageView { session: self }
    }
}

impl StoreView<'_> {
    /// Returns the store's folder relative to the working folder, or its address.
    pub fn location(&self) -> String {
        self.session.place().shown(self.session.directory())
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
}
