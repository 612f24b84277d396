//! YAML text to a [`Spec`]: what was written, with its places, all errors in one go.

mod arguments;
mod budget;
mod cadence;
mod field;
mod fragment;
#[cfg(test)]
mod fuzz;
mod include;
mod load;
mod matrix;
mod node;
mod pipeline;
mod reference;
mod resolved;
mod scalar;
mod schedule;
mod scope;
mod set;
mod source;
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
pub use pipeline::{Binding, NodeSpec, OnError, Overrides, Reference, Resources, Spec};
pub use resolved::resolved_yaml;
pub use schedule::{Catchup, Overlap, Schedule};
pub(crate) use suggest::advice;
pub use value::{Key, Spanned, Value, locate};

use crate::diagnostic::{Diagnostic, FileId, Severity, SourceMap};
use scope::Shared;

/// Most findings that are told.
const MAX_PROBLEMS: usize = 200;

/// What could be made of a pipeline, and all that is wrong with it. Where something is wrong, the spec lacks nodes or
/// holds [`Value::Broken`]: good enough to look for more faults, never to run.
#[derive(Clone, Debug)]
pub struct Reading {
    /// As much as could be read.
    pub spec: Option<Spec>,
    /// All findings, in the order of the text.
    pub problems: Vec<Diagnostic>,
}

impl Reading {
    /// The spec, if nothing is wrong.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn finish(self) -> Result<Spec, Vec<Diagnostic>> {
        let failed = self.problems.iter().any(|problem| problem.severity == Severity::Error);
        self.spec.filter(|_| !failed).ok_or(self.problems)
    }
}

/// Reads a pipeline from a file.
///
/// # Errors
/// All that is wrong with it, in one go.
pub fn load(path: &Path, overrides: &Overrides, sources: &mut SourceMap) -> Result<Spec, Vec<Diagnostic>> {
    read(path, overrides, sources).finish()
}

/// Reads a pipeline from memory; `path` is where it would stand.
///
/// # Errors
/// All that is wrong with it, in one go.
pub fn load_text(
    path: &Path,
    text: impl Into<String>,
    overrides: &Overrides,
    sources: &mut SourceMap,
) -> Result<Spec, Vec<Diagnostic>> {
    read_text(path, text, overrides, sources).finish()
}

/// Like [`load`], with whatever could be read beside the findings.
pub fn read(path: &Path, overrides: &Overrides, sources: &mut SourceMap) -> Reading {
    let file = source::read(path, None, sources);
    read_admitted(path, file, overrides, sources)
}

/// Like [`load_text`], with whatever could be read beside the findings.
pub fn read_text(path: &Path, text: impl Into<String>, overrides: &Overrides, sources: &mut SourceMap) -> Reading {
    let file = source::take(path, text.into(), sources);
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
    let environment = |name: &str| std::env::var(name).ok();
    let mut shared = Shared::new(sources, &environment);
    let spec = load::pipeline(path, file, overrides, &mut shared);
    Reading { spec, problems: tidy(shared.problems) }
}

/// In the order of the text, each finding once, and not too many of them.
fn tidy(mut problems: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let mut seen = BTreeSet::new();
    problems.retain(|problem| seen.insert((problem.code, problem.span(), problem.message.clone())));
    problems.sort_by_key(Diagnostic::span);
    let more = problems.len().saturating_sub(MAX_PROBLEMS);
    problems.truncate(MAX_PROBLEMS);
    if more > 0 {
        problems.push(Diagnostic::error("too-many-errors", format!("and {more} more errors")));
    }
    problems
}
