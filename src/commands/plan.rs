//! `plan`: what a run would do, why, and what it would cost.

use std::collections::BTreeMap;

use searchmill_engine::execute::{Basis, NodeStatus, Survey, Work, survey};
use searchmill_engine::operator::{Prices, Usage};
use searchmill_engine::plan::Plan;
use serde_json::{Value, json};

use super::Session;
use crate::args::PlanArgs;
use crate::display::money;
use crate::exit::{Failure, OK, WORK};
use crate::{pipeline, secrets};

pub(super) fn plan(session: &Session<'_>, args: &PlanArgs) -> Result<u8, Failure> {
    let plan = pipeline::plan(&args.pipeline.file, &args.pipeline.set, &args.pipeline.params, &session.directory)?;
    let work = show(session, &plan, args.limit)?;
    Ok(if work && args.detailed_exitcode { WORK } else { OK })
}

/// Prints the plan; is there work to do?
pub(super) fn show(session: &Session<'_>, plan: &Plan, limit: Option<u64>) -> Result<bool, Failure> {
    let store = session.store_if_any()?;
    let survey = survey(plan, &store, &session.directory, limit);
    let cached = survey.nodes.iter().filter(|status| status.is_known()).count();
    if session.terminal.is_json() {
        for (place, status) in survey.nodes.iter().enumerate() {
            session.terminal.line(&as_json(plan, place, status, &survey.work).to_string());
        }
        return Ok(cached < survey.nodes.len());
    }
    let mut rows = Vec::new();
    for (node, status) in plan.nodes().iter().zip(&survey.nodes) {
        let (word, detail) = words(status);
        rows.push(vec![node.id().to_owned(), node.entry.name.to_owned(), word.to_owned(), detail]);
    }
    session.terminal.table(&["node", "operator", "status", "why"], &rows);
    let to_run = rows.len() - cached;
    session.terminal.line(&format!("{} nodes: {cached} cached, {to_run} to run or to decide", rows.len()));
    show_work(session, plan, &survey);
    for (node, status) in plan.nodes().iter().zip(&survey.nodes) {
        let unset = secrets::unset(node);
        if !status.is_known() && !unset.is_empty() {
            session.terminal.warn(&secrets::unset_words(node, &unset));
        }
    }
    Ok(to_run > 0)
}

/// What the nodes that ask an endpoint will ask, and what that will cost.
fn show_work(session: &Session<'_>, plan: &Plan, survey: &Survey) {
    if survey.work.is_empty() {
        return;
    }
    let header = ["asks an endpoint", "rows known", "to compute", "calls", "tokens", "cost", "going by"];
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (place, work) in &survey.work {
        let node = plan.nodes().get(*place).map(|node| node.id().to_owned()).unwrap_or_default();
        rows.push(std::iter::once(node).chain(work_words(work)).collect());
    }
    session.terminal.line("");
    session.terminal.table(&header, &rows);
    if survey.work.len() > 1 {
        session.terminal.line(&total(&survey.work));
    }
}

fn work_words(work: &Work) -> [String; 6] {
    let unknown = || "unknown".to_owned();
    let (known, missing) = work
        .rows
        .map_or_else(|| (unknown(), unknown()), |(known, missing)| (money::count(known), money::count(missing)));
    let about = |number: fn(&Usage) -> u64| {
        work.estimate.as_ref().map_or_else(unknown, |usage| format!("~{}", money::count(number(usage))))
    };
    let cost = match (&work.estimate, &work.prices) {
        (Some(usage), Some(prices)) => format!("~{}", money::cost(usage.cost(), &prices.currency)),
        (_, None) => "no prices".to_owned(),
        (None, Some(_)) => unknown(),
    };
    [known, missing, about(|usage| usage.calls), about(Usage::tokens), cost, basis(work).to_owned()]
}

fn basis(work: &Work) -> &'static str {
    match work.basis {
        Some(Basis::Node) => "its own rows",
        Some(Basis::Model) => "rows of the same model",
        None => "nothing yet",
    }
}

/// `in all ~340 calls, ~1.2 M tokens, ~0.41 USD`, and whether that is all.
fn total(work: &BTreeMap<usize, Work>) -> String {
    let mut sum = Usage::default();
    work.values().filter_map(|work| work.estimate).for_each(|usage| sum += usage);
    let currency = work.values().find_map(|work| work.prices.as_ref().map(|prices: &Prices| prices.currency.clone()));
    let cost = currency.map_or_else(String::new, |currency| format!(", ~{}", money::cost(sum.cost(), &currency)));
    let rest = if work.values().any(|work| work.estimate.is_none()) { ", and what is unknown" } else { "" };
    format!("in all ~{} calls, ~{} tokens{cost}{rest}", money::count(sum.calls), money::count(sum.tokens()))
}

fn as_json(plan: &Plan, place: usize, status: &NodeStatus, work: &BTreeMap<usize, Work>) -> Value {
    let (word, detail) = words(status);
    let (id, operator) = plan.nodes().get(place).map_or(("", ""), |node| (node.spec.id.as_str(), node.entry.name));
    let mut told = json!({"node": id, "operator": operator, "status": word, "detail": detail});
    let unset = plan.nodes().get(place).map(secrets::unset).unwrap_or_default();
    if !unset.is_empty() {
        told["secrets_not_set"] = json!(unset);
    }
    if let Some(work) = work.get(&place) {
        told["rows"] = json!(work.rows.map(|(known, missing)| json!({"known": known, "to_compute": missing})));
        told["estimate"] = json!(work.estimate.map(|usage| {
            json!({
                "calls": usage.calls, "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
                "cost": work.prices.as_ref().map(|_| usage.cost()),
                "currency": work.prices.as_ref().map(|prices| &prices.currency),
                "basis": basis(work),
            })
        }));
    }
    told
}

pub(super) fn words(status: &NodeStatus) -> (&'static str, String) {
    match status {
        NodeStatus::Cached { .. } => ("cached", String::new()),
        NodeStatus::Frozen => ("cached", "frozen".to_owned()),
        NodeStatus::Run { reasons, .. } => {
            ("run", reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        }
        NodeStatus::Unknown { waits_for } => ("decided later", format!("waits for {}", waits_for.join(", "))),
        NodeStatus::Broken { problem } => ("broken", problem.clone()),
    }
}
