//! The operators of searchmill: one file each, and the support modules that two or more of them share.

use searchmill_engine::operator::{OperatorEntry, entry};

pub mod agent;
pub mod evaluate;
mod evaluation;
pub mod exec;
pub mod generate_world;
pub mod text;
mod world;

/// Every operator, for the registry. One line each, in the order of a pipeline.
#[must_use]
pub fn all() -> Vec<OperatorEntry> {
    vec![entry::<generate_world::GenerateWorld>(), entry::<evaluate::Evaluate>(), entry::<exec::Exec>()]
}
