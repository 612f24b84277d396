//! Pins, and the collection of what nothing keeps.

use super::failure::{Failure, released};
use super::find::find;
use super::open::Session;
use crate::execute::unix_time;
use crate::store::{Garbage, KeepPolicy, Pin, StoreError, Swept};

impl Session {
    /// Pins an artifact, so that it is never collected; with `lineage`, also everything it was made from. Without a
    /// `name`, the pin is called `what`.
    ///
    /// # Errors
    /// Fails if there is no such artifact, if it is damaged, or if the name is taken or invalid.
    pub fn pin(&self, what: &str, run: Option<&str>, name: Option<&str>, lineage: bool) -> Result<Pin, Failure> {
        let store = self.existing()?;
        let root = find(self, what, run, false)?.root(store);
        if let Some(note) = store.release_of(&root.artifact).filter(|_| !store.is_shared()) {
            return Err(released(&note));
        }
        if store.check(&root.artifact).is_err() {
            let message = format!("the artifact {} is not whole in the store", root.artifact.digest().short());
            return Err(Failure::usage(message).with_help("run its pipeline again, then pin it"));
        }
        let name = name.unwrap_or(what).to_owned();
        let pin = Pin { name, artifact: root.artifact, key: root.key, from: root.name, lineage, pinned: unix_time() };
        store.pin(&pin).map_err(as_usage)?;
        Ok(pin)
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// Fails if there is no pin of that name.
    pub fn unpin(&self, name: &str) -> Result<Pin, Failure> {
        let unknown = || Failure::usage(format!("there is no pin `{name}`")).with_help("`searchmill pin --list`");
        self.existing()?.unpin(name).map_err(as_usage)?.ok_or_else(unknown)
    }

    /// Returns all pins, by name.
    ///
    /// # Errors
    /// Fails if there is no store, or a pin cannot be read.
    pub fn pins(&self) -> Result<Vec<Pin>, Failure> {
        Ok(self.existing()?.pins()?)
    }

    /// Returns what [`Session::collect`] would remove.
    ///
    /// # Errors
    /// Fails if there is no store, or it cannot be read completely.
    pub fn garbage(&self, policy: &KeepPolicy) -> Result<Garbage, Failure> {
        let store = self.existing()?;
        let garbage = store.garbage(policy, unix_time())?;
        // A shared store may be unreachable.
        store.sound()?;
        Ok(garbage)
    }

    /// Removes what the policy does not keep.
    ///
    /// # Errors
    /// Fails if there is no store, or something cannot be read or removed.
    pub fn collect(&self, policy: &KeepPolicy) -> Result<Swept, Failure> {
        self.existing()?;
        // Opening removes what killed processes left behind.
        let store = self.store()?;
        let swept = store.collect(policy, unix_time())?;
        store.sound()?;
        Ok(swept)
    }
}

/// A taken or invalid name is a usage error; an I/O error is not.
fn as_usage(error: StoreError) -> Failure {
    match error {
        StoreError::PinName(_) | StoreError::PinTaken(..) | StoreError::NotAPin(_) => Failure::usage(error.to_string()),
        other => Failure::Store(other),
    }
}
