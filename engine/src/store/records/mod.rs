//! TODO

pub(super) mod check_outcome;
pub(super) mod checksum;
pub(super) mod columns;
pub(super) mod labels;
pub(super) mod node_result;
pub(super) mod pages;
pub(super) mod pins;
pub(super) mod record_damage;
pub(super) mod results;
pub(super) mod runs;
pub(super) mod schedules;
pub(super) mod spending;
pub(super) mod tombstones;
