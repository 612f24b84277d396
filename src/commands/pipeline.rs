//! Pipeline and node selection from the command line.

use searchmill_engine::{Failure, Overrides, Pipeline, Selection, Session};

use crate::args::{ChosenArgs, PipelineArgs};

/// Reads and checks the pipeline.
pub(super) fn check(session: &Session, args: &PipelineArgs) -> Result<Pipeline, Failure> {
    session.check(&args.file, &Overrides { set: args.set.clone(), params_files: args.params.clone() })
}

/// Returns the selected nodes.
pub(super) fn selection(chosen: &ChosenArgs) -> Selection {
    let targets = chosen.targets.iter().chain(&chosen.to).cloned().collect();
    Selection { targets, from: chosen.from.clone(), only: chosen.only.clone() }
}
