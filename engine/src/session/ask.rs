//! Predicts a run: which nodes would run, and why.

use std::collections::BTreeSet;

use serde_json::Value;

use super::failure::Failure;
use super::open::Session;
use super::options::{budget, unknown_node};
use super::pipeline::Pipeline;
use crate::execute::{NodeStatus, Request, RunOptions, Survey, diff_known, preimage_of, survey};
use crate::fingerprint::Reason;
use crate::lineage::run_of;
use crate::plan::{Node, with_all_before};
use crate::spec::meant_node;
use crate::store::{RunRecord, Store};

/// The status of a node, and why it would run.
#[derive(Clone, Debug)]
pub struct Why {
    /// What a run would do with the node.
    pub status: NodeStatus,
    /// Changes since the node's last run, or since the run it is compared with.
    pub reasons: Vec<Reason>,
}

impl Session {
    /// Returns the newest run of this store, imported ones excluded.
    ///
    /// # Errors
    /// Fails if there is no store.
    pub fn last_run(&self) -> Result<Option<RunRecord>, Failure> {
        let store = self.existing()?;
        Ok(store.newest_runs().iter().find_map(|id| store.run(id)))
    }

    /// Looks up every node that a run with these options would consider, and computes nothing.
    ///
    /// # Errors
    /// Fails if the options name an unknown node, or if the store cannot be read.
    pub fn survey(&self, pipeline: &Pipeline, options: &RunOptions) -> Result<Survey, Failure> {
        let chosen = self.chosen(&pipeline.plan, options)?;
        Ok(survey(&pipeline.plan, self.look()?, chosen.request(self.directory(), options))?)
    }

    /// Like [`Session::survey`], with the checks that [`Session::run`] makes before it opens the store.
    ///
    /// # Errors
    /// Fails as [`Session::survey`] does, and if the destinations or the budget are invalid.
    pub fn rehearse(&self, pipeline: &Pipeline, options: &RunOptions) -> Result<Survey, Failure> {
        self.check_destinations(pipeline)?;
        budget(&pipeline.plan, options)?;
        self.survey(pipeline, options)
    }

    /// Returns why a node would run with at most `limit` rows of each source, compared with the run `against` or with
    /// the node's last run.
    ///
    /// # Errors
    /// Fails if the node or run does not exist, or if the store cannot be read.
    pub fn why(
        &self,
        pipeline: &Pipeline,
        node: &str,
        against: Option<&str>,
        limit: Option<u64>,
    ) -> Result<Why, Failure> {
        let (plan, store) = (&pipeline.plan, self.look()?);
        let elsewhere = || {
            let nodes: Vec<&str> = plan.nodes.iter().map(Node::id).collect();
            let help = format!("{}; `--file FILE` names another pipeline", meant_node(node, &nodes));
            Failure::usage(format!("there is no node `{node}` in `{}`", plan.name)).with_help(help)
        };
        let (place, found) = plan.node(node).ok_or_else(elsewhere)?;
        let before = against.map(|run| before(store, run, found.id())).transpose()?;
        // Only the node and its dependencies are looked up.
        let selected = with_all_before(plan, &BTreeSet::from([place]));
        let request = Request { selected: Some(&selected), ..Request::new(self.directory()).limited(limit) };
        let mut survey = survey(plan, store, request)?;
        let status = survey.nodes.remove(&place).ok_or_else(|| unknown_node(plan, node))?;
        let reasons = match (&status, &before, status.preimage()) {
            (_, Some(before), Some(now)) => diff_known(before, now),
            (NodeStatus::Run { reasons, .. } | NodeStatus::Unknown { reasons, .. }, None, _) => reasons.clone(),
            _ => Vec::new(),
        };
        Ok(Why { status, reasons })
    }
}

/// Returns the preimage of a node's key in an earlier run, whatever its outcome.
fn before(store: &Store, run: &str, node: &str) -> Result<Value, Failure> {
    let run = run_of(store, run)?;
    let nodes = store.run_nodes(&run);
    let before = nodes.iter().rfind(|before| before.node == node);
    let before = before.ok_or_else(|| Failure::usage(format!("run {run} has no node `{node}`")))?;
    preimage_of(store, before).ok_or_else(|| {
        let message = format!("run {run} does not say what the key of `{node}` was made of");
        Failure::usage(message).with_help("the run ended before the node began, or its records are damaged")
    })
}
