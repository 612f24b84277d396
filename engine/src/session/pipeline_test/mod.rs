//! Runs a test of a pipeline: given rows in, a scripted model in place of endpoints, expected rows out.

mod compare;
mod rows;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub use compare::Mismatch;
use searchmill_schemas::Reject;

use super::failure::Failure;
use super::open::Session;
use super::pipeline::Pipeline;
use super::run::runtime;
use crate::diagnostic::SourceMap;
use crate::events::{Event, Reporter, RunSummary};
use crate::execute::{Chosen, Machine, RunOptions, Settings, Stop, run};
use crate::node_id::NodeId;
use crate::operator::{InputArtifact, Source};
use crate::plan::{NodeIndex, Plan};
use crate::spec::{Overrides, TestCase};
use crate::store::Store;

/// A test, and the pipeline with the test's params.
#[derive(Debug)]
pub struct PipelineTest {
    pipeline: Pipeline,
    case: TestCase,
}

impl PipelineTest {
    /// Returns the test. Params may change its rows and its script.
    pub fn case(&self) -> &TestCase {
        &self.case
    }
}

/// The outcome of a test.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Nodes that failed: node and error.
    pub failures: Vec<(NodeId, String)>,
    /// Nodes with rejected rows: node, and their number with the first reason.
    pub rejects: Vec<(NodeId, String)>,
    /// Differences between expected and found rows.
    pub mismatches: Vec<Mismatch>,
}

impl Session {
    /// Checks a pipeline with the params of one of its tests, which override those of `overrides`; `read` is where the test
    /// was read from.
    ///
    /// # Errors
    /// Fails with all errors of the pipeline.
    pub fn check_test(
        &self,
        file: impl AsRef<Path>,
        overrides: &Overrides,
        test: &TestCase,
        read: &SourceMap,
    ) -> Result<PipelineTest, Failure> {
        let pipeline = self.check_for_test(file.as_ref(), overrides, test, read)?;
        let case = pipeline.plan.tests.first().unwrap_or(test).clone();
        Ok(PipelineTest { pipeline, case })
    }

    /// Runs one test in a temporary store: it knows no earlier results, and the store of the session never contains
    /// scripted answers. All calls go to `endpoint`, which plays the script of the test. Only the nodes that the test
    /// expects and those before them run; nothing is delivered, and no check is evaluated. Not for code that already
    /// runs on tokio.
    ///
    /// # Errors
    /// Fails if the test does not fit the pipeline, or if the temporary store cannot be written.
    pub fn try_out(&self, test: PipelineTest, endpoint: &str) -> Result<Verdict, Failure> {
        let PipelineTest { pipeline, case: test } = test;
        let folder = tempfile::tempdir()?;
        let store = Store::open(&folder.path().join("store"))?;
        // The plan is changed: its endpoints become that of the script.
        let Ok(mut plan) = Arc::try_unwrap(pipeline.plan) else {
            return Err(Failure::Other("a pipeline that is used elsewhere cannot be tested".to_owned()));
        };
        let given = rows::outputs(&plan, &test.given, &store)?;
        let mut expected = BTreeSet::new();
        for rows in &test.expect {
            expected.extend(plan.output_named(&rows.rows.output).map(|(index, _)| index));
        }
        let selected = redirected(&mut plan, expected, &given, endpoint)?;
        // One node at a time, so that the script's answers are asked for in one order; and every node that can run, so
        // that all differences are found.
        let settings = Settings {
            asked: RunOptions { jobs: Some(1), keep_going: true, ..RunOptions::default() },
            chosen: Chosen { asked: selected.clone(), selected, force: BTreeSet::new() },
            directory: self.directory().to_owned(),
            machine: Machine::detect(),
            // The script asks for no key, but a node does not start without its secrets.
            secrets: Arc::new(|_| Some("a secret of a test".to_owned())),
            fits: None,
            trial: Some(given),
        };
        let plan = Arc::new(plan);
        let failures = Arc::new(Failures::default());
        let reporter: Arc<dyn Reporter> = Arc::clone(&failures) as Arc<dyn Reporter>;
        let ran = runtime()?.block_on(run(Arc::clone(&plan), store.clone(), settings, reporter, Stop::default()))?;
        let failures = failures.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mismatches = mismatches(&plan, &store, &ran, &test)?;
        let rejects = rejects(&store, &ran)?;
        Ok(Verdict { failures, rejects, mismatches })
    }
}

/// Collects the errors of nodes.
#[derive(Default)]
struct Failures(Mutex<Vec<(NodeId, String)>>);

impl Reporter for Failures {
    fn event(&self, event: &Event) {
        if let Event::NodeFailed { node, message, help, .. } = event {
            let message = match help {
                Some(help) => format!("{message} ({help})"),
                None => message.clone(),
            };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push((node.clone(), message));
        }
    }
}

/// Redirects the wanted nodes and those before them, and returns them. What only replaced services read does not run.
fn redirected(
    plan: &mut Plan,
    mut wanted: BTreeSet<NodeIndex>,
    given: &rows::Given,
    endpoint: &str,
) -> Result<BTreeSet<NodeIndex>, Failure> {
    let mut selected = BTreeSet::new();
    while let Some(index) = wanted.pop_last() {
        if !given.contains_key(&index) {
            plan.redirect(index, endpoint)?;
            fits(plan, index, given)?;
            selected.insert(index);
            // Nodes are in topological order: these are all before it.
            wanted.extend(plan.dependencies(index));
        }
    }
    Ok(selected)
}

/// Rejects a node that would write or read outside this machine, or reads a folder of a node with given rows.
fn fits(plan: &Plan, index: NodeIndex, given: &rows::Given) -> Result<(), Failure> {
    let node = &plan[index];
    let id = node.id();
    if !node.operator.declaration.destinations().is_empty() {
        let failure = Failure::usage(format!("`{id}` writes outside the store, which no test does"));
        return Err(failure.with_help("expect the rows of the node before it"));
    }
    if node.sources.iter().any(Source::is_remote) {
        let failure = Failure::usage(format!("`{id}` reads from the network, which no test does"));
        return Err(failure.with_help(format!("give its rows: `given: {{{id}: […]}}`")));
    }
    for input in &node.inputs {
        if given.get(&input.node).is_some_and(|outputs| !outputs.contains_key(&input.output)) {
            let from = plan[input.node].id();
            let failure = Failure::usage(format!("`{id}` reads the folder `{from}.{}`", input.output));
            return Err(failure.with_help(format!("a test gives rows: give them to the node before `{from}`")));
        }
    }
    Ok(())
}

/// Returns the rejected rows of the nodes that ran: their number, and the first one with its reason.
fn rejects(store: &Store, ran: &RunSummary) -> Result<Vec<(NodeId, String)>, Failure> {
    let mut found = Vec::new();
    for node in store.run_nodes(&ran.run) {
        let Some(output) = node.outputs.get("rejects").filter(|output| output.rows > 0) else { continue };
        let InputArtifact::Rows(rows) = store.open_input(&output.id)? else { continue };
        if let Some(first) = rows.read_all::<Reject>()?.first() {
            let count = if output.rows == 1 { "1 row".to_owned() } else { format!("{} rows", output.rows) };
            let message = format!("rejected {count}, the first: `{}`: {}: {}", first.id, first.kind, first.message);
            found.push((node.node, message));
        }
    }
    Ok(found)
}

fn mismatches(plan: &Plan, store: &Store, ran: &RunSummary, test: &TestCase) -> Result<Vec<Mismatch>, Failure> {
    let nodes = store.run_nodes(&ran.run);
    let mut found = Vec::new();
    for expected in &test.expect {
        let Some((index, port)) = plan.output_named(&expected.rows.output) else { continue };
        let id = plan[index].id();
        let output = nodes.iter().rfind(|node| node.node == *id).and_then(|node| node.outputs.get(port));
        let Some(output) = output else {
            found.push(Mismatch::NoRows { output: expected.rows.output.clone() });
            continue;
        };
        if let InputArtifact::Rows(rows) = store.open_input(&output.id)? {
            found.extend(compare::compare(expected, &rows)?);
        }
    }
    Ok(found)
}
