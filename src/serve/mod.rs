//! HTTP servers: thin adapters over the engine and the operators.

mod answer;
mod body;
mod chat;
mod completion;
pub(crate) mod door;
pub(crate) mod env;
mod message;
pub(crate) mod model;
mod options;
pub(crate) mod page;
mod refusal;
mod speech;
mod wire;
