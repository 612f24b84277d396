//! The one integration binary.

mod caching;
mod concurrency;
mod crash;
mod diagnostics;
mod endpoint;
mod mill;
mod openai_server;
mod rows;
