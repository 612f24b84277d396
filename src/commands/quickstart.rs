//! `quickstart`: runs the pipeline that the program brings along, in the current folder.

use std::path::Path;

use searchmill_engine::{Failure, Session};

use super::init::{write_new, write_schema};
use super::run::run;
use super::show::show;
use crate::args::{PipelineArgs, QuickstartArgs, RunArgs, ShowArgs};
use crate::display::Terminal;
use crate::exit::OK;

/// The pipeline, as in the repository.
const TEXT: &str = include_str!("../../pipelines/quickstart.yaml");
/// Where it is written, as in the repository.
const FILE: &str = "pipelines/quickstart.yaml";

pub(super) fn quickstart(terminal: &Terminal, session: &Session, args: QuickstartArgs) -> Result<u8, Failure> {
    let (found, is_changed) = place(session)?;
    if !terminal.is_json() {
        terminal.line(found);
        terminal.line(
            "it builds an index and a training file in seconds, then trains and tests a small model \
             (4 to 9 minutes on two cores); Ctrl-C stops, and the next run goes on there\n",
        );
    }
    let of_file = PipelineArgs { file: FILE.into(), set: args.set, params: Vec::new() };
    let code = run(terminal, session, RunArgs { pipeline: of_file, ..RunArgs::default() })?;
    // A changed pipeline may have no node `progress`.
    if code != OK || terminal.is_json() || is_changed {
        return Ok(code);
    }
    terminal.line("\nthe small model before and after its training, on held-out questions, and what needs no search:");
    let what = "progress".to_owned();
    show(terminal, session, &ShowArgs { what, file: Some(FILE.into()), ..ShowArgs::default() })?;
    terminal.line(ENDING);
    Ok(OK)
}

/// Writes the pipeline and its schema, unless it is there. Returns what was found in its place, in words, and whether that
/// is another version, or a person's own.
fn place(session: &Session) -> Result<(&'static str, bool), Failure> {
    let file = session.directory().join(FILE);
    match std::fs::read_to_string(&file) {
        Ok(text) if text == TEXT => Ok(("runs pipelines/quickstart.yaml:", false)),
        Ok(_) => Ok(("runs pipelines/quickstart.yaml as it is here, changed from the one of this version:", true)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let folder = file.parent().unwrap_or(session.directory());
            std::fs::create_dir_all(folder).map_err(|error| failed("create", folder, &error))?;
            write_new(&file, TEXT.as_bytes())?;
            write_schema(session, &file)?;
            Ok(("wrote pipelines/quickstart.yaml, and runs it:", false))
        }
        Err(error) => Err(failed("read", &file, &error)),
    }
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::usage(format!("cannot {what} {}: {error}", path.display()));
    failure.with_help("start in a folder in which you may write, or name one: `searchmill -C FOLDER quickstart`")
}

const ENDING: &str = "
made: out/quickstart/train.jsonl (training examples for ms-swift)
      out/quickstart/report/report.html (scores, intervals, baselines, sample conversations)
      out/quickstart/student/report.html, out/quickstart/training/ (the trained model's answers, its loss curve)
try:  searchmill ui                                   all of it in the browser
      searchmill show after -n 1                      the trained model searching and answering
      searchmill run pipelines/quickstart.yaml        again: everything is cached
      searchmill plan pipelines/quickstart.yaml --set chunk_words=60   what one changed param reruns, and why";
