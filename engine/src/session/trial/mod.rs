//! Runs a test of a pipeline: given rows in, a scripted model in place of endpoints, expected rows out.

mod compare;
mod given;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

pub use compare::Mismatch;

use super::failure::Failure;
use super::open::Session;
use super::pipeline::Pipeline;
use super::run::runtime;
use crate::execute::{Chosen, Machine, RunOptions, Settings, Stop, Trial, run};
use crate::operator::{InputArtifact, Source};
use crate::plan::{Plan, with_all_before_but};
use crate::report::{Event, Reporter, RunSummary};
use crate::spec::{Expected, TestCase};
use crate::store::Store;

/// The outcome of a test.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Nodes that failed: node and error.
    pub failures: Vec<(String, String)>,
    /// Differences between expected and found rows.
    pub mismatches: Vec<Mismatch>,
}

impl Session {
    /// Runs one test in the store of this session, which should be empty: a test knows no earlier results. All calls go
    /// to `endpoint`, which plays the script of the test. Only the nodes that the test expects and those before them
    /// run; nothing is delivered, and no check is evaluated. Not for code that already runs on tokio.
    ///
    /// # Errors
    /// Fails if the test does not fit the pipeline, or if the store cannot be used.
    pub fn try_out(&self, pipeline: Pipeline, test: &TestCase, endpoint: &str) -> Result<Verdict, Failure> {
        let store = self.store()?.clone();
        let mut plan = Arc::try_unwrap(pipeline.plan)
            .map_err(|_| Failure::Other("a pipeline that is used elsewhere cannot be tested".to_owned()))?;
        let given = given::outputs(&plan, &test.given, &store)?;
        let named = |expected: &Expected| plan.output_named(&expected.rows.output).map(|(place, _)| place);
        let expected: BTreeSet<usize> = test.expect.iter().filter_map(named).collect();
        let mut selected = with_all_before_but(&plan, &expected, |place| given.contains_key(&place));
        selected.retain(|place| !given.contains_key(place));
        for place in &selected {
            fits(&plan, *place, &given)?;
            plan.redirect(*place, endpoint)?;
        }
        let settings = Settings {
            asked: RunOptions { jobs: Some(1), keep_going: true, ..RunOptions::default() },
            chosen: Chosen { selected, force: BTreeSet::new() },
            directory: self.directory().to_owned(),
            machine: Machine::detect(),
            secrets: Arc::new(|_| Some("a secret of a test".to_owned())),
            trial: Some(Trial { given }),
        };
        let plan = Arc::new(plan);
        let failures = Arc::new(Failures::default());
        let reporter: Arc<dyn Reporter> = Arc::clone(&failures) as Arc<dyn Reporter>;
        let ran = runtime()?.block_on(run(Arc::clone(&plan), store.clone(), settings, reporter, Stop::default()))?;
        let failures = failures.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mismatches = mismatches(&plan, &store, &ran, test)?;
        Ok(Verdict { failures, mismatches })
    }
}

/// Collects the errors of nodes.
#[derive(Default)]
struct Failures(Mutex<Vec<(String, String)>>);

impl Reporter for Failures {
    fn event(&self, event: &Event) {
        if let Event::NodeFailed { node, message, help, .. } = event {
            let help = help.as_ref().map_or_else(String::new, |help| format!(" ({help})"));
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push((node.clone(), format!("{message}{help}")));
        }
    }
}

/// Rejects a node that would write or read outside this machine, or reads a folder of a node with given rows.
fn fits(plan: &Plan, place: usize, given: &given::Given) -> Result<(), Failure> {
    let node = &plan.nodes[place];
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
            let from = plan.nodes[input.node].id();
            let failure = Failure::usage(format!("`{id}` reads the folder `{from}.{}`", input.output));
            return Err(failure.with_help(format!("a test gives rows: give them to the node before `{from}`")));
        }
    }
    Ok(())
}

fn mismatches(plan: &Plan, store: &Store, ran: &RunSummary, test: &TestCase) -> Result<Vec<Mismatch>, Failure> {
    let nodes = store.run_nodes(&ran.run);
    let mut found = Vec::new();
    for expected in &test.expect {
        let Some((place, port)) = plan.output_named(&expected.rows.output) else { continue };
        let id = plan.nodes[place].id();
        let output = nodes.iter().rfind(|node| node.node == id).and_then(|node| node.outputs.get(port));
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
