//! From when on remembered rows and answers count for a node: `--force` asks all of it again, and what that bought stands
//! from then on, also where it was cut off.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::calls::Calls;
use super::error::StoreError;
use super::layout::Store;
use super::memo::Memo;
use crate::fingerprint::Digest;

/// Of the rows that share one base.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Floor {
    /// Records with an earlier stamp do not count.
    pub since: u64,
    /// The forced run has not finished the node: the next one goes on from there.
    pub open: bool,
}

impl Store {
    fn floor_path(&self, base: &Digest) -> PathBuf {
        self.memo_folder(base).join("floor.json")
    }

    /// From when on the rows of a base count.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn floor(&self, base: &Digest) -> Result<Floor, StoreError> {
        let path = self.floor_path(base);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Floor::default()),
            Err(error) => return Err(StoreError::io("read", &path)(error)),
        };
        serde_json::from_slice(&text).map_err(|error| {
            let path = path.display();
            StoreError::Location(format!("{path} is damaged ({error}): remove it to use answers of before `--force`"))
        })
    }

    /// What is known now does not count any more, nor do the answers in `calls` of before this run, which began at
    /// `started`; `true` where an earlier forced run was cut off, whose answers still count.
    ///
    /// # Errors
    /// When the memo cannot be read or the file not be written.
    pub fn raise_floor(&self, base: &Digest, calls: Option<&Calls>, started: u64) -> Result<bool, StoreError> {
        if self.floor(base)?.open {
            return Ok(true);
        }
        // Later than any of them, also where the clock was set back.
        let known = Memo::open(self, base)?.newest().max(calls.map_or(Ok(0), Calls::newest_before)?);
        self.set_floor(base, Floor { since: started.max(known.saturating_add(1)), open: true })?;
        Ok(false)
    }

    /// The forced run has finished the node.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn close_floor(&self, base: &Digest) -> Result<(), StoreError> {
        self.set_floor(base, Floor { open: false, ..self.floor(base)? })
    }

    fn set_floor(&self, base: &Digest, floor: Floor) -> Result<(), StoreError> {
        let text = serde_json::to_vec(&floor).map_err(|error| StoreError::Location(error.to_string()))?;
        self.write_file(&self.floor_path(base), &text)
    }
}
