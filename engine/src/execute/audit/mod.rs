//! TODO

pub(super) mod answers;
pub(super) mod replay;
pub(super) mod rerun;
pub(super) mod restored;
pub(super) mod spot_check;
