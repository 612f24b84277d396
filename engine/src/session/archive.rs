//! Archives of artifacts with all that they were made from, and attestations.

use std::io::Read;

use super::failure::{Failure, check_released};
use super::find::find;
use super::open::StoreView;
use super::trace::LineageView;
use crate::lineage::archive::{Export, Imported, Request, import};
use crate::lineage::attest::{Comparison, Statement, compare, statement};

/// What an archive has besides the artifact and its files.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// The run that has the artifact (the newest one).
    pub run: Option<String>,
    /// Of the inputs of the artifact, only the records.
    pub shallow: bool,
    /// Also the remembered rows.
    pub memo: bool,
}

impl StoreView<'_> {
    /// Gathers an artifact and everything that produced it, ready to be written to a file. Without `what`, only
    /// remembered rows.
    ///
    /// # Errors
    /// Fails if there is no such artifact, or if something is damaged.
    pub fn export(&self, what: Option<&str>, options: &ExportOptions) -> Result<Export, Failure> {
        let store = self.session.existing()?;
        let in_use = store.enter()?;
        let mut root = None;
        if let Some(what) = what {
            let found = find(self.session, what, options.run.as_deref(), false)?.root(store);
            check_released(store, &found.artifact)?;
            root = Some(found);
        }
        Ok(Export::gather(store, in_use, &Request { root, shallow: options.shallow, memo: options.memo })?)
    }

    /// Imports an archive into the store, which is created if it does not exist.
    ///
    /// # Errors
    /// Fails if the archive is invalid; nothing is imported then.
    pub fn import(&self, archive: impl Read) -> Result<Imported, Failure> {
        Ok(import(self.session.create()?, archive)?)
    }
}

impl LineageView<'_> {
    /// Returns an artifact's name and its attestation statement.
    ///
    /// # Errors
    /// Fails if there is no such artifact, or if it is damaged.
    pub fn statement(&self, what: &str, run: Option<&str>) -> Result<(String, Statement), Failure> {
        let store = self.session.existing()?;
        let _in_use = store.enter()?;
        let root = find(self.session, what, run, false)?.root(store);
        let statement = statement(store, &root)?;
        Ok((root.name, statement))
    }

    /// Compares the artifacts of a statement with those in the store, by name.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn compare(&self, statement: &Statement) -> Result<Vec<(String, Comparison)>, Failure> {
        Ok(compare(self.session.look()?, statement))
    }
}
