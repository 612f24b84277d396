//! Reads and checks a pipeline: file and overrides to a plan.

use std::path::Path;
use std::sync::Arc;

use super::failure::Failure;
use super::open::Session;
use crate::diagnostic::{Diagnostic, SourceMap};
use crate::plan::{Plan, bind, check_store};
use crate::spec::{Overrides, Reading, Spec, read};

/// A checked pipeline.
#[derive(Debug)]
pub struct Pipeline {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The texts it was read from, for messages that point into them.
    pub sources: SourceMap,
}

impl Pipeline {
    /// Fails if there are findings.
    pub(super) fn refuse(&self, mut findings: Vec<Diagnostic>) -> Result<(), Failure> {
        for finding in &mut findings {
            self.sources.narrow(finding);
        }
        if findings.is_empty() { Ok(()) } else { Err(Failure::Pipeline(findings, Box::new(self.sources.clone()))) }
    }
}

impl Session {
    /// Reads, binds and checks a pipeline. Needs no store.
    ///
    /// # Errors
    /// Fails with all errors of the pipeline.
    pub fn check(&self, file: impl AsRef<Path>, overrides: &Overrides) -> Result<Pipeline, Failure> {
        self.check_with(file.as_ref(), overrides, false)
    }

    /// Like [`Session::check`], for [`Session::try_out`]: files that the pipeline reads may not exist, as a test may give
    /// their rows.
    ///
    /// # Errors
    /// Fails with all errors of the pipeline.
    pub fn check_for_tests(&self, file: impl AsRef<Path>, overrides: &Overrides) -> Result<Pipeline, Failure> {
        self.check_with(file.as_ref(), overrides, true)
    }

    fn check_with(&self, file: &Path, overrides: &Overrides, for_tests: bool) -> Result<Pipeline, Failure> {
        let mut sources = SourceMap::new();
        let Reading { spec, mut problems } = read(file, overrides, &mut sources);
        let spec = spec.map(|spec| Spec { for_tests, ..spec });
        match spec.map(|spec| bind(spec, file, self.directory(), self.registry())) {
            Some(Ok(plan)) if problems.is_empty() => return Ok(Pipeline { plan: Arc::new(plan), sources }),
            Some(Err(found)) => problems.extend(found),
            _ => {}
        }
        for problem in &mut problems {
            sources.narrow(problem);
        }
        problems.sort_by_key(|problem| problem.span().map(|span| (span.file, span.start)));
        problems.dedup();
        Err(Failure::Pipeline(problems, Box::new(sources)))
    }

    /// Rejects params that do not fit the columns that are known before anything runs (queries, predicates, prompts).
    /// [`Session::run`] makes the same check before it pays for anything.
    ///
    /// # Errors
    /// Fails with every such param.
    pub fn check_columns(&self, pipeline: &Pipeline) -> Result<(), Failure> {
        pipeline.refuse(pipeline.plan.column_issues().into_iter().map(|(_, issue)| issue).collect())
    }

    /// Rejects a pipeline that writes into the store. Needs no store; [`Session::run`] makes the same check.
    ///
    /// # Errors
    /// Fails with every node that would write there.
    pub fn check_destinations(&self, pipeline: &Pipeline) -> Result<(), Failure> {
        let roots = self.place().roots().into_iter();
        pipeline.refuse(roots.flat_map(|root| check_store(&pipeline.plan, root, self.directory())).collect())
    }
}
