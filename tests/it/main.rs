//! The one integration binary.

mod attest;
mod caching;
mod carrying;
mod blocks;
mod commands;
mod concurrency;
mod crash;
mod diagnostics;
mod endpoint;
mod keeping;
mod example;
mod laws;
mod lineage;
mod mill;
#[allow(dead_code, reason = "the tests of `rollout` share this server and use the rest of it")]
mod openai_server;
mod openlineage;
mod remote;
mod rows;
mod schedule;
mod scale;
mod tidy;
mod version;

/// A remark about a test that could not be made here.
fn say(line: &str) {
    use std::io::Write;
    writeln!(std::io::stderr(), "{line}").expect("stderr");
}
