//! What search agents share: loop, policies, protocols, and judging what a trajectory rests on.

pub mod grounding;
