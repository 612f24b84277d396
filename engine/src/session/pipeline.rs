//! Reads and checks a pipeline: file and overrides to a plan. Reads the settings of a command from a file, too.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::failure::Failure;
use super::open::Session;
use super::options::budget;
use crate::diagnostic::{Diagnostic, SourceMap, Span};
use crate::execute::RunOptions;
use crate::operator::ParamIssue;
use crate::plan::{Plan, bind, check_store};
use crate::spec::{FILE_NOT_FOUND, Overrides, Reading, SET, Spanned, Spec, TestCase, locate, read, settings};

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

/// The settings of a command, and their places in the file.
#[derive(Debug)]
pub struct Settings {
    /// The settings, typed by their schema.
    pub values: Value,
    text: Spanned,
    sources: SourceMap,
}

impl Settings {
    /// Returns the error of a setting, at its place in the file.
    pub fn refuse(&self, issue: ParamIssue) -> Failure {
        let error = Diagnostic::error("bad-param", issue.message).at(locate(&self.text, &issue.path).0, "");
        Failure::Pipeline(vec![error.help_some(issue.help)], Box::new(self.sources.clone()))
    }
}

/// Removes the numbers from the rounds in the ids of nodes.
fn without_rounds(message: &str) -> String {
    const ROUND: &str = "round=";
    let mut parts = message.split(ROUND);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for rest in parts {
        text.push_str(ROUND);
        text.push_str(rest.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    }
    text
}

/// Returns where a test sets the param that a span of a `--set` is about; other spans stay.
fn written_at(span: Span, test: &TestCase, read: &SourceMap, sources: &SourceMap) -> Span {
    let text = match sources.get(span.file) {
        Some((name, text)) if name == Path::new(SET) => text,
        _ => return span,
    };
    let Some(param) = test.params.iter().find(|param| param.set == text) else { return span };
    // `KEY=VALUE`: what is left of the `=` is about the key.
    let at = if span.start <= text.find('=').unwrap_or_default() { param.key } else { param.value };
    let Some((path, _)) = read.get(at.file) else { return span };
    // The test was read by an earlier check: its file may have another number among these sources.
    match sources.find(path) {
        Some(file) => Span { file, ..at },
        None => span,
    }
}

impl Session {
    /// Reads, binds and checks a pipeline. Needs no store. A relative `file` starts at the working directory of the
    /// process, not at that of the session.
    ///
    /// # Errors
    /// Fails with all errors of the pipeline ([`Failure::Pipeline`]), also if there is no such file.
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
        let mut overrides = overrides.clone();
        // The params of the test last: they override those of the command line.
        overrides.set.extend(test.params.iter().map(|param| param.set.clone()));
        let checked = self.check_with(file, &overrides, |mut spec| {
            spec.tests.retain(|found| found.name == test.name);
            for test in &mut spec.tests {
                test.params.clear();
            }
            Spec { for_tests: true, ..spec }
        });
        match checked {
            Err(Failure::Pipeline(mut findings, sources)) => {
                for label in findings.iter_mut().flat_map(|finding| &mut finding.labels) {
                    label.span = written_at(label.span, test, read, &sources);
                }
                Err(Failure::Pipeline(findings, sources))
            }
            checked => checked,
        }
    }

    fn check_with(
        &self,
        file: &Path,
        overrides: &Overrides,
        change: impl FnOnce(Spec) -> Spec,
    ) -> Result<Pipeline, Failure> {
        let mut sources = SourceMap::new();
        let Reading { spec, mut problems } = read(file, overrides, &mut sources);
        // Bound even with problems: the user sees all errors together.
        if let Some(spec) = spec {
            match bind(change(spec), file, self.directory(), self.registry()) {
                Ok(plan) if problems.is_empty() => return Ok(Pipeline { plan: Arc::new(plan), sources }),
                Ok(_) => {}
                Err(more) => problems.extend(more),
            }
        }
        for problem in &mut problems {
            sources.narrow(problem);
        }
        // What a missing file lacks is not reported, so other errors are independent of it; it comes first all the same.
        problems.sort_by_key(|problem| {
            (problem.code != FILE_NOT_FOUND, problem.span().map(|span| (span.file, span.start)))
        });
        // Of the same finding in several rounds of a loop, one is told.
        problems.dedup_by(|one, other| {
            let spans = one.labels.iter().map(|label| label.span);
            let same = one.code == other.code && one.help == other.help;
            // The spans, too: the same words about another line are another finding.
            same && spans.eq(other.labels.iter().map(|label| label.span))
                && without_rounds(&one.message) == without_rounds(&other.message)
        });
        Err(Failure::Pipeline(problems, Box::new(sources)))
    }

    /// Rejects a pipeline that writes into the store. Needs no store; [`Session::run`] makes the same check.
    ///
    /// # Errors
    /// Fails with every node that would write there.
    pub fn check_destinations(&self, pipeline: &Pipeline) -> Result<(), Failure> {
        let roots = self.place.roots().into_iter();
        pipeline.refuse(roots.flat_map(|root| check_store(&pipeline.plan, root, self.directory())).collect())
    }

    /// Reads a YAML file with the settings of a command, by their JSON Schema. Relative paths start at the session's
    /// directory.
    ///
    /// # Errors
    /// Fails with all errors of the file.
    pub fn settings(&self, file: &Path, schema: &Value, command: &str) -> Result<Settings, Failure> {
        let mut sources = SourceMap::new();
        match settings(&self.directory().join(file), schema, command, &mut sources) {
            Ok((text, values)) => Ok(Settings { values, text, sources }),
            Err(problems) => Err(Failure::Pipeline(problems, Box::new(sources))),
        }
    }
}
