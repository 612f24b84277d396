//! `plan`: what a run would do, why, and what it would cost.

use std::collections::BTreeMap;

use searchmill_engine::execute::{Basis, NodeStatus, Request, Survey, Work, survey};
use searchmill_engine::fingerprint::Reason;
use searchmill_engine::operator::{Prices, Usage};
use searchmill_engine::plan::{Node, Plan};
use serde_json::{Value, json};

use super::Session;
use super::selection::selected;
use crate::args::PlanArgs;
use crate::display::money;
use crate::exit::{Failure, OK, WORK};
use crate::{pipeline, secrets};

pub(super) fn plan(session: &Session<'_>, args: &PlanArgs) -> Result<u8, Failure> {
    let plan = pipeline::plan(&args.pipeline.file, &args.pipeline.set, &args.pipeline.params, &session.directory)?;
    let selected = selected(&plan, &args.chosen)?;
    let request = Request::new(&session.directory).limited(args.limit);
    let work = show(session, &plan, Request { selected: Some(&selected), ..request })?;
    Ok(if work && args.detailed_exitcode { WORK } else { OK })
}

/// Prints the plan; is there work to do?
pub(super) fn show(session: &Session<'_>, plan: &Plan, request: Request<'_>) -> Result<bool, Failure> {
    let store = session.store_if_any()?;
    let survey = survey(plan, &store, request)?;
    let told = || survey.nodes.iter().filter_map(|(place, status)| Some((*place, plan.nodes().get(*place)?, status)));
    let cached = survey.nodes.values().filter(|status| status.is_known()).count();
    let held = survey.nodes.values().filter(|status| matches!(status, NodeStatus::Held { .. })).count();
    let to_run = survey.nodes.len() - cached - held;
    if session.terminal.is_json() {
        for (place, node, status) in told() {
            session.terminal.line(&as_json(node, status, survey.work.get(&place)).to_string());
        }
        return Ok(to_run > 0);
    }
    let row = |(_, node, status): (usize, &Node, &NodeStatus)| {
        let (word, detail) = words(status);
        vec![node.id().to_owned(), node.entry.name.to_owned(), word.to_owned(), detail]
    };
    let rows: Vec<Vec<String>> = told().map(row).collect();
    session.terminal.table(&["node", "operator", "status", "why"], &rows);
    let held = if held > 0 { format!(", {held} held") } else { String::new() };
    session.terminal.line(&format!("{} nodes: {cached} cached, {to_run} to run or to decide{held}", rows.len()));
    show_work(session, plan, &survey);
    for (_, node, status) in told() {
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

fn as_json(node: &Node, status: &NodeStatus, work: Option<&Work>) -> Value {
    let (word, detail) = words(status);
    let mut told = json!({"node": node.id(), "operator": node.entry.name, "status": word, "detail": detail});
    let unset = secrets::unset(node);
    if !unset.is_empty() {
        told["secrets_not_set"] = json!(unset);
    }
    if let Some(work) = work {
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
        NodeStatus::Frozen { .. } => ("cached", "frozen".to_owned()),
        NodeStatus::Run { reasons, .. } => ("run", sentence(reasons)),
        NodeStatus::Held { .. } => ("held", "it is not chosen to run, and its result is not in the store".to_owned()),
        NodeStatus::Unknown { waits_for, reasons, .. } => {
            let waits = format!("waits for {}", listed(waits_for));
            let changed = if reasons.is_empty() { waits } else { format!("{waits}; {}", sentence(reasons)) };
            ("decided later", changed)
        }
        NodeStatus::Broken { problem } => ("broken", problem.clone()),
    }
}

/// Names separated by commas, each once: a node may need several outputs of another.
pub(super) fn listed(names: &[String]) -> String {
    let first = names.iter().enumerate().filter(|(place, name)| !names[..*place].contains(name));
    first.map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(", ")
}

fn sentence(reasons: &[Reason]) -> String {
    reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
