//! The command-line interface: arguments, one file per subcommand, and the only code that writes to the terminal.
//!
//! `args` has the arguments as clap types, `commands/` one file per subcommand, `display/` all output. `schedule/` is
//! the daemon, `serve/` HTTP over the operators, `pipeline_test` the scripted model of tests, `exit` the exit codes.
//! Everything uses the engine through its `Session`.

mod args;
mod commands;
pub mod display;
mod exit;
mod limits;
mod openlineage;
mod schedule;
mod serve;
mod pipeline_test;

use std::process::ExitCode;

use clap::Parser;

/// Stack of the main thread in bytes. Only what is used takes memory.
const STACK: usize = 96 << 20;

/// Ends the process, with a message, on a CPU that lacks what the binary needs.
pub extern "C" fn check_machine() {
    // Features required by the vector index (see `.cargo/config.toml`).
    #[cfg(target_arch = "x86_64")]
    for (name, there) in [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("F16C", is_x86_feature_detected!("f16c")),
    ] {
        if !there {
            display::wrong_machine(name);
        }
    }
}

/// Runs the command line and returns its exit code.
pub fn cli() -> ExitCode {
    // Once more here: only Linux calls it before the constructors (see `main.rs`).
    check_machine();
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => return display::usage(&error),
    };
    display::start_logging(args.verbose);
    // Before the first thread: the hook must be there when starting one fails.
    limits::report_lack_of_threads();
    limits::survive_file_size_limit();
    let terminal = display::Terminal::new(args.quiet, args.json, args.color);
    // SQL that is nested up to the limit is planned in this thread.
    let done = stacker::grow(STACK, || commands::dispatch(args, &terminal));
    let code = done.unwrap_or_else(|failure| terminal.failure(&failure));
    ExitCode::from(display::code_of_output(code))
}
