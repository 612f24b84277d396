//! Pins, and the collection of what nothing keeps.

use super::failure::{Failure, check_released};
use super::find::find;
use super::open::StoreView;
use crate::execute::unix_time;
use crate::store::{Garbage, KeepPolicy, Pin, StoreError, Swept};

/// How to pin an artifact. By default, the pin has the name that the artifact was found by, and nothing else is pinned.
#[derive(Clone, Debug, Default)]
pub struct PinOptions {
    /// The run that has the artifact (the newest one).
    pub run: Option<String>,
    /// Name of the pin.
    pub name: Option<String>,
    /// Also pin everything that the artifact was made from.
    pub lineage: bool,
}

impl StoreView<'_> {
    /// Pins an artifact, so that it is never collected.
    ///
    /// # Errors
    /// Fails if there is no such artifact, if it is damaged, or if the name is taken or invalid.
    pub fn pin(&self, what: &str, options: &PinOptions) -> Result<Pin, Failure> {
        let store = self.session.existing()?;
        let root = find(self.session, what, options.run.as_deref(), false)?.root(store);
        check_released(store, &root.artifact)?;
        if store.check(&root.artifact).is_err() {
            let message = format!("the artifact {} is not whole in the store", root.artifact.digest().short());
            return Err(Failure::usage(message).with_help("run its pipeline again, then pin it"));
        }
        let pin = Pin {
            name: options.name.as_deref().unwrap_or(what).to_owned(),
            artifact: root.artifact,
            key: root.key,
            from: root.name,
            lineage: options.lineage,
            pinned: unix_time(),
        };
        store.pin(&pin).map_err(as_usage)?;
        Ok(pin)
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// Fails if there is no pin of that name.
    pub fn unpin(&self, name: &str) -> Result<Pin, Failure> {
        match self.session.existing()?.unpin(name).map_err(as_usage)? {
            Some(pin) => Ok(pin),
            None => Err(Failure::usage(format!("there is no pin `{name}`")).with_help("`searchmill pin --list`")),
        }
    }

    /// Returns all pins, by name.
    ///
    /// # Errors
    /// Fails if there is no store, or a pin cannot be read.
    pub fn pins(&self) -> Result<Vec<Pin>, Failure> {
        Ok(self.session.existing()?.pins()?)
    }

    /// Returns what [`StoreView::collect`] would remove.
    ///
    /// # Errors
    /// Fails if there is no store, or it cannot be read completely.
    pub fn garbage(&self, policy: &KeepPolicy) -> Result<Garbage, Failure> {
        let store = self.session.existing()?;
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
        self.session.existing()?;
        // Opening removes what killed processes left behind.
        let store = self.session.create()?;
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
