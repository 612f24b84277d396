//! The only integration test binary. One folder for each subject; `harness` runs the program for all of them.

mod harness;
// What runs again, what is reused, what is removed.
mod caching;
// Kills, faults, damage, several processes and machines.
mod crash;
// What a pipeline file can say, and what it does.
mod pipelines;
// Endpoints, services and tools that a run calls, and the servers of `serve`.
mod servers;
// Where results come from: trace, audit, archives, statements.
mod lineage;
// The page of `ui`.
mod page;
// The other commands, the Python package, and the documents.
mod cli;
// Rules about the sources, and laws that every operator obeys.
mod house;

/// Prints a note about a test that cannot run here.
fn say(line: &str) {
    use std::io::Write;
    writeln!(std::io::stderr(), "{line}").expect("stderr");
}
