//! The `searchmill` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    searchmill::cli()
}
