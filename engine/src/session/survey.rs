//! Predicts a run: which nodes would run, and why.

use serde_json::Value;

use super::failure::Failure;
use super::open::Session;
use super::options::{budget, meant, unknown_node};
use super::pipeline::Pipeline;
use crate::execute::{NodeStatus, Request, RunOptions, Survey, diff_known, survey};
use crate::fingerprint::Reason;
use crate::lineage::{no_node, run_of};
use crate::node_id::NodeId;
use crate::plan::{OfLoop, Plan, with_all_before};
use crate::spec::{RowLimit, several_loops};
use crate::store::Store;

/// The status of a node, and why it would run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Why {
    /// The node that was asked about. For an output of a loop (`rl.policy`): the node in the round whose result the loop
    /// hands on, or in the last round if that is not known yet.
    pub node: NodeId,
    /// What a run would do with the node.
    pub status: NodeStatus,
    /// Changes since the node's last run, or since the run it is compared with.
    pub reasons: Vec<Reason>,
}

/// What [`Session::why`] compares. By default, the pipeline as it is with the node's last run.
#[derive(Clone, Debug, Default)]
pub struct WhyOptions {
    /// The run to compare with (the node's last one).
    pub against: Option<String>,
    /// Rows of sources (all).
    pub limit: RowLimit,
}

impl Session {
    /// Looks up every node that a run with these options would consider, and computes nothing.
    ///
    /// ```
    /// # use searchmill_engine::{Failure, Overrides, RunOptions, Session};
    /// # fn example(session: &Session) -> Result<(), Failure> {
    /// let pipeline = session.check("pipeline.yaml", &Overrides::default())?;
    /// let survey = session.survey(&pipeline, &RunOptions::default())?;
    /// for (index, status) in &survey.nodes {
    ///     if status.would_run() {
    ///         let reasons: Vec<String> = status.reasons().iter().map(ToString::to_string).collect();
    ///         println!("{}: {}", pipeline.plan[*index].id(), reasons.join("; "));
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the options name an unknown node, or if the store cannot be read.
    pub fn survey(&self, pipeline: &Pipeline, options: &RunOptions) -> Result<Survey, Failure> {
        let chosen = self.chosen(&pipeline.plan, options)?;
        Ok(survey(&pipeline.plan, self.look()?, chosen.request(self.directory(), options))?)
    }

    /// Like [`Session::survey`], with estimates of the calls that nodes would make.
    ///
    /// # Errors
    /// Fails as [`Session::survey`] does.
    pub fn estimate(&self, pipeline: &Pipeline, options: &RunOptions) -> Result<Survey, Failure> {
        let chosen = self.chosen(&pipeline.plan, options)?;
        let request = Request { estimates: true, ..chosen.request(self.directory(), options) };
        Ok(survey(&pipeline.plan, self.look()?, request)?)
    }

    /// Like [`Session::estimate`], with the checks that [`Session::run`] makes before it opens the store.
    ///
    /// # Errors
    /// Fails as [`Session::survey`] does, and if the destinations or the budget are invalid.
    pub fn rehearse(&self, pipeline: &Pipeline, options: &RunOptions) -> Result<Survey, Failure> {
        self.check_destinations(pipeline)?;
        budget(&pipeline.plan, options)?;
        self.estimate(pipeline, options)
    }

    /// Returns why a node would run.
    ///
    /// ```
    /// # use searchmill_engine::{Failure, Pipeline, Session, WhyOptions};
    /// # fn example(session: &Session, pipeline: &Pipeline) -> Result<(), Failure> {
    /// let why = session.why(pipeline, "chunks", &WhyOptions::default())?;
    /// for reason in &why.reasons {
    ///     println!("{}: {reason}", why.node);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the node or run does not exist, or if the store cannot be read.
    pub fn why(&self, pipeline: &Pipeline, node: &str, options: &WhyOptions) -> Result<Why, Failure> {
        let (plan, store) = (&pipeline.plan, self.look()?);
        let (behind, of_loop) = if let Some((index, _)) = plan.node(node) {
            (vec![index], None)
        } else {
            let output = one_of_loops(plan, node)?;
            (output.behind(), Some(output))
        };
        // Only the node and its dependencies are looked up.
        let selected = with_all_before(plan, &behind.iter().copied().collect());
        let request = Request { selected: Some(&selected), ..Request::new(self.directory(), &options.limit) };
        let mut survey = survey(plan, store, request)?;
        // The survey knows the decisions, and so which round is handed on.
        let chosen = of_loop.as_ref().and_then(|asked| {
            survey.of_loops.iter().find(|output| output.name == asked.name).and_then(|output| output.node)
        });
        let Some(index) = chosen.or(behind.first().copied()) else { return Err(unknown_node(plan, node)) };
        let Some(found) = plan.get(index) else { return Err(unknown_node(plan, node)) };
        let before = options.against.as_ref().map(|run| before(store, run, found.id())).transpose()?;
        let Some(mut status) = survey.nodes.remove(&index) else { return Err(unknown_node(plan, node)) };
        if of_loop.is_some() && chosen.is_none() {
            // Which round it is of depends on the decisions, whatever is known of the last one.
            let waits_for = behind.iter().skip(1).map(|index| plan[*index].id().to_string()).collect();
            status = NodeStatus::Unknown { waits_for, preimage: Value::Null, reasons: Vec::new() };
        }
        let reasons = match (&before, status.preimage()) {
            (Some(before), Some(now)) => diff_known(before, now),
            (None, _) => status.reasons().to_vec(),
            (Some(_), None) => Vec::new(),
        };
        Ok(Why { node: found.id().to_owned(), status, reasons })
    }
}

/// Returns the output of a loop of that name.
fn one_of_loops(plan: &Plan, name: &str) -> Result<OfLoop, Failure> {
    let mut found = plan.of_loops(name);
    if found.len() > 1 {
        let names: Vec<&str> = found.iter().map(|output| output.name.as_str()).collect();
        let (message, help) = several_loops(name, &names);
        return Err(Failure::usage(message).with_help(help));
    }
    let Some(output) = found.pop() else {
        let help = format!("{}; `--file FILE` names another pipeline", meant(plan, name));
        return Err(Failure::usage(format!("there is no node `{name}` in `{}`", plan.name)).with_help(help));
    };
    Ok(output)
}

/// Returns the preimage of a node's key in an earlier run, whatever its outcome.
fn before(store: &Store, run: &str, node: &str) -> Result<Value, Failure> {
    let run = run_of(store, run)?;
    let nodes = store.run_nodes(&run);
    // The last record: a node that ran again has several.
    let Some(before) = nodes.iter().rfind(|before| before.node == node) else {
        return Err(no_node(store, &run, node).into());
    };
    let Some(preimage) = store.preimage_of(before) else {
        let failure = Failure::usage(format!("run {run} does not say what the key of `{node}` was made of"));
        return Err(failure.with_help("the run ended before the node began, or its records are damaged"));
    };
    Ok(preimage)
}
