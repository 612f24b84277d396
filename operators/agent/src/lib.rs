//! Agents: who answers (policies), in which grammar (protocols), the loop that lets them search, and judging what a
//! trajectory rests on.

pub mod chance;
pub mod episode;
pub mod grounding;
pub mod policy;
pub mod protocol;
pub mod recheck;
pub mod tool;
