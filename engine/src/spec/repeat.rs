//! `repeat:`: unrolls the rounds of loops. Each node of a loop becomes one node per round (`step@round=3`); what a round
//! carries to the next one is an output of a node.

use std::collections::BTreeSet;

use super::coordinate::{Coordinate, base};
use super::decision::{self, Binder};
use super::field::{self, Problems, take};
use super::include::Place;
use super::model::{NodeSpec, Reference, ServiceSpec};
use super::node;
use super::reference;
use super::rounds::{self, Loop, bad};
use super::scope::{Scope, Shared};
use super::value::{Key, Spanned, Value};
use super::{keep, matrix, round_file, suggest};
use crate::diagnostic::{Diagnostic, Span};
use crate::node_id::ROUND;

const KEYS: &[&str] = &["rounds", "carry", "nodes", "next", "matrix", "best", "stop", "keep", "include"];

/// Limit of rounds of a loop.
const MAX_ROUNDS: u64 = 10_000;

/// Reads the loops of a file, unrolled.
pub(super) fn all(
    value: Spanned,
    place: &Place,
    scope: &mut Scope<'_>,
    shared: &mut Shared<'_>,
) -> (Vec<NodeSpec>, Vec<Loop>) {
    let entries = field::map(value, "`repeat`", &mut shared.problems).unwrap_or_default();
    let read = entries.into_iter().filter_map(|(name, body)| read(&name, body, place, scope, shared));
    let (nodes, loops): (Vec<_>, Vec<_>) = read.unzip();
    (nodes.into_iter().flatten().collect(), loops)
}

fn read(
    name: &Key,
    body: Spanned,
    place: &Place,
    scope: &mut Scope<'_>,
    shared: &mut Shared<'_>,
) -> Option<(Vec<NodeSpec>, Loop)> {
    let what = format!("the loop `{}`", name.text);
    if !field::node_id(&name.text, name.span, &mut shared.problems) {
        return None;
    }
    let mut fields = field::fields(body, &what, KEYS, &mut shared.problems);
    let rounds = rounds(take(&mut fields, "rounds"), name, scope, shared);
    let carry = carried(take(&mut fields, "carry"), "`carry`", true, scope, shared);
    let mut next = carried(take(&mut fields, "next"), "`next`", false, scope, shared);
    let outer = outer(take(&mut fields, "matrix"), name, rounds, scope, shared);
    let keep = keep::read(take(&mut fields, "keep"), scope, shared);
    let nodes = take(&mut fields, "nodes");
    let mut entries = nodes.and_then(|nodes| field::map(nodes, "`nodes`", &mut shared.problems)).unwrap_or_default();
    let included = take(&mut fields, "include");
    let includes = included.is_some();
    let unread = shared.unread;
    let included = included.map(|value| round_file::nodes(value, &outer, place, scope, shared)).unwrap_or_default();
    let is_whole = shared.unread == unread;
    if entries.is_empty() && !includes {
        let fault = Diagnostic::error("missing-key", format!("{what} has no `nodes:`")).at(name.span, "");
        shared.report(fault.help("write the nodes of a round below `nodes:`, as in `nodes:` of the pipeline"));
    }
    let own: BTreeSet<String> = entries
        .iter()
        .map(|(id, _)| id.text.as_str())
        .chain(included.iter().map(|node| base(&node.id)))
        .map(str::to_owned)
        .collect();
    check(&Carried { what: &what, carry: &carry, next: &next, own: &own, is_whole }, &mut shared.problems);
    // What `next` lacks or has wrong was reported; what follows from it need not be.
    next.retain(|(_, (text, _))| own.contains(base(text)));
    let lacks = |(key, _): &&Entry| next.iter().all(|(other, _)| other.text != key.text);
    let lacking: Vec<_> = carry.iter().filter(lacks).cloned().collect();
    next.extend(lacking);
    let decision = decision::entry(name, &mut fields, &mut shared.problems);
    let (decides, stops) = (decision.is_some(), decision.as_ref().is_some_and(|(_, stops)| *stops));
    entries.extend(decision.map(|(entry, _)| entry));
    let mut unrolled = included;
    unrolled.extend(node::all(entries, &outer, scope, shared));
    let mut binder = Binder::new(&name.text, own.iter().map(String::as_str), is_whole);
    for node in &mut unrolled {
        if decides && rounds::decides(node) {
            binder.bind(node, &mut shared.problems);
        }
        hand_on(node, &carry, &next, &mut shared.problems);
        node.keep = keep;
    }
    let next = next.into_iter().filter(|(_, (text, _))| !text.is_empty());
    let next = next.map(|(key, (text, _))| (key.text, text)).collect();
    let repeats = Loop { name: name.text.clone(), span: name.span, last: rounds - 1, next, decides, stops };
    Some((unrolled, repeats))
}

/// Returns the number of rounds; 1 after an error, so that the nodes of the loop are known.
fn rounds(value: Option<Spanned>, name: &Key, scope: &mut Scope<'_>, shared: &mut Shared<'_>) -> u64 {
    let Some(mut value) = value else {
        let fault = Diagnostic::error("missing-key", format!("the loop `{}` has no `rounds`", name.text));
        shared.report(fault.at(name.span, "").help("write `rounds: 10`"));
        return 1;
    };
    scope.apply(&mut value, None, shared);
    match field::whole(&value, "`rounds`", 1, &mut shared.problems) {
        Some(rounds) if rounds > MAX_ROUNDS => {
            let message = format!("`rounds` is {rounds} (limit: {MAX_ROUNDS})");
            shared.report(field::fault("too-many-rounds", &value, message));
            1
        }
        rounds => rounds.unwrap_or(1),
    }
}

/// A name of what rounds carry, with the reference to an output as written; empty: the first round starts without it.
type Entry = (Key, (String, Span));

fn carried(
    value: Option<Spanned>,
    what: &str,
    starts: bool,
    scope: &mut Scope<'_>,
    shared: &mut Shared<'_>,
) -> Vec<Entry> {
    let Some(mut value) = value else { return Vec::new() };
    scope.apply(&mut value, None, shared);
    let entries = field::map(value, what, &mut shared.problems).unwrap_or_default();
    let entry = |(key, value): (Key, Spanned)| {
        field::node_id(&key.text, key.span, &mut shared.problems);
        if starts && value.value == Value::Null {
            return Some((key, (String::new(), value.span)));
        }
        let what = format!("{what}: `{}`", key.text);
        match reference::references(&value, &what, &mut shared.problems).as_slice() {
            [one] => Some((key, (one.node.clone(), value.span))),
            [] => None,
            _ => {
                shared.problems.push(field::wrong_type(&value, &what, "one output of a node"));
                None
            }
        }
    };
    entries.into_iter().filter_map(entry).collect()
}

/// Returns the coordinates of every round: those of the loop's own matrix, then the round.
fn outer(
    matrix: Option<Spanned>,
    name: &Key,
    rounds: u64,
    scope: &mut Scope<'_>,
    shared: &mut Shared<'_>,
) -> Vec<Vec<Coordinate>> {
    let variants = match matrix {
        None => vec![Vec::new()],
        Some(mut matrix) => {
            scope.apply(&mut matrix, None, shared);
            matrix::combinations(&matrix, &mut shared.problems)
        }
    };
    let of_variant = |variant: &Vec<Coordinate>| {
        (0..rounds).map(|round| [&variant[..], &[coordinate(name, round)]].concat()).collect()
    };
    variants.iter().flat_map::<Vec<_>, _>(of_variant).collect()
}

fn coordinate(name: &Key, round: u64) -> Coordinate {
    let value = Spanned::new(Value::Int(i64::try_from(round).unwrap_or(i64::MAX)), name.span);
    Coordinate {
        key: ROUND.to_owned(),
        name: round.to_string(),
        value,
        is_named: false,
        repeats: Some(name.text.clone()),
    }
}

/// What a loop carries, and what it is made of.
struct Carried<'l> {
    what: &'l str,
    carry: &'l [Entry],
    next: &'l [Entry],
    /// The ids of its nodes, without rounds.
    own: &'l BTreeSet<String>,
    /// Whether all files with its nodes were read.
    is_whole: bool,
}

/// Reports names that `carry` and `next` do not share, or that nodes have, and outputs that rounds cannot hand on.
fn check(carried: &Carried<'_>, problems: &mut Problems) {
    let Carried { what, carry, next, own, is_whole } = carried;
    let names = |entries: &[Entry]| entries.iter().map(|(key, _)| key.text.clone()).collect::<BTreeSet<_>>();
    let (started, handed) = (names(carry), names(next));
    let lacking: Vec<&Key> = carry.iter().map(|(key, _)| key).filter(|key| !handed.contains(&key.text)).collect();
    if let Some(first) = lacking.first() {
        let listed = |form: fn(&str) -> String| lacking.iter().map(|key| form(&key.text)).collect::<Vec<_>>();
        let names = listed(|name| format!("`{name}`")).join(" and ");
        let wanted = listed(|name| format!("{name}: NODE.PORT")).join(", ");
        let fault = bad(first.span, format!("{what} carries {names}, which `next` lacks"));
        problems.push(fault.help(format!("name what the next round starts from: `next: {{{wanted}}}`")));
    }
    for (key, (text, at)) in *carry {
        if own.contains(&key.text) {
            let fault = bad(key.span, format!("`{}` is a node of {what} and something that it carries", key.text));
            problems.push(fault.help("rename one of them"));
        }
        if own.contains(base(text)) {
            let fault = bad(*at, format!("the first round cannot start from `{text}`, a node of {what} itself"));
            problems.push(fault.help("name a node outside the loop; `next` names what the later rounds start from"));
        }
    }
    for (key, (text, at)) in *next {
        if !started.contains(&key.text) {
            let fault = bad(key.span, format!("`next` has `{0}`, but {what} does not carry `{0}`", key.text));
            let known: Vec<&str> = started.iter().map(String::as_str).collect();
            problems.push(fault.help_some(suggest::advice(&key.text, &known)));
        }
        if *is_whole && !own.contains(base(text)) {
            let known: Vec<&str> = own.iter().map(String::as_str).collect();
            let fault = bad(*at, format!("`{text}` is no node of {what}"));
            problems.push(fault.help(suggest::suggest(base(text), &known, "nodes of the loop")));
        }
    }
}

/// Replaces the names of what is carried by the outputs that the node's round starts from.
fn hand_on(node: &mut NodeSpec, carry: &[Entry], next: &[Entry], problems: &mut Problems) {
    let Some(round) = node.matrix.iter().find(|coordinate| coordinate.repeats.is_some()) else { return };
    let before = round.name.parse::<u64>().unwrap_or_default().checked_sub(1);
    let entries = if before.is_some() { next } else { carry };
    let of_services = node.services.iter_mut().flat_map(|service| &mut service.from);
    for binding in node.from.iter_mut().chain(of_services) {
        binding.references.retain_mut(|reference| {
            // A decision reads the one of the round before.
            if reference.round.is_some() {
                return true;
            }
            let name = base(&reference.node);
            let Some((_, (text, span))) = entries.iter().find(|(key, _)| key.text == name) else { return true };
            if reference.node != name {
                let fault = bad(reference.span, format!("`{name}` is one output, which the round before hands on"));
                problems.push(fault.help(format!("write `{name}`")));
            }
            *reference = Reference { node: text.clone(), round: before, span: *span, ..reference.clone() };
            !text.is_empty()
        });
    }
    node.from.retain(|binding| !binding.references.is_empty());
    let serves_nothing = |service: &&ServiceSpec| service.from.iter().any(|binding| binding.references.is_empty());
    if let Some(service) = node.services.iter().find(serves_nothing) {
        let message = format!("the service `{}` has nothing to serve in the first round", service.name);
        problems.push(bad(service.span, message).help("name a node in `carry` instead of `null`"));
    }
}
