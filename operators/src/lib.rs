//! The operators of searchmill: one file each (params, ports, open). What two or more of them share is in `shared`;
//! algorithms are in the crates below this one.

// Operators in pipeline order.
pub mod generate_world;
pub mod read;
pub mod split;
pub mod chunk;
pub mod index;
pub mod retrieve;
pub mod rollout;
mod recorded_corpus;
pub mod evaluate;
pub mod compare;
mod plot;
mod difficulty;
mod reflection;
mod logprob;
mod reward;
mod judge;
mod map;
mod weight;
mod advantage;
mod filter_by_f1;
mod filter;
mod sql;
mod join;
mod gather;
mod decide;
mod dedup;
mod decontaminate;
mod sample;
mod rebalance;
mod pair;
mod convert_to_swift;
mod convert_to_trl;
mod convert_to_openai;
mod convert_to_sharegpt;
mod convert_to_verl;
mod export_trajectories;
mod init_model;
mod read_model;
mod train;
pub mod exec;
pub mod write;
pub mod environment;
#[cfg(test)]
mod examples;
// What several operators share.
mod shared;

use searchmill_engine::operator::{OperatorEntry, entry};

/// All operators for the registry, in pipeline order.
pub fn all() -> Vec<OperatorEntry> {
    vec![
        entry::<generate_world::GenerateWorld>(),
        entry::<read::Read>(),
        entry::<split::Split>(),
        entry::<chunk::Chunk>(),
        entry::<index::Index>(),
        entry::<retrieve::Retrieve>(),
        entry::<rollout::Rollout>(),
        entry::<recorded_corpus::RecordedCorpus>(),
        entry::<evaluate::Evaluate>(),
        entry::<compare::Compare>(),
        entry::<plot::Plot>(),
        entry::<difficulty::Difficulty>(),
        entry::<reflection::Reflection>(),
        entry::<logprob::Logprob>(),
        entry::<reward::Reward>(),
        entry::<judge::Judge>(),
        entry::<map::Map>(),
        entry::<weight::Weight>(),
        entry::<advantage::Advantage>(),
        entry::<filter_by_f1::FilterByF1>(),
        entry::<filter::Filter>(),
        entry::<sql::Sql>(),
        entry::<join::Join>(),
        entry::<gather::Gather>(),
        entry::<decide::Decide>(),
        entry::<dedup::Dedup>(),
        entry::<decontaminate::Decontaminate>(),
        entry::<sample::Sample>(),
        entry::<rebalance::Rebalance>(),
        entry::<pair::Pair>(),
        entry::<convert_to_swift::ConvertToSwift>(),
        entry::<convert_to_trl::ConvertToTrl>(),
        entry::<convert_to_openai::ConvertToOpenai>(),
        entry::<convert_to_sharegpt::ConvertToSharegpt>(),
        entry::<convert_to_verl::ConvertToVerl>(),
        entry::<export_trajectories::ExportTrajectories>(),
        entry::<init_model::InitModel>(),
        entry::<read_model::ReadModel>(),
        entry::<train::Train>(),
        entry::<write::Write>(),
        entry::<exec::Exec>(),
    ]
}
