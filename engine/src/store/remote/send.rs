//! Uploads what is pending: when a store is opened, and when a run ends.

use super::pending::Pending;
use crate::store::error::StoreError;
use crate::store::layout::Store;
use crate::store::records::results::RecordState;

impl Store {
    /// Uploads everything noted by this process or by dead ones.
    ///
    /// # Errors
    /// Fails if the shared store cannot be reached; the notes stay.
    pub fn send_pending(&self) -> Result<(), StoreError> {
        if self.remote.is_none() {
            return Ok(());
        }
        for what in self.pending() {
            match &what {
                Pending::Result(key) => {
                    if let RecordState::Whole(result) = self.result_here(key) {
                        self.send_result(&result, false)?;
                    }
                }
                Pending::Tombstone(key) => self.send_tombstone(key)?,
                Pending::Artifact(id) => self.send_artifact(id)?,
                Pending::Run(id) => self.send_run(id)?,
                Pending::Floor(base) => self.send_floor(base, self.floor_here(base)?)?,
            }
            // One by one: if the store goes away, the rest stays noted.
            self.forget_pending(&what);
        }
        self.send_segments()
    }

    /// Ends a run: uploads everything that it paid for and its record.
    ///
    /// # Errors
    /// Fails if the shared store cannot be reached; the next run uploads the rest.
    pub fn share_run(&self, id: &str) -> Result<(), StoreError> {
        if self.remote.is_none() {
            return Ok(());
        }
        // What was paid for first, then the run that says so.
        self.finish_segments()?;
        self.send_run(id)?;
        self.forget_pending(&Pending::Run(id.to_owned()));
        Ok(())
    }
}
