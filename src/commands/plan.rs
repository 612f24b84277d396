//! `plan`: shows what a run would do, why, and the estimated cost.

use std::collections::{BTreeMap, BTreeSet};

use searchmill_engine::operator::{Prices, Usage};
use searchmill_engine::{Basis, Failure, Node, NodeStatus, Plan, RunOptions, Session, Survey, Work};
use serde_json::{Value, json};

use super::pipeline;
use super::store::note_if_missing;
use crate::args::PlanArgs;
use crate::display::reasons::sentence;
use crate::display::{Terminal, money};
use crate::exit::{OK, WORK};

pub(super) fn plan(terminal: &Terminal, session: &Session, args: &PlanArgs) -> Result<u8, Failure> {
    let checked = pipeline::check(session, &args.pipeline)?;
    let selection = pipeline::selection(&args.chosen);
    let options = RunOptions { selection, limit: args.limit, ..RunOptions::default() };
    let survey = session.survey(&checked, &options)?;
    note_if_missing(terminal, session)?;
    let work = show(terminal, session, &checked.plan, &survey);
    Ok(if work && args.detailed_exitcode { WORK } else { OK })
}

/// Prints the plan; returns whether there is work to do.
pub(super) fn show(terminal: &Terminal, session: &Session, plan: &Plan, survey: &Survey) -> bool {
    let told = || survey.nodes.iter().filter_map(|(place, status)| Some((*place, plan.nodes.get(*place)?, status)));
    let ended = survey.nodes.values().filter(|status| matches!(status, NodeStatus::Ended { .. })).count();
    let cached = survey.nodes.values().filter(|status| status.is_known()).count() - ended;
    let held = survey.nodes.values().filter(|status| matches!(status, NodeStatus::Held { .. })).count();
    let to_run = survey.nodes.len() - cached - held - ended;
    if terminal.is_json() {
        for (place, node, status) in told() {
            terminal.json(&as_json(session, node, status, survey.work.get(&place)));
        }
        return to_run > 0;
    }
    let row = |(_, node, status): (usize, &Node, &NodeStatus)| {
        let (word, detail) = words(status);
        vec![node.id().to_owned(), node.entry.name.to_owned(), word.to_owned(), detail]
    };
    let shown = told().filter(|(_, _, status)| !matches!(status, NodeStatus::Ended { .. }));
    let rows: Vec<Vec<String>> = shown.map(row).collect();
    terminal.table(&["node", "operator", "status", "why"], &rows);
    tell_loops(terminal, survey);
    let held = if held > 0 { format!(", {held} held") } else { String::new() };
    terminal.line(&format!("{} nodes: {cached} cached, {to_run} to run or to decide{held}", rows.len()));
    show_work(terminal, plan, survey);
    for (_, node, _) in told().filter(|(_, _, status)| !status.is_known()) {
        if let Some(unset) = session.unset_secrets(node) {
            terminal.warn(&unset.to_string());
        }
    }
    to_run > 0
}

/// Says how loops ended, or that they may end.
pub(super) fn tell_loops(terminal: &Terminal, survey: &Survey) {
    for repeats in &survey.loops {
        match &repeats.end {
            Some(end) if end.left_out > 0 => {
                let rounds = if end.left_out == 1 { "round does" } else { "rounds do" };
                terminal.line(&format!("{repeats}; {} {rounds} not run", end.left_out));
            }
            None if repeats.stops => {
                terminal.line(&format!("the loop `{}` runs up to {} rounds", repeats.id, repeats.rounds()));
            }
            _ => {}
        }
    }
}

/// Prints the expected calls of nodes that use an endpoint, and their cost.
fn show_work(terminal: &Terminal, plan: &Plan, survey: &Survey) {
    if survey.work.is_empty() {
        return;
    }
    let header = ["asks an endpoint", "rows known", "to compute", "calls", "tokens", "cost", "going by"];
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (place, work) in &survey.work {
        let node = plan.nodes.get(*place).map(|node| node.id().to_owned()).unwrap_or_default();
        rows.push(std::iter::once(node).chain(work_words(work)).collect());
    }
    terminal.line("");
    terminal.table(&header, &rows);
    if survey.work.len() > 1 {
        terminal.line(&total(&survey.work));
    }
}

fn work_words(work: &Work) -> [String; 6] {
    let unknown = || "unknown".to_owned();
    let bounded = if work.at_most { "at most " } else { "" };
    let (known, missing) = work.rows.map_or_else(
        || (unknown(), unknown()),
        |(known, missing)| (money::count(known), format!("{bounded}{}", money::count(missing))),
    );
    let about = |number: fn(&Usage) -> u64| {
        work.estimate.as_ref().map_or_else(unknown, |usage| format!("{bounded}~{}", money::count(number(usage))))
    };
    let cost = match (&work.estimate, &work.prices) {
        (Some(usage), Some(prices)) => format!("{bounded}~{}", money::cost(usage.cost(), &prices.currency)),
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

/// Formats `in all ~340 calls, ~1.2 M tokens, ~0.41 USD`, and whether parts are unknown.
fn total(work: &BTreeMap<usize, Work>) -> String {
    let mut sum = Usage::default();
    work.values().filter_map(|work| work.estimate).for_each(|usage| sum += usage);
    let currency = work.values().find_map(|work| work.prices.as_ref().map(|prices: &Prices| prices.currency.clone()));
    let cost = currency.map_or_else(String::new, |currency| format!(", ~{}", money::cost(sum.cost(), &currency)));
    let rest = if work.values().any(|work| work.estimate.is_none()) { ", and what is unknown" } else { "" };
    let bounded = if work.values().any(|work| work.at_most) { "at most " } else { "" };
    format!("in all {bounded}~{} calls, ~{} tokens{cost}{rest}", money::count(sum.calls), money::count(sum.tokens()))
}

fn as_json(session: &Session, node: &Node, status: &NodeStatus, work: Option<&Work>) -> Value {
    let (word, detail) = words(status);
    let mut told = json!({"node": node.id(), "operator": node.entry.name, "status": word, "detail": detail});
    if let Some(unset) = session.unset_secrets(node) {
        told["secrets_not_set"] = json!(unset.names);
    }
    if let Some(work) = work {
        let rows = |(known, missing)| json!({"known": known, "to_compute": missing, "at_most": work.at_most});
        told["rows"] = json!(work.rows.map(rows));
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
        NodeStatus::Ended { why } => ("ended", why.clone()),
        NodeStatus::Broken { problem } => ("broken", problem.clone()),
    }
}

/// Names listed of those that a node waits for (at most).
const LISTED: usize = 8;

/// Joins names with commas, without duplicates: a node may need several outputs of another.
pub(super) fn listed(names: &[String]) -> String {
    let mut seen = BTreeSet::new();
    let first: Vec<&str> = names.iter().map(String::as_str).filter(|name| seen.insert(*name)).collect();
    let more = first.len().saturating_sub(LISTED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", first[..first.len() - more].join(", "))
}
