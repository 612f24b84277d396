//! The only integration test binary.

mod blocks;
mod commands;
mod comparing;
mod attest;
mod audits;
mod carrying;
mod chaos;
mod checks;
mod circles;
mod comes_back;
mod cookbook;
mod concurrency;
mod crash;
mod diagnostics;
mod endpoint;
mod example;
mod extra_columns;
mod failing;
mod faults;
mod forced;
mod forged;
mod keeping;
mod known_columns;
mod late;
mod laws;
mod lineage;
mod limits;
mod links;
mod loop_checks;
mod loop_names;
mod map;
mod map_kills;
mod map_python;
mod matrix;
mod mill;
mod models;
mod money;
mod mutations;
mod prompt_tools;
#[allow(dead_code, reason = "the tests of `rollout` share this server and use the rest of it")]
mod public;
mod releasing;
mod remote;
mod repeat;
mod stop;
mod rerank;
mod rot;
mod neighbours;
mod opened;
mod newcomer;
mod nights;
mod openlineage;
mod outputs;
mod outside;
mod reading;
mod rows;
mod s3_server;
mod schedule;
mod serve;
mod serve_env;
mod services;
mod serve_episodes;
mod serve_mcp;
mod serve_upkeep;
mod scale;
mod shared;
#[allow(dead_code, reason = "the operators' tests share these words and use the rest of them")]
mod slips;
mod settings;
mod sources;
mod systems;
mod testing;
mod tidy;
mod tools;
mod training;
mod trials;
mod until;
mod version;
mod why;
mod workers;

/// Prints a note about a test that cannot run here.
fn say(line: &str) {
    use std::io::Write;
    writeln!(std::io::stderr(), "{line}").expect("stderr");
}
