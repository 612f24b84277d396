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
    /// The node: of an output of a loop (`rl.policy`), that of the round that the loop hands on, or else of the last one.
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
    ///     println!("{}: {}", pipeline.plan[*index].id(), if status.is_known() { "cached" } else { "would run" });
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
        let request = chosen.request(self.directory(), options).with_estimates();
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
        let (behind, of_loop) = match plan.node(node) {
            Some((index, _)) => (vec![index], None),
            None => one_of_loops(plan, node).map(|output| (output.behind(), Some(output)))?,
        };
        // Only the node and its dependencies are looked up.
        let selected = with_all_before(plan, &behind.iter().copied().collect());
        let request = Request { selected: Some(&selected), ..Request::new(self.directory()).limited(&options.limit) };
        let mut survey = survey(plan, store, request)?;
        let is_it = |found: &&OfLoop| of_loop.as_ref().is_some_and(|output| output.name == found.name);
        let chosen = survey.of_loops.iter().find(is_it).and_then(|output| output.node);
        let index = chosen.or(behind.first().copied()).ok_or_else(|| unknown_node(plan, node))?;
        let found = plan.get(index).ok_or_else(|| unknown_node(plan, node))?.id().to_owned();
        let before = match &options.against {
            Some(run) => Some(before(store, run, &found)?),
            None => None,
        };
        let mut status = survey.nodes.remove(&index).ok_or_else(|| unknown_node(plan, node))?;
        if of_loop.is_some() && chosen.is_none() {
            // Which round it is of depends on the decisions, whatever is known of the last one.
            let waits_for = behind.iter().skip(1).map(|index| plan[*index].id().to_string()).collect();
            status = NodeStatus::Unknown { waits_for, preimage: Value::Null, reasons: Vec::new() };
        }
        let reasons = match (&status, &before, status.preimage()) {
            (_, Some(before), Some(now)) => diff_known(before, now),
            (NodeStatus::Run { reasons, .. } | NodeStatus::Unknown { reasons, .. }, None, _) => reasons.clone(),
            _ => Vec::new(),
        };
        Ok(Why { node: found, status, reasons })
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
    found.pop().ok_or_else(|| {
        let help = format!("{}; `--file FILE` names another pipeline", meant(plan, name));
        Failure::usage(format!("there is no node `{name}` in `{}`", plan.name)).with_help(help)
    })
}

/// Returns the preimage of a node's key in an earlier run, whatever its outcome.
fn before(store: &Store, run: &str, node: &str) -> Result<Value, Failure> {
    let run = run_of(store, run)?;
    let nodes = store.run_nodes(&run);
    let before = nodes.iter().rfind(|before| before.node == node);
    let before = before.ok_or_else(|| no_node(store, &run, node))?;
    store.preimage_of(before).ok_or_else(|| {
        let message = format!("run {run} does not say what the key of `{node}` was made of");
        Failure::usage(message).with_help("the run ended before the node began, or its records are damaged")
    })
}
