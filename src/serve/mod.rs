//! HTTP servers: thin adapters over the engine and the operators.

mod chat;
mod completion;
pub(crate) mod door;
pub(crate) mod model;
mod stream;
mod wire;
