//! The operators of searchmill: one file each, and the support modules that two or more of them share.

use searchmill_engine::operator::{OperatorEntry, entry};

pub mod agent;
pub mod evaluate;
mod evaluation;
pub mod exec;
pub mod generate_world;
pub mod text;
mod chunk;
mod chunking;
pub mod agent;
pub mod evaluate;
mod evaluation;
pub mod index;
pub mod model;
pub mod retrieval;
pub mod retrieve;
mod shorthand;

use searchmill_engine::operator::{OperatorEntry, entry};
pub mod rollout;
mod shorthand;
pub mod text;
pub mod read;
mod source;

use searchmill_engine::operator::{OperatorEntry, entry};
mod world;

/// Every operator, for the registry. One line each, in the order of a pipeline.
#[must_use]
pub fn all() -> Vec<OperatorEntry> {
    vec![entry::<evaluate::Evaluate>()]
    vec![entry::<chunk::Chunk>()]
    vec![entry::<index::Index>(), entry::<retrieve::Retrieve>()]
    vec![
        entry::<index::Index>(),
        entry::<retrieve::Retrieve>(),
        entry::<rollout::Rollout>(),
        entry::<evaluate::Evaluate>(),
    ]
    vec![entry::<read::Read>()]
    vec![entry::<generate_world::GenerateWorld>(), entry::<evaluate::Evaluate>(), entry::<exec::Exec>()]
}
