//! Programs that a run starts: their groups, which end with it, and their versions.

pub(super) mod group_guard;
pub(super) mod program;
pub(super) mod versions;
