//! Applies the options of a run to a plan.

use std::collections::BTreeSet;

use super::failure::Failure;
use super::open::Session;
use crate::endpoint::BudgetLimits;
use crate::execute::{Chosen, Request, RunOptions, failed_rows, survey};
use crate::node_id::NodeId;
use crate::operator::Source;
use crate::plan::{OfLoop, Plan, Selection, asked_for, asked_of_loops, named_by, select};
use crate::spec::{RowLimit, meant_output};

impl Session {
    pub(super) fn chosen(&self, plan: &Plan, options: &RunOptions) -> Result<Chosen, Failure> {
        limited_sources(plan, &options.limit)?;
        let selected = if options.retry_rejects {
            // The nodes whose last result lacks failed rows, and their dependents.
            let failed = failed_rows(plan, self.look()?, Request::new(self.directory(), &options.limit))?;
            let from: Vec<String> = failed.into_iter().map(|index| plan[index].id().to_string()).collect();
            if from.is_empty() {
                let help = "`searchmill run FILE` runs whatever is not up to date";
                return Err(Failure::usage("no node of the pipeline has rows that failed").with_help(help));
            }
            select(plan, &Selection { from, ..Selection::default() })
        } else {
            select(plan, &options.selection)
        };
        let selected = selected.map_err(|id| unknown_node(plan, &id))?;
        let (mut force, mut named) = (BTreeSet::new(), Vec::new());
        for id in &options.force {
            // `*` is no name of a node: it stands for all of them.
            if id == "*" {
                force.insert(NodeId::from(id.as_str()));
            } else {
                named.push(id.clone());
            }
        }
        for index in named_by(plan, &named).map_err(|id| unknown_node(plan, &id))? {
            force.insert(plan[index].id().clone());
        }
        if options.refresh_sources {
            for node in &plan.nodes {
                if node.sources.iter().any(Source::is_remote) {
                    force.insert(node.id().to_owned());
                }
            }
        }
        let mut asked = asked_for(plan, &options.selection, &selected);
        let mut of_loops = asked_of_loops(plan, &options.selection);
        // The plan alone may not say which round a loop hands on: decisions in the store do.
        if of_loops.iter().any(|output| output.node.is_none()) {
            let behind = of_loops.iter().flat_map(OfLoop::behind).collect();
            let request = Request { selected: Some(&behind), ..Request::new(self.directory(), &options.limit) };
            let mut decided = survey(plan, self.look()?, request)?.of_loops;
            decided.retain(|output| of_loops.iter().any(|asked| asked.name == output.name));
            of_loops = decided;
        }
        asked.extend(of_loops.iter().filter_map(|output| output.node));
        Ok(Chosen { selected, asked, force })
    }
}

/// Returns the error for an unknown node.
pub(super) fn unknown_node(plan: &Plan, id: &str) -> Failure {
    Failure::usage(format!("there is no node `{id}`")).with_help(meant(plan, id))
}

/// Suggests a node, or what a loop hands on, for an unknown name.
pub(super) fn meant(plan: &Plan, id: &str) -> String {
    let nodes: Vec<&str> = plan.nodes.iter().map(|node| node.id().as_str()).collect();
    meant_output(id, &nodes, plan.handed_on_by_name().keys().map(String::as_str))
}

/// Returns the budget of a run of the plan.
pub(super) fn budget(plan: &Plan, options: &RunOptions) -> Result<BudgetLimits, Failure> {
    let budget = plan.budget.overlaid(options.budget);
    let costs = std::iter::once(budget).chain(plan.periods.all()).any(|limits| limits.cost.is_some());
    if costs && plan.currency().is_none() {
        let help = "give the endpoint `prices: {prompt: …, completion: …}`, or set the budget in calls or tokens";
        let failure = Failure::usage("a budget of cost needs prices, and no endpoint of the pipeline has any");
        return Err(failure.with_help(help));
    }
    Ok(budget)
}

/// Fails if the limit names what is no source of the plan.
fn limited_sources(plan: &Plan, limit: &RowLimit) -> Result<(), Failure> {
    for name in limit.nodes.keys() {
        let (mut is_known, mut reads_inputs, mut sources) = (false, false, Vec::new());
        for node in &plan.nodes {
            if node.inputs.is_empty() {
                sources.push(node.id().as_str());
            }
            // The name alone stands for all nodes of a matrix.
            if node.id() == name.as_str() || node.id().name() == name {
                is_known = true;
                reads_inputs |= !node.inputs.is_empty();
            }
        }
        if !is_known {
            return Err(unknown_node(plan, name));
        }
        if reads_inputs {
            sources.dedup();
            let failure = Failure::usage(format!("`{name}` is no source: --limit shortens what is read"));
            return Err(failure.with_help(format!("the sources are {}", sources.join(", "))));
        }
    }
    Ok(())
}
