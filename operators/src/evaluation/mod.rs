//! Parts of `evaluate`: scored rows, statistics, baselines, retrieval figures, and the report in three formats.

pub(crate) mod conversation;
pub(crate) mod dynamics;
pub(crate) mod figures;
pub(crate) mod measure;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod retrieval;
pub(crate) mod scored;
pub(crate) mod showcase;
pub(crate) mod statistics;
pub(crate) mod terminal;
