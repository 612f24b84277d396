//! What the servers share: access, JSON bodies, refusals.

pub(crate) mod access;
pub(super) mod body;
pub(super) mod refusal;
