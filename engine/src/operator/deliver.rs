//! Operators that write their outputs outside the store.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::context::Context;
use crate::error::OperatorError;

/// Suffix of a manifest's path: a destination's manifest is written next to it.
pub const MANIFEST_ENDING: &str = ".manifest.json";

/// Delivers finished outputs (`write`). Implemented by the params, and registered with
/// [`Declaration::delivers`](super::Declaration::delivers).
pub trait Deliver: Send + Sync + 'static {
    /// Returns the paths and URLs that [`Deliver::deliver`] writes to, as the user gave them; each may have a manifest
    /// next to it ([`MANIFEST_ENDING`]). The plan rejects destinations that overlap what the pipeline reads or another
    /// node writes.
    fn destinations(&self) -> Vec<String>;

    /// Returns the largest share of rows that may be lost before this node, rejected or dropped by its dependencies,
    /// for its outputs to be delivered (0.1). Beyond it they are held back.
    fn max_reject_share(&self) -> f64 {
        0.1
    }

    /// Whether tables without rows are delivered (no).
    fn allows_empty(&self) -> bool {
        false
    }

    /// Whether the destinations have these outputs already, as far as that can be told without waiting (no). Outputs that
    /// would change nothing are not held back again.
    fn is_delivered(&self, _folders: &BTreeMap<String, PathBuf>, _context: &Context) -> bool {
        false
    }

    /// Updates the destinations. Called whenever the node's result is known, computed or cached, so it must be cheap if
    /// nothing changed. `folders` has the folder of every tree output. Returns the destinations written.
    ///
    /// # Errors
    /// Fails if a destination cannot be written.
    fn deliver(&self, folders: &BTreeMap<String, PathBuf>, context: &Context) -> Result<Vec<String>, OperatorError>;
}
