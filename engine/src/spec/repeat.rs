//! `repeat:`: unrolls the rounds of loops. Each node of a loop becomes one node per round (`step@round=3`); what a round
//! carries to the next one is an output of a node. Also reads the files that a loop includes, and of which rounds it keeps
//! the folders.

use std::collections::BTreeSet;

use super::coordinate::{Coordinate, base};
use super::decision::{self, Binder};
use super::field::{self, Problems, take, take_whole};
use super::include::{self, Place, Wanted};
use super::model::{Kept, NodeSpec, Reference};
use super::rounds::{self, Loop, bad};
use super::scope::{Scope, Shared};
use super::set::{Over, params};
use super::value::{Key, Spanned, Value};
use super::{matrix, node, reference, suggest, syntax};
use crate::diagnostic::{Diagnostic, Span};
use crate::node_id::ROUND;

const KEYS: &[&str] = &["rounds", "carry", "nodes", "next", "matrix", "best", "stop", "keep", "include"];
/// Keys of a file that a loop includes: those have no loops of their own.
const FILE_KEYS: &[&str] = &["name", "description", "params", "nodes", "include"];

/// Limit of rounds of a loop.
const MAX_ROUNDS: u64 = 10_000;

/// Reads the loops of a file, unrolled.
pub(super) fn all(value: Spanned, place: &Place, scope: &mut Scope<'_, '_>) -> (Vec<NodeSpec>, Vec<Loop>) {
    let (mut nodes, mut loops) = (Vec::new(), Vec::new());
    for (name, body) in field::map(value, "`repeat`", &mut scope.shared.problems).unwrap_or_default() {
        if let Some((unrolled, repeats)) = read(&name, body, place, scope) {
            nodes.extend(unrolled);
            loops.push(repeats);
        }
    }
    (nodes, loops)
}

fn read(name: &Key, body: Spanned, place: &Place, scope: &mut Scope<'_, '_>) -> Option<(Vec<NodeSpec>, Loop)> {
    let what = format!("the loop `{}`", name.text);
    if !field::node_id(&name.text, name.span, &mut scope.shared.problems) {
        return None;
    }
    let mut fields = field::fields(body, &what, KEYS, &mut scope.shared.problems);
    let rounds = rounds(scope.take(&mut fields, "rounds"), name, scope.shared);
    let carry = carried(scope.take(&mut fields, "carry"), "`carry`", true, &mut scope.shared.problems);
    let mut next = carried(scope.take(&mut fields, "next"), "`next`", false, &mut scope.shared.problems);
    // Before the nodes are read: each is read once for each round.
    let outer = outer(scope.take(&mut fields, "matrix"), name, rounds, &mut scope.shared.problems);
    let keep = scope.take(&mut fields, "keep").and_then(|value| kept(value, scope.shared));
    let mut entries = field::take_map(&mut fields, "nodes", &mut scope.shared.problems);
    let (mut unrolled, unread) = (Vec::new(), scope.shared.unread);
    let included = scope.take(&mut fields, "include");
    let includes = included.is_some();
    if let Some(value) = included {
        unrolled = of_files(value, &outer, place, scope.shared);
    }
    let is_whole = scope.shared.unread == unread;
    if entries.is_empty() && !includes {
        let fault = Diagnostic::error("missing-key", format!("{what} has no `nodes:`")).at(name.span, "");
        scope.shared.report(fault.help("write the nodes of a round below `nodes:`, as in `nodes:` of the pipeline"));
    }
    let mut own: BTreeSet<String> = entries.iter().map(|(id, _)| id.text.clone()).collect();
    own.extend(unrolled.iter().map(|node| base(&node.id).to_owned()));
    check(&what, &carry, &next, &own, is_whole, &mut scope.shared.problems);
    // What `next` lacks or has wrong was reported; what follows from it need not be.
    next.retain(|entry| own.contains(base(&entry.output)));
    for entry in &carry {
        if next.iter().all(|other| other.name.text != entry.name.text) {
            next.push(entry.clone());
        }
    }
    let (mut decides, mut stops) = (false, false);
    if let Some((entry, may_stop)) = decision::entry(name, &mut fields, &mut scope.shared.problems) {
        (decides, stops) = (true, may_stop);
        entries.push(entry);
    }
    unrolled.extend(node::all(entries, &outer, scope));
    let mut binder = Binder::new(&name.text, own.iter().map(String::as_str), is_whole);
    for node in &mut unrolled {
        if decides && rounds::decides(node) {
            binder.bind(node, &mut scope.shared.problems);
        }
        hand_on(node, &carry, &next, &mut scope.shared.problems);
        node.keep = keep;
    }
    next.retain(|entry| !entry.output.is_empty());
    let next = next.into_iter().map(|entry| (entry.name.text, entry.output)).collect();
    let repeats = Loop { name: name.text.clone(), span: name.span, last: rounds - 1, next, decides, stops };
    Some((unrolled, repeats))
}

/// Returns the number of rounds; 1 after an error, so that the nodes of the loop are known.
fn rounds(value: Option<Spanned>, name: &Key, shared: &mut Shared<'_>) -> u64 {
    let Some(value) = value else {
        let fault = Diagnostic::error("missing-key", format!("the loop `{}` has no `rounds`", name.text));
        shared.report(fault.at(name.span, "").help("write `rounds: 10`"));
        return 1;
    };
    match field::whole(&value, "`rounds`", 1, &mut shared.problems) {
        Some(rounds) if rounds > MAX_ROUNDS => {
            let message = format!("`rounds` is {rounds} (limit: {MAX_ROUNDS})");
            shared.report(field::fault("too-many-rounds", &value, message));
            1
        }
        rounds => rounds.unwrap_or(1),
    }
}

/// Reads `last` or `{every: 10, last: 2}`: of which rounds the folders (models, states, indexes) stay in the store. What is
/// not written: the last round alone.
fn kept(value: Spanned, shared: &mut Shared<'_>) -> Option<Kept> {
    match &value.value {
        Value::Broken => None,
        Value::Map(_) => {
            let mut fields = field::fields(value, "`keep`", &["every", "last"], &mut shared.problems);
            let every = take_whole(&mut fields, "every", 1, &mut shared.problems);
            let last = take_whole(&mut fields, "last", 1, &mut shared.problems);
            Some(Kept { every, last: last.unwrap_or(Kept::LAST.last) })
        }
        // The only word: to keep all rounds, leave `keep` out.
        Value::String(word) if word == "last" => Some(Kept::LAST),
        _ => {
            let fault = field::wrong_type(&value, "`keep`", "`last` or a map");
            shared.refuse(fault.help("write `keep: last` or `keep: {every: 10, last: 2}`"))
        }
    }
}

/// Reads the nodes of the files that `include:` names, for each of the loop's coordinates.
fn of_files(value: Spanned, outer: &[Vec<Coordinate>], from: &Place, shared: &mut Shared<'_>) -> Vec<NodeSpec> {
    let mut found = Vec::new();
    for wanted in include::files(value, shared) {
        match of_file(wanted, outer, from, shared) {
            Some(nodes) => found.extend(nodes),
            None => shared.unread += 1,
        }
    }
    found
}

fn of_file(wanted: Wanted, outer: &[Vec<Coordinate>], from: &Place, shared: &mut Shared<'_>) -> Option<Vec<NodeSpec>> {
    let place = include::open(&wanted, from, shared)?;
    let root = syntax::parse(place.file, shared.sources, &mut shared.problems)?;
    let what = "a file that a loop includes";
    if !matches!(root.value, Value::Map(_)) {
        return shared.refuse(field::wrong_type(&root, what, "a map"));
    }
    let mut fields = field::fields(root, what, FILE_KEYS, &mut shared.problems);
    let raw = params(take(&mut fields, "params"), place.file, Over::Include(wanted.params), shared);
    let mut scope = Scope::new(&raw, shared);
    // For the errors: params that no node uses are checked as well.
    scope.resolve_all();
    let included = scope.take(&mut fields, "include");
    let mut found = included.map(|value| of_files(value, outer, &place, scope.shared)).unwrap_or_default();
    let own = field::take_map(&mut fields, "nodes", &mut scope.shared.problems);
    found.extend(node::all(own, outer, &mut scope));
    include::prefix(&mut found, &mut [], &wanted.prefix);
    Some(found)
}

/// What rounds carry.
#[derive(Clone)]
struct Entry {
    name: Key,
    /// The reference to an output as written; empty: the first round starts without it.
    output: String,
    /// Location of the reference.
    span: Span,
}

fn carried(value: Option<Spanned>, what: &str, starts: bool, problems: &mut Problems) -> Vec<Entry> {
    let Some(value) = value else { return Vec::new() };
    let mut entries = Vec::new();
    for (name, value) in field::map(value, what, problems).unwrap_or_default() {
        field::node_id(&name.text, name.span, problems);
        if starts && value.value == Value::Null {
            entries.push(Entry { name, output: String::new(), span: value.span });
            continue;
        }
        let what = format!("{what}: `{}`", name.text);
        match reference::references(&value, &what, problems).as_slice() {
            [one] => entries.push(Entry { name, output: one.node.clone(), span: value.span }),
            // What is no reference was reported.
            [] => {}
            _ => problems.push(field::wrong_type(&value, &what, "one output of a node")),
        }
    }
    entries
}

/// Returns the coordinates of every round: those of the loop's own matrix, then the round.
fn outer(matrix: Option<Spanned>, name: &Key, rounds: u64, problems: &mut Problems) -> Vec<Vec<Coordinate>> {
    let variants = match matrix {
        None => vec![Vec::new()],
        Some(matrix) => matrix::combinations(&matrix, problems),
    };
    let mut outer = Vec::new();
    for variant in &variants {
        for round in 0..rounds {
            let value = Spanned::new(Value::Int(i64::try_from(round).unwrap_or(i64::MAX)), name.span);
            let (key, repeats) = (ROUND.to_owned(), Some(name.text.clone()));
            let coordinate = Coordinate { key, name: round.to_string(), value, is_named: false, repeats };
            outer.push([variant.as_slice(), &[coordinate]].concat());
        }
    }
    outer
}

/// Reports names that `carry` and `next` do not share, or that nodes have, and outputs that rounds cannot hand on. `own`:
/// the ids of the loop's nodes, without rounds; `is_whole`: all files with its nodes were read.
fn check(what: &str, carry: &[Entry], next: &[Entry], own: &BTreeSet<String>, is_whole: bool, problems: &mut Problems) {
    let started: BTreeSet<&str> = carry.iter().map(|entry| entry.name.text.as_str()).collect();
    let handed: BTreeSet<&str> = next.iter().map(|entry| entry.name.text.as_str()).collect();
    let lacking: Vec<&Entry> = carry.iter().filter(|entry| !handed.contains(entry.name.text.as_str())).collect();
    if let Some(first) = lacking.first() {
        let names: Vec<String> = lacking.iter().map(|entry| format!("`{}`", entry.name.text)).collect();
        let wanted: Vec<String> = lacking.iter().map(|entry| format!("{}: NODE.PORT", entry.name.text)).collect();
        let fault = bad(first.name.span, format!("{what} carries {}, which `next` lacks", names.join(" and ")));
        let wanted = wanted.join(", ");
        problems.push(fault.help(format!("name what the next round starts from: `next: {{{wanted}}}`")));
    }
    for Entry { name, output, span } in carry {
        if own.contains(&name.text) {
            let fault = bad(name.span, format!("`{}` is a node of {what} and something that it carries", name.text));
            problems.push(fault.help("rename one of them"));
        }
        if own.contains(base(output)) {
            let fault = bad(*span, format!("the first round cannot start from `{output}`, a node of {what} itself"));
            problems.push(fault.help("name a node outside the loop; `next` names what the later rounds start from"));
        }
    }
    for Entry { name, output, span } in next {
        if !started.contains(name.text.as_str()) {
            let fault = bad(name.span, format!("`next` has `{0}`, but {what} does not carry `{0}`", name.text));
            let known: Vec<&str> = started.iter().copied().collect();
            problems.push(fault.help_some(suggest::advice(&name.text, &known)));
        }
        // A node that seems to be missing may be in a file that could not be read.
        if is_whole && !own.contains(base(output)) {
            let known: Vec<&str> = own.iter().map(String::as_str).collect();
            let fault = bad(*span, format!("`{output}` is no node of {what}"));
            problems.push(fault.help(suggest::suggest(base(output), &known, "nodes of the loop")));
        }
    }
}

/// Replaces the names of what is carried by the outputs that the node's round starts from.
fn hand_on(node: &mut NodeSpec, carry: &[Entry], next: &[Entry], problems: &mut Problems) {
    let Some((_, round)) = node.round() else { return };
    // None in the first round, which starts from `carry`.
    let before = round.checked_sub(1);
    let entries = if before.is_some() { next } else { carry };
    for binding in node.bindings_mut() {
        binding.references.retain_mut(|reference| {
            // A decision reads the one of the round before.
            if reference.round.is_some() {
                return true;
            }
            let name = base(&reference.node);
            let Some(Entry { output, span, .. }) = entries.iter().find(|entry| entry.name.text == name) else {
                return true;
            };
            if reference.node != name {
                let fault = bad(reference.span, format!("`{name}` is one output, which the round before hands on"));
                problems.push(fault.help(format!("write `{name}`")));
            }
            *reference = Reference { node: output.clone(), round: before, span: *span, ..reference.clone() };
            // In the first round, `null` leaves the input open.
            !output.is_empty()
        });
    }
    node.from.retain(|binding| !binding.references.is_empty());
    let mut services = node.services.iter();
    if let Some(service) = services.find(|service| service.from.iter().any(|from| from.references.is_empty())) {
        let message = format!("the service `{}` has nothing to serve in the first round", service.name);
        problems.push(bad(service.span, message).help("name a node in `carry` instead of `null`"));
    }
}
