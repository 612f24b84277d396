//! From a file and flags to a checked plan.

use std::path::{Path, PathBuf};

use searchmill_engine::diagnostic::{Severity, SourceMap};
use searchmill_engine::operator::Registry;
use searchmill_engine::plan::{Plan, bind};
use searchmill_engine::spec::{Overrides, read};

use crate::exit::Failure;

/// All operators.
pub(crate) fn registry() -> Registry {
    Registry::new(&searchmill_operators::all())
}

/// The texts that a plan was read from, for messages that point into them.
pub(crate) fn texts(plan: &Plan) -> SourceMap {
    let mut sources = SourceMap::new();
    drop(read(plan.file(), plan.overrides(), &mut sources));
    sources
}

/// Reads, binds and checks a pipeline.
pub(crate) fn plan(file: &Path, set: &[String], params: &[PathBuf], directory: &Path) -> Result<Plan, Failure> {
    let overrides = Overrides { set: set.to_vec(), params_files: params.to_vec() };
    let mut sources = SourceMap::new();
    let reading = read(file, &overrides, &mut sources);
    let broken = reading.problems.iter().any(|problem| problem.severity == Severity::Error);
    let mut problems = reading.problems;
    // A pipeline that does not read well is bound all the same: its other faults are told in the same go.
    let bound = reading.spec.map(|spec| bind(spec, file, directory, &registry()));
    match bound {
        Some(Ok(plan)) if !broken => return Ok(plan),
        Some(Err(found)) => problems.extend(found),
        _ => {}
    }
    problems.sort_by_key(|problem| problem.span().map(|span| (span.file, span.start)));
    problems.dedup();
    Err(Failure::Pipeline(problems, Box::new(sources)))
}
