//! Reads and checks a pipeline: file and overrides to a plan.

use std::path::Path;
use std::sync::Arc;

use super::failure::Failure;
use super::open::Session;
use super::options::budget;
use crate::diagnostic::{Diagnostic, SourceMap, Span};
use crate::execute::RunOptions;
use crate::plan::{Plan, bind, check_store};
use crate::spec::{FILE_NOT_FOUND, Overrides, Reading, SET, Spec, TestCase, read};

/// A checked pipeline.
#[derive(Debug)]
pub struct Pipeline {
    /// The plan.
    pub plan: Arc<Plan>,
    /// The texts it was read from, for messages that point into them.
    pub sources: SourceMap,
}

impl Pipeline {
    /// Fails if there are findings. Those that all variants of a node share are told once.
    pub(super) fn refuse(&self, found: Vec<Diagnostic>) -> Result<(), Failure> {
        let mut findings: Vec<Diagnostic> = Vec::new();
        for mut finding in found {
            self.sources.narrow(&mut finding);
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        }
        if findings.is_empty() { Ok(()) } else { Err(Failure::Pipeline(findings, Box::new(self.sources.clone()))) }
    }
}

/// Whether two findings are the same one, in two rounds of a loop.
fn is_of_another_round(one: &Diagnostic, other: &Diagnostic) -> bool {
    let spans = |finding: &Diagnostic| finding.labels.iter().map(|label| label.span).collect::<Vec<_>>();
    let same = one.code == other.code && spans(one) == spans(other) && one.help == other.help;
    same && without_rounds(&one.message) == without_rounds(&other.message)
}

/// Removes the numbers from the rounds in the ids of nodes.
fn without_rounds(message: &str) -> String {
    const ROUND: &str = "round=";
    let mut parts = message.split(ROUND);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, rest| text + ROUND + rest.trim_start_matches(|digit: char| digit.is_ascii_digit()))
}

/// Returns where a test sets the param that a span of a `--set` is about; other spans stay.
fn written_at(span: Span, test: &TestCase, read: &SourceMap, sources: &SourceMap) -> Span {
    let Some((_, text)) = sources.get(span.file).filter(|(name, _)| *name == Path::new(SET)) else { return span };
    let Some(param) = test.params.iter().find(|param| param.set == text) else { return span };
    let at = if span.start <= text.find('=').unwrap_or_default() { param.key } else { param.value };
    let Some((path, _)) = read.get(at.file) else { return span };
    sources.find(path).map_or(span, |file| Span { file, ..at })
}

impl Session {
    /// Reads, binds and checks a pipeline. Needs no store.
    ///
    /// # Errors
    /// Fails with all errors of the pipeline.
    pub fn check(&self, file: impl AsRef<Path>, overrides: &Overrides) -> Result<Pipeline, Failure> {
        self.check_with(file.as_ref(), overrides, |spec| spec)
    }

    /// Makes all checks of a pipeline that need no run: those of [`Session::check`], destinations, params against the columns
    /// that are known, the budget, and the params of its tests.
    ///
    /// # Errors
    /// Fails with all errors of the first of these checks that finds any.
    pub fn validate(&self, file: impl AsRef<Path>, overrides: &Overrides) -> Result<Pipeline, Failure> {
        let file = file.as_ref();
        let pipeline = self.check(file, overrides)?;
        self.check_destinations(&pipeline)?;
        // A run makes these two checks as well, of the nodes that it runs and with the budget that it is given.
        pipeline.refuse(pipeline.plan.column_issues().into_iter().map(|(_, issue)| issue).collect())?;
        budget(&pipeline.plan, &RunOptions::default())?;
        for test in pipeline.plan.tests.iter().filter(|test| !test.params.is_empty()) {
            self.check_test(file, overrides, test, &pipeline.sources)?;
        }
        Ok(pipeline)
    }

    /// Like [`Session::check`], to list the tests of a pipeline: files that it reads may not exist, as a test may give
    /// their rows.
    ///
    /// # Errors
    /// Fails with all errors of the pipeline.
    pub fn check_for_tests(&self, file: impl AsRef<Path>, overrides: &Overrides) -> Result<Pipeline, Failure> {
        self.check_with(file.as_ref(), overrides, |spec| Spec { for_tests: true, ..spec })
    }

    /// Like [`Session::check_for_tests`], with the params of one test; `read` is where the test was read from. Errors in them
    /// are at their places in the file. The nodes that other tests name may not exist.
    pub(super) fn check_for_test(
        &self,
        file: &Path,
        overrides: &Overrides,
        test: &TestCase,
        read: &SourceMap,
    ) -> Result<Pipeline, Failure> {
        let set = overrides.set.iter().chain(test.params.iter().map(|param| &param.set)).cloned().collect();
        let overrides = Overrides { set, params_files: overrides.params_files.clone() };
        let alone = |mut spec: Spec| {
            spec.tests.retain(|found| found.name == test.name);
            spec.tests.iter_mut().for_each(|test| test.params.clear());
            Spec { for_tests: true, ..spec }
        };
        self.check_with(file, &overrides, alone).map_err(|failure| match failure {
            Failure::Pipeline(mut findings, sources) => {
                let labels = findings.iter_mut().flat_map(|finding| &mut finding.labels);
                labels.for_each(|label| label.span = written_at(label.span, test, read, &sources));
                Failure::Pipeline(findings, sources)
            }
            other => other,
        })
    }

    fn check_with(
        &self,
        file: &Path,
        overrides: &Overrides,
        change: impl FnOnce(Spec) -> Spec,
    ) -> Result<Pipeline, Failure> {
        let mut sources = SourceMap::new();
        let Reading { spec, mut problems } = read(file, overrides, &mut sources);
        match spec.map(change).map(|spec| bind(spec, file, self.directory(), self.registry())) {
            Some(Ok(plan)) if problems.is_empty() => return Ok(Pipeline { plan: Arc::new(plan), sources }),
            Some(Err(found)) => problems.extend(found),
            _ => {}
        }
        for problem in &mut problems {
            sources.narrow(problem);
        }
        // What a missing file lacks is not reported, so other errors are independent of it; it comes first all the same.
        problems.sort_by_key(|problem| {
            (problem.code != FILE_NOT_FOUND, problem.span().map(|span| (span.file, span.start)))
        });
        problems.dedup_by(|one, other| is_of_another_round(one, other));
        Err(Failure::Pipeline(problems, Box::new(sources)))
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
