//! `completions`: prints what a shell needs to complete commands and options.

use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs};
use crate::display::Terminal;
use crate::exit::OK;

pub(super) fn completions(terminal: &Terminal, args: &CompletionsArgs) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "searchmill", &mut script);
    terminal.line(String::from_utf8_lossy(&script).trim_end());
    OK
}
