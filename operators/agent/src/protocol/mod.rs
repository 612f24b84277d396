//! Protocols: how a model asks for tools, is shown what came of it, and marks its answer. A protocol is a file, its `mod` line
//! here and its line in `name.rs`.

mod contract;
mod name;
mod tool_call;

pub use contract::{Action, Protocol, ProtocolSettings};
pub use name::ProtocolName;

/// The answer where the passages do not support one.
pub(crate) const INSUFFICIENT: &str = "Insufficient Information";
