//! The operators of searchmill: one file each, and the support modules that two or more of them share.

mod dedup;
mod filter;
mod join;
mod relation;
mod sample;
mod sql;

use searchmill_engine::operator::{OperatorEntry, entry};

/// Every operator, for the registry. One line each, in the order of a pipeline.
#[must_use]
pub fn all() -> Vec<OperatorEntry> {
    vec![
        entry::<filter::Filter>(),
        entry::<sql::Sql>(),
        entry::<join::Join>(),
        entry::<dedup::Dedup>(),
        entry::<sample::Sample>(),
    ]
}
