//! HTTP servers: thin adapters over the engine and the operators. `env` serves indexes and episodes, `model` a decoder,
//! `page` the store to look at; `http` is what they share.

pub(crate) mod http;
pub(crate) mod env;
pub(crate) mod model;
pub(crate) mod page;
