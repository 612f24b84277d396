//! TODO

pub(super) mod collect;
pub(super) mod loop_rounds;
pub(super) mod producers;
pub(super) mod release;
pub(super) mod retained;
