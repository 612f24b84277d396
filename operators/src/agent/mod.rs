//! Agents: who answers (policies), in which grammar (protocols), and the loop that lets them search.

pub(crate) mod chance;
pub(crate) mod episode;
pub(crate) mod policy;
pub(crate) mod protocol;
pub(crate) mod tool;
