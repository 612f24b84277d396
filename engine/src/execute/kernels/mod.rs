//! TODO

pub(super) mod call_journal;
pub(super) mod changed_sources;
pub(super) mod column_lineage;
pub(super) mod dry_run;
pub(super) mod kernel_run;
pub(super) mod map;
pub(super) mod observations;
pub(super) mod query;
pub(super) mod rows;
pub(super) mod samples;
