//! Records: results of nodes, histories of runs, pins, spending, labels, schedules. Each is a small file or a file of
//! lines, with a checksum (`checksum`), written beside its place and renamed.

pub(super) mod checksum;
pub(super) mod node_result;
pub(super) mod tombstones;
pub(super) mod results;
pub(super) mod runs;
pub(super) mod pins;
pub(super) mod spending;
pub(super) mod labels;
pub(super) mod schedules;
pub(super) mod pages;
pub(super) mod record_damage;
