//! Runs a pipeline with one operator of our own beside all that come with searchmill.

mod truncate_text;

use searchmill_engine::operator::{Registry, entry};
use searchmill_engine::{Failure, Lines, Overrides, RunOptions, RunSummary, Session};

fn main() -> std::process::ExitCode {
    let file = std::env::args().nth(1).unwrap_or_else(|| "pipeline.yaml".to_owned());
    let ran = run_pipeline(file.as_ref(), ".".as_ref());
    match &ran {
        Ok(summary) => println!("{summary}"),
        Err(failure) => eprintln!("{failure}"),
    }
    ran.map_or_else(|failure| failure.exit_code(), |summary| summary.exit_code()).into()
}

/// Runs a pipeline; its store and its relative paths start at `directory`.
pub(crate) fn run_pipeline(file: &std::path::Path, directory: &std::path::Path) -> Result<RunSummary, Failure> {
    let operators = [searchmill_operators::all(), vec![entry::<truncate_text::TruncateText>()]].concat();
    let session = Session::open(directory, Registry::new(&operators))?;
    let pipeline = session.check(file, &Overrides::default())?;
    session.run(&pipeline, RunOptions::default(), Lines(|line: &str| println!("{line}")))
}
