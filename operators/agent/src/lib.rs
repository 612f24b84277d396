//! Agents: who answers (policies), in which grammar (protocols), with which tools, by which rules (episodes), and judging
//! what a trajectory rests on.

pub mod chance;
pub mod episode;
pub mod grounding;
pub mod policy;
pub mod protocol;
pub mod recheck;
pub mod rollout;
pub mod tool;
