//! Operators that put their outputs somewhere outside the store.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::context::Context;
use super::error::OperatorError;

/// What follows a destination's path in the path of its manifest, which is written beside it.
pub const MANIFEST_ENDING: &str = ".manifest.json";

/// Puts finished outputs where the user wants them (`write`). Implemented by the params, and named by
/// [`Declaration::delivers`](super::Declaration::delivers).
pub trait Deliver: Send + Sync + 'static {
    /// Paths and URLs that [`Deliver::deliver`] writes to, as the user gave them; each may have a manifest beside it
    /// ([`MANIFEST_ENDING`]). The plan refuses places that overlap what the pipeline reads or another node writes.
    fn destinations(&self) -> Vec<String>;

    /// Share of the rows that may be lost before this node (rejected or passed over by nodes that it rests on) and its
    /// outputs still be delivered (0.1). Beyond it they are held back.
    fn max_reject_share(&self) -> f64 {
        0.1
    }

    /// Brings the destinations up to date. Runs whenever the node's result is known, computed or cached, so it must be cheap
    /// when everything is in place. `folders` has the folder of every tree output. Returns the places written.
    ///
    /// # Errors
    /// When a place cannot be written.
    fn deliver(&self, folders: &BTreeMap<String, PathBuf>, context: &Context) -> Result<Vec<String>, OperatorError>;
}
