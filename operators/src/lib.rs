//! The operators of searchmill: one file each, and the support modules that two or more of them share.

pub mod read;
mod source;
pub mod split;
pub mod write;

use searchmill_engine::operator::{OperatorEntry, entry};

/// Every operator, for the registry. One line each, in the order of a pipeline.
#[must_use]
pub fn all() -> Vec<OperatorEntry> {
    vec![entry::<read::Read>()]
}
