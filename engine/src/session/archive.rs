//! Archives of artifacts with all that they were made from, and attestations.

use std::io::Read;

use super::failure::{Failure, released};
use super::find::find;
use super::open::Session;
use crate::lineage::archive::{Export, Imported, Request, import};
use crate::lineage::attest::{Comparison, Statement, compare, statement};

impl Session {
    /// Gathers an artifact and everything that produced it, ready to be written to a file. With `shallow`, only the
    /// records of its inputs; with `memo`, also the remembered rows. Without `what`, only remembered rows.
    ///
    /// # Errors
    /// Fails if there is no such artifact, or if something is damaged.
    pub fn export(&self, what: Option<&str>, run: Option<&str>, shallow: bool, memo: bool) -> Result<Export, Failure> {
        let store = self.existing()?;
        let in_use = store.enter()?;
        let root = what.map(|what| find(self, what, run, false)).transpose()?.map(|named| named.root(store));
        let note = root.as_ref().and_then(|root| store.release_of(&root.artifact));
        if let Some(note) = note.filter(|_| !store.is_shared()) {
            return Err(released(&note));
        }
        Ok(Export::gather(store, in_use, &Request { root, shallow, memo })?)
    }

    /// Imports an archive into the store, which is created if it does not exist.
    ///
    /// # Errors
    /// Fails if the archive is invalid; nothing is imported then.
    pub fn import(&self, archive: impl Read) -> Result<Imported, Failure> {
        Ok(import(self.store()?, archive)?)
    }

    /// Returns an artifact's name and its attestation statement.
    ///
    /// # Errors
    /// Fails if there is no such artifact, or if it is damaged.
    pub fn statement(&self, what: &str, run: Option<&str>) -> Result<(String, Statement), Failure> {
        let store = self.existing()?;
        let _in_use = store.enter()?;
        let root = find(self, what, run, false)?.root(store);
        let statement = statement(store, &root)?;
        Ok((root.name, statement))
    }

    /// Compares the artifacts of a statement with those in the store, by name.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn compare(&self, statement: &Statement) -> Result<Vec<(String, Comparison)>, Failure> {
        Ok(compare(self.look()?, statement))
    }
}
