//! `plan`: shows what a run would do, why, and the estimated cost.

use std::collections::{BTreeMap, BTreeSet};

use searchmill_engine::operator::{Prices, Usage};
use searchmill_engine::{Failure, Node, NodeIndex, NodeStatus, Plan, RunOptions, Session, Survey, Work};

use super::limit::{limit, print_limit};
use super::pipeline;
use super::store::note_if_missing;
use crate::args::PlanArgs;
use crate::display::planned::{as_json, basis, listed, words};
use crate::display::rounds::{Group, counted, folded};
use crate::display::{Terminal, money};
use crate::exit::{OK, WORK};

pub(super) fn plan(terminal: &Terminal, session: &Session, args: &PlanArgs) -> Result<u8, Failure> {
    let checked = pipeline::check(session, &args.pipeline)?;
    let selection = pipeline::selection(&args.chosen);
    let options = RunOptions { selection, limit: limit(&args.limit)?, ..RunOptions::default() };
    let survey = session.estimate(&checked, &options)?;
    print_limit(terminal, &checked.plan, &options.limit);
    note_if_missing(terminal, session)?;
    let work = show(terminal, session, &checked.plan, &survey, args.all);
    Ok(if work && args.detailed_exitcode { WORK } else { OK })
}

/// Prints the plan; returns whether there is work to do. Without `all`, the rounds of a node are one line.
pub(super) fn show(terminal: &Terminal, session: &Session, plan: &Plan, survey: &Survey, all: bool) -> bool {
    let told = || survey.nodes.iter().filter_map(|(place, status)| Some((*place, plan.get(*place)?, status)));
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
    let shown = told().filter(|(_, _, status)| !status.is_after_the_end());
    let groups = folded(plan, shown.map(|(place, ..)| place), all);
    let rows: Vec<Vec<String>> = groups.iter().map(|group| row(plan, survey, group)).collect();
    terminal.plan_table(&["node", "operator", "status", "why"], &rows);
    print_loops(terminal, survey);
    let held = if held > 0 { format!(", {held} held") } else { String::new() };
    let nodes = survey.nodes.len() - ended;
    terminal.line(&format!("{nodes} nodes: {cached} cached, {to_run} to run or to decide{held}"));
    show_work(terminal, plan, survey, all);
    let lacking = |group: &Group| {
        let unknown = |place: &&NodeIndex| survey.nodes.get(place).is_some_and(|status| !status.is_known());
        group.places.iter().filter(unknown).find_map(|place| session.unset_secrets(plan.get(*place)?))
    };
    for unset in groups.iter().filter_map(lacking) {
        terminal.warn(&unset.to_string());
    }
    to_run > 0
}

/// Says how loops ended, or that they may end.
pub(super) fn print_loops(terminal: &Terminal, survey: &Survey) {
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

/// Formats a node, or the rounds of one: how many are cached and how many run, and why the first one that is not cached
/// runs.
fn row(plan: &Plan, survey: &Survey, group: &Group) -> Vec<String> {
    let told = group.places.iter().filter_map(|place| Some((plan.get(*place)?, survey.nodes.get(place)?)));
    let told: Vec<(&Node, &NodeStatus)> = told.collect();
    let operator = told.first().map(|(node, _)| node.entry.name.to_owned()).unwrap_or_default();
    if let [(node, status)] = told[..] {
        let (word, detail) = words(node.id(), status);
        return vec![group.name.clone(), operator, word.to_owned(), detail];
    }
    let word = |(node, status): &(&Node, &NodeStatus)| match status {
        NodeStatus::Run { .. } => "to run",
        _ => words(node.id(), status).0,
    };
    let counts = counted(told.iter().map(word));
    let is_open = |status: &NodeStatus| !status.is_known() || matches!(status, NodeStatus::Ended { .. });
    let first = told.iter().find(|(_, status)| is_open(status));
    let why = first.map(|(node, status)| format!("{}: {}", node.id(), words(node.id(), status).1));
    let is_released = |(_, status): &&(&Node, &NodeStatus)| matches!(status, NodeStatus::Cached { released, .. } if !released.is_empty());
    let released = told.iter().filter(is_released).count();
    let released = || if released > 0 { format!("{released} of them released") } else { String::new() };
    vec![group.name.clone(), operator, counts, why.unwrap_or_else(released)]
}

/// Returns the work of the rounds of a node together; what is unknown of one is unknown of all.
fn together<'w>(works: impl Iterator<Item = &'w Work>) -> Option<Work> {
    works.cloned().reduce(|sum, work| Work {
        rows: sum.rows.zip(work.rows).map(|(one, other)| (one.0 + other.0, one.1 + other.1)),
        at_most: sum.at_most || work.at_most,
        estimate: sum.estimate.zip(work.estimate).map(|(mut one, other)| {
            one += other;
            one
        }),
        basis: sum.basis.or(work.basis),
        prices: sum.prices.or(work.prices),
    })
}

/// Prints the expected calls of nodes that use an endpoint, and their cost.
fn show_work(terminal: &Terminal, plan: &Plan, survey: &Survey, all: bool) {
    if survey.work.is_empty() {
        return;
    }
    let mut header = vec!["asks an endpoint", "rows known", "to compute", "calls", "tokens", "cost", "going by"];
    // Calls of tools and functions stand apart: `calls` are those of models.
    let has_services = survey.work.values().any(|work| work.estimate.is_some_and(|usage| usage.service_calls > 0));
    if has_services {
        header.insert(4, "of tools");
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    for group in folded(plan, survey.work.keys().copied(), all) {
        let works = group.places.iter().filter_map(|place| survey.work.get(place));
        if let Some(work) = together(works) {
            rows.push(std::iter::once(group.name).chain(work_words(&work, has_services)).collect());
        }
    }
    terminal.line("");
    terminal.table(&header, &rows);
    if survey.work.len() > 1 {
        terminal.line(&total(&survey.work));
    }
    for line in unknowns(plan, survey) {
        terminal.note(&line);
    }
}

/// Says why numbers are unknown, and what tells them.
fn unknowns(plan: &Plan, survey: &Survey) -> Vec<String> {
    let (mut waiting, mut first) = (BTreeSet::new(), BTreeSet::new());
    let mut unmeasured = BTreeSet::new();
    for (place, work) in &survey.work {
        let Some(node) = plan.get(*place) else { continue };
        let name = node.id().split('@').next().unwrap_or_default();
        match (survey.nodes.get(place), work.rows, work.estimate) {
            (Some(NodeStatus::Unknown { waits_for, .. }), None, _) => {
                waiting.insert(name);
                first.extend(waits_for.iter().map(String::as_str));
            }
            (_, Some(_), None) => {
                unmeasured.insert(name);
            }
            _ => {}
        }
    }
    let joined = |names: &BTreeSet<&str>| listed(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let mut lines = Vec::new();
    if !waiting.is_empty() {
        let (waiting, first) = (joined(&waiting), joined(&first));
        let how = first.replace(',', "");
        lines.push(format!(
            "rows of {waiting} are unknown until {first} ran: `searchmill run FILE {how}` costs no call of theirs"
        ));
    }
    if !unmeasured.is_empty() {
        let names = joined(&unmeasured);
        lines.push(format!(
            "calls of {names} are unknown: none is recorded; a trial with `--limit 5` tells what a row costs"
        ));
    }
    lines
}

fn work_words(work: &Work, has_services: bool) -> Vec<String> {
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
    let mut words = vec![known, missing, about(Usage::model_calls)];
    if has_services {
        words.push(about(|usage| usage.service_calls));
    }
    words.extend([about(Usage::tokens), cost, basis(work).to_owned()]);
    words
}

/// Formats `in all ~340 calls, ~1.2 M tokens, ~0.41 USD`, and whether parts are unknown.
fn total(work: &BTreeMap<NodeIndex, Work>) -> String {
    let mut sum = Usage::default();
    work.values().filter_map(|work| work.estimate).for_each(|usage| sum += usage);
    let currency = work.values().find_map(|work| work.prices.as_ref().map(|prices: &Prices| prices.currency.clone()));
    let cost = currency.map_or_else(String::new, |currency| format!(", ~{}", money::cost(sum.cost(), &currency)));
    let rest = if work.values().any(|work| work.estimate.is_none()) { ", and what is unknown" } else { "" };
    let bounded = if work.values().any(|work| work.at_most) { "at most " } else { "" };
    let services = match sum.service_calls {
        0 => String::new(),
        calls => format!(", ~{} of tools and functions", money::count(calls)),
    };
    let (calls, tokens) = (money::count(sum.model_calls()), money::count(sum.tokens()));
    format!("in all {bounded}~{calls} calls{services}, ~{tokens} tokens{cost}{rest}")
}
