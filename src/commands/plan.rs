//! `plan`: shows what a run would do, why, and the estimated cost.

use std::collections::{BTreeMap, BTreeSet};

use searchmill_engine::operator::Usage;
use searchmill_engine::{Failure, NodeIndex, NodeStatus, Plan, RunOptions, Session, Survey, Work};

use super::pipeline::{self, limit, print_limit};
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
    let (mut ended, mut cached, mut held, mut to_run) = (0, 0, 0, 0);
    for status in survey.nodes.values() {
        match status {
            NodeStatus::Ended { .. } => ended += 1,
            NodeStatus::Held { .. } => held += 1,
            status if status.is_known() => cached += 1,
            _ => to_run += 1,
        }
    }
    if terminal.is_json() {
        for (index, status) in &survey.nodes {
            if let Some(node) = plan.get(*index) {
                terminal.json(&as_json(session, node, status, survey.work.get(index)));
            }
        }
        return to_run > 0;
    }
    // A loop may end many rounds early: their nodes would fill the screen.
    let shown = survey.nodes.iter().filter(|(_, status)| !status.is_after_the_end());
    let groups = folded(plan, shown.map(|(index, _)| *index), all);
    let rows: Vec<Vec<String>> = groups.iter().map(|group| row(plan, survey, group)).collect();
    terminal.plan_table(&["node", "operator", "status", "why"], &rows);
    print_loops(terminal, survey);
    let held = if held > 0 { format!(", {held} held") } else { String::new() };
    let nodes = survey.nodes.len() - ended;
    terminal.line(&format!("{nodes} nodes: {cached} cached, {to_run} to run or to decide{held}"));
    show_work(terminal, plan, survey, all);
    for group in &groups {
        for index in &group.places {
            // A cached node asks nobody: it needs no secret.
            if let (Some(node), Some(status)) = (plan.get(*index), survey.nodes.get(index))
                && !status.is_known()
                && let Some(unset) = session.unset_secrets(node)
            {
                terminal.warn(&unset.to_string());
                // All rounds of a node need the same secrets: one line says it.
                break;
            }
        }
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
    let places = group.places.iter();
    let rounds: Vec<_> = places.filter_map(|at| Some((plan.get(*at)?, survey.nodes.get(at)?))).collect();
    let operator = rounds.first().map(|(node, _)| node.entry.name.to_owned()).unwrap_or_default();
    if let [(node, status)] = rounds[..] {
        let (word, detail) = words(node.id(), status);
        return vec![group.name.clone(), operator, word.to_owned(), detail];
    }
    let (mut status_words, mut why, mut released) = (Vec::new(), None, 0);
    for (node, status) in rounds {
        let (word, detail) = words(node.id(), status);
        status_words.push(if matches!(status, NodeStatus::Run { .. }) { "to run" } else { word });
        let is_open = !status.is_known() || matches!(status, NodeStatus::Ended { .. });
        if is_open && why.is_none() {
            why = Some(format!("{}: {detail}", node.id()));
        }
        if matches!(status, NodeStatus::Cached { released, .. } if !released.is_empty()) {
            released += 1;
        }
    }
    let why = match why {
        Some(why) => why,
        None if released > 0 => format!("{released} of them released"),
        None => String::new(),
    };
    vec![group.name.clone(), operator, counted(status_words.into_iter()), why]
}

/// Returns the work of the rounds of a node together; what is unknown of one is unknown of all.
fn together<'w>(works: impl Iterator<Item = &'w Work>) -> Option<Work> {
    works.cloned().reduce(|sum, work| Work {
        rows: sum.rows.zip(work.rows).map(|(one, other)| (one.0 + other.0, one.1 + other.1)),
        at_most: sum.at_most || work.at_most,
        estimate: match (sum.estimate, work.estimate) {
            (Some(mut one), Some(other)) => {
                one += other;
                Some(one)
            }
            _ => None,
        },
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
        if let Some(work) = together(group.places.iter().filter_map(|index| survey.work.get(index))) {
            rows.push([vec![group.name], work_words(&work, has_services)].concat());
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
    let mut lines = Vec::new();
    if !waiting.is_empty() {
        let (waiting, first) = (listed(waiting), listed(first));
        let how = first.replace(',', "");
        lines.push(format!(
            "rows of {waiting} are unknown until {first} ran: `searchmill run FILE {how}` costs no call of theirs"
        ));
    }
    if !unmeasured.is_empty() {
        let names = listed(unmeasured);
        lines.push(format!(
            "calls of {names} are unknown: none is recorded; a trial with `--limit 5` tells what a row costs"
        ));
    }
    lines
}

fn work_words(work: &Work, has_services: bool) -> Vec<String> {
    const UNKNOWN: &str = "unknown";
    let bounded = if work.at_most { "at most " } else { "" };
    let mut words = match work.rows {
        Some((known, missing)) => vec![money::count(known), format!("{bounded}{}", money::count(missing))],
        None => vec![UNKNOWN.to_owned(); 2],
    };
    let [calls, services, tokens] = match &work.estimate {
        Some(usage) => [usage.model_calls(), usage.service_calls, usage.tokens()]
            .map(|number| format!("{bounded}~{}", money::count(number))),
        None => [UNKNOWN; 3].map(str::to_owned),
    };
    words.push(calls);
    if has_services {
        words.push(services);
    }
    let cost = match (&work.estimate, &work.prices) {
        (Some(usage), Some(prices)) => format!("{bounded}~{}", money::cost(usage.cost(), &prices.currency)),
        (_, None) => "no prices".to_owned(),
        (None, Some(_)) => UNKNOWN.to_owned(),
    };
    words.extend([tokens, cost, basis(work).to_owned()]);
    words
}

/// Formats `in all ~340 calls, ~1.2 M tokens, ~0.41 USD`, and whether parts are unknown.
fn total(work: &BTreeMap<NodeIndex, Work>) -> String {
    let (mut sum, mut rest, mut bounded) = (Usage::default(), "", "");
    for work in work.values() {
        match work.estimate {
            Some(usage) => sum += usage,
            None => rest = ", and what is unknown",
        }
        if work.at_most {
            bounded = "at most ";
        }
    }
    // All endpoints of a pipeline have the same currency.
    let cost = match work.values().find_map(|work| work.prices.as_ref()) {
        Some(prices) => format!(", ~{}", money::cost(sum.cost(), &prices.currency)),
        None => String::new(),
    };
    let services = match sum.service_calls {
        0 => String::new(),
        calls => format!(", ~{} of tools and functions", money::count(calls)),
    };
    let (calls, tokens) = (money::count(sum.model_calls()), money::count(sum.tokens()));
    format!("in all {bounded}~{calls} calls{services}, ~{tokens} tokens{cost}{rest}")
}
