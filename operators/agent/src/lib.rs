//! Agents: policies (who answers), protocols (in which grammar), tools, episodes (by which rules), and the grounding
//! of a trajectory's answer.

pub mod chance;
pub mod episode;
pub mod grounding;
pub mod policy;
pub mod protocol;
pub mod recheck;
pub mod rollout;
pub mod tool;
