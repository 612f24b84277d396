//! Protocols: how a model requests tools, sees their results, and marks its answer. A new protocol needs a file, a
//! `mod` line here and a line in `name.rs`.

mod contract;
mod name;
mod tool_call;

pub use contract::{Action, Protocol, ProtocolSettings};
pub use name::ProtocolName;

/// Answer if the passages do not support any other.
pub(crate) const INSUFFICIENT: &str = "Insufficient Information";
