//! The operators of searchmill: one file each, and the support modules that two or more of them share.

pub mod agent;
mod conversion;
mod convert_to_openai;
mod convert_to_sharegpt;
mod convert_to_swift;
mod convert_to_trl;
mod convert_to_verl;
mod dedup;
pub mod evaluate;
mod evaluation;
pub mod exec;
pub mod generate_world;
#[cfg(test)]
mod examples;
mod filter;
mod filter_by_f1;
mod join;
mod rebalance;
mod relation;
mod sample;
mod sql;
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

use searchmill_engine::operator::{OperatorEntry, entry};

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
    vec![
        entry::<evaluate::Evaluate>(),
        entry::<filter_by_f1::FilterByF1>(),
        entry::<filter::Filter>(),
        entry::<sql::Sql>(),
        entry::<join::Join>(),
        entry::<dedup::Dedup>(),
        entry::<sample::Sample>(),
        entry::<rebalance::Rebalance>(),
        entry::<convert_to_swift::ConvertToSwift>(),
        entry::<convert_to_trl::ConvertToTrl>(),
        entry::<convert_to_openai::ConvertToOpenai>(),
        entry::<convert_to_sharegpt::ConvertToSharegpt>(),
        entry::<convert_to_verl::ConvertToVerl>(),
    ]
}
