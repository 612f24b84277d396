//! The one integration binary.

mod blocks;
mod commands;
mod attest;
mod carrying;
mod chaos;
mod comes_back;
mod concurrency;
mod crash;
mod diagnostics;
mod endpoint;
mod example;
mod keeping;
mod laws;
mod lineage;
mod limits;
mod mill;
mod money;
#[allow(dead_code, reason = "the tests of `rollout` share this server and use the rest of it")]
mod openai_server;
mod remote;
mod openlineage;
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
