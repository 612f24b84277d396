//! What may go: `retained` says what a collection keeps, `collect` removes the rest. `release` removes outputs of middle
//! rounds on record; `loop_rounds` finds them, and `producers` knows which node made an artifact.

pub(super) mod producers;
pub(super) mod release;
pub(super) mod loop_rounds;
pub(super) mod retained;
pub(super) mod collect;
