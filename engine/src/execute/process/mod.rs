//! TODO

pub(super) mod group_guard;
pub(super) mod program;
pub(super) mod versions;
