//! From a file and flags to a checked plan.

use std::path::{Path, PathBuf};

use searchmill_engine::diagnostic::SourceMap;
use searchmill_engine::operator::Registry;
use searchmill_engine::plan::{Plan, bind};
use searchmill_engine::spec::{Overrides, load};

use crate::exit::Failure;

/// All operators.
pub(crate) fn registry() -> Registry {
    Registry::new(&searchmill_operators::all())
}

/// Reads, binds and checks a pipeline.
pub(crate) fn plan(file: &Path, set: &[String], params: &[PathBuf], directory: &Path) -> Result<Plan, Failure> {
    let overrides = Overrides { set: set.to_vec(), params_files: params.to_vec() };
    let mut sources = SourceMap::new();
    let checked = load(file, &overrides, &mut sources).and_then(|spec| bind(spec, file, directory, &registry()));
    checked.map_err(|errors| Failure::Pipeline(errors, Box::new(sources)))
}
