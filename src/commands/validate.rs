//! `validate`: all errors of a pipeline, offline.

use super::Session;
use crate::args::ValidateArgs;
use crate::exit::{OK, USAGE};
use crate::pipeline;

pub(super) fn validate(session: &Session<'_>, args: &ValidateArgs) -> u8 {
    let mut code = OK;
    for file in &args.files {
        let plan = pipeline::plan(file, &args.set, &args.params, &session.directory);
        match plan.and_then(|plan| session.check_destinations(&plan).map(|()| plan)) {
            Ok(plan) => {
                session.terminal.valid(file, plan.nodes().len());
                for node in plan.nodes() {
                    if let Some(unseen) = &node.operator.declaration.unseen {
                        session.terminal.note(&format!("{}: {unseen}", node.id()));
                    }
                }
            }
            Err(failure) => {
                session.terminal.failure(&failure);
                code = USAGE;
            }
        }
    }
    code
}
