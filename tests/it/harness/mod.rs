//! Runs the real program in a folder of its own, and what it meets there: tiny models, endpoints, an object store.

pub(super) mod endpoint;
pub(super) mod models;
pub(super) mod project;
pub(super) mod s3_server;
