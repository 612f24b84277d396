//! The command-line interface: arguments, one file per subcommand, and the only door to the terminal.

mod args;
mod commands;
pub mod display;
mod exit;
mod pipeline;

use std::process::ExitCode;

use clap::Parser;

/// Runs the command line and gives its exit code.
#[must_use]
pub fn cli() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => return display::usage(&error),
    };
    display::start_logging(args.verbose);
    let terminal = display::Terminal::new(args.quiet, args.json, args.color);
    let code = match commands::dispatch(args, &terminal) {
        Ok(code) => code,
        Err(failure) => terminal.failure(&failure),
    };
    ExitCode::from(code)
}
