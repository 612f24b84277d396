//! The operators of searchmill: one file each, and the support modules that two or more of them share.

mod conversion;
mod convert_to_openai;
mod convert_to_sharegpt;
mod convert_to_swift;
mod convert_to_trl;
mod convert_to_verl;
mod dedup;
mod filter;
mod join;
mod rebalance;
mod relation;
mod sample;
mod sql;

use searchmill_engine::operator::{OperatorEntry, entry};
use searchmill_engine::operator::{OperatorEntry, entry};

pub mod agent;
pub mod evaluate;
mod evaluation;
pub mod text;

/// Every operator, for the registry. One line each, in the order of a pipeline.
#[must_use]
pub fn all() -> Vec<OperatorEntry> {
    vec![
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
    vec![entry::<evaluate::Evaluate>()]
}
