//! Agents: who answers (policies), in which grammar (protocols), the loop that lets them search, and judging what a
//! trajectory rests on.

pub(crate) mod chance;
pub(crate) mod episode;
pub mod grounding;
pub(crate) mod policy;
pub(crate) mod protocol;
pub(crate) mod tool;
