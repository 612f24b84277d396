//! Agents: who answers (policies), in which grammar (protocols), the loop that lets them search, and judging what a
//! trajectory rests on.

pub(crate) mod chance;
pub(crate) mod episode;
pub mod grounding;
pub mod policy;
pub mod protocol;
pub(crate) mod recheck;
pub(crate) mod tool;
