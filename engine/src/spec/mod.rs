//! Reads YAML text into a [`Spec`]: as written, with locations. Reports all errors together.
//!
//! 1. `syntax` reads and parses the text within limits of size and depth. Every value has a span.
//! 2. `set` reads the params of a file and applies `--params` and `--set`, or those of its include, to them.
//! 3. `scope` resolves `${params.…}`, `${env:…}`, `${matrix.…}` and `${repeat.round}`. `${secret:…}` and
//!    `${service.…}` stay references. `budget` limits
//!    what aliases and `${…}` copy.
//! 4. `matrix`, `repeat` and `include` expand nodes. Paths in `include:` start at the file that contains it.
//! 5. `arguments` types the values of `with:` by the JSON Schema of the operator's params. The param decides the type
//!    of a value, and an error points at the value.
//!
//! The reader collects findings and continues after each of them. It reports at most 200.

mod arguments;
mod budget;
mod cadence;
mod coordinate;
mod checks;
mod decision;
mod field;
mod fragment;
#[cfg(test)]
mod fuzz;
mod include;
mod matrix;
mod model;
mod node;
mod notify;
mod pipeline_test;
mod reference;
mod repeat;
mod rounds;
mod row_limit;
mod schedule;
mod scope;
mod seed;
mod service;
mod set;
mod settings;
mod suggest;
mod syntax;
mod syntax_fault;
mod template;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeSet;
use std::path::Path;

pub use arguments::arguments;
pub use cadence::{Cadence, Time};
pub(crate) use checks::percent;
pub use checks::{Check, CheckSpec, OnFailure, Rule};
pub use coordinate::Coordinate;
pub(crate) use coordinate::same_output;
pub use model::{
    Binding, Gathers, HandedOnSpec, Kept, LoopSpec, NodeSpec, OnError, Overrides, Reference, Resources, RoundSpec,
    Serves, ServiceSpec, Spec,
};
pub use notify::{Notify, Occasion, Receiver};
pub use pipeline_test::{Expected, Rows, Scripted, TestCase, TestParam};
pub use row_limit::RowLimit;
pub use schedule::{Catchup, Overlap, Schedule};
pub(crate) use service::service_of;
pub(crate) use set::SET;
pub(crate) use settings::settings;
pub(crate) use suggest::advice;
pub use suggest::{closest, suggest};
pub(crate) use suggest::{meant_node, meant_output, several_loops};
pub(crate) use syntax::FILE_NOT_FOUND;
pub(crate) use value::locate;
pub use value::{Key, Spanned, Value};

use crate::diagnostic::{Diagnostic, FileId, SourceMap};
use budget::Budget;
use scope::Shared;

/// Limit of reported diagnostics.
const MAX_PROBLEMS: usize = 200;

/// The result of reading a pipeline, with all its errors. After an error, the spec lacks nodes or contains
/// [`Value::Broken`]: good enough to find more errors, never to run.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The spec as far as it could be read.
    pub spec: Option<Spec>,
    /// All diagnostics, in text order.
    pub problems: Vec<Diagnostic>,
}

/// Reads a pipeline from a file, as far as possible despite errors.
pub fn read(path: &Path, overrides: &Overrides, sources: &mut SourceMap) -> Reading {
    let file = syntax::read_file(path, None, sources);
    read_admitted(path, file, overrides, sources)
}

/// Reads a pipeline from memory; `path` is its nominal location.
pub fn read_text(path: &Path, text: impl Into<String>, overrides: &Overrides, sources: &mut SourceMap) -> Reading {
    let file = syntax::take_text(path, text.into(), sources);
    read_admitted(path, file, overrides, sources)
}

fn read_admitted(
    path: &Path,
    file: Result<FileId, Diagnostic>,
    overrides: &Overrides,
    sources: &mut SourceMap,
) -> Reading {
    let file = match file {
        Ok(file) => file,
        Err(problem) => return Reading { spec: None, problems: vec![problem] },
    };
    let (problems, budget) = (Vec::new(), Budget::default());
    let mut shared = Shared { sources, problems, budget, included: 0, included_bytes: 0, unread: 0 };
    let spec = fragment::pipeline(path, file, overrides, &mut shared);
    // In text order, without the copies of an error that a matrix or a loop makes.
    let (mut problems, mut seen) = (shared.problems, BTreeSet::new());
    problems.retain(|problem| seen.insert((problem.code, problem.span(), problem.message.clone())));
    problems.sort_by_key(Diagnostic::span);
    let more = problems.len().saturating_sub(MAX_PROBLEMS);
    problems.truncate(MAX_PROBLEMS);
    if more > 0 {
        problems.push(Diagnostic::error("too-many-errors", format!("and {more} more errors")));
    }
    Reading { spec, problems }
}
