//! Reads a file and its includes into one [`Spec`]: applies params, reads the keys of each file, then links the nodes of
//! all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::coordinate::base;
use super::field::{self, Fields, take};
use super::include::{self, Place};
use super::model::{NodeSpec, Overrides, Spec};
use super::rounds::Loop;
use super::scope::{Scope, Shared};
use super::set::{Over, params};
use super::value::{Spanned, Value};
use super::{node, pipeline_test, reference, repeat, rounds, schedule, syntax};
use crate::diagnostic::{Diagnostic, FileId, Span};
use crate::endpoint::{BudgetLimits, PeriodLimits};

const KEYS: &[&str] =
    &["name", "description", "params", "nodes", "repeat", "include", "schedule", "budget", "on_budget", "tests"];

/// One file after reading: its own nodes and those of its includes.
#[derive(Default)]
struct Fragment {
    name: Option<String>,
    /// What the file says beside its name.
    spec: Spec,
    loops: Vec<Loop>,
}

/// Reads a whole pipeline.
pub(super) fn pipeline(path: &Path, file: FileId, overrides: &Overrides, shared: &mut Shared<'_>) -> Option<Spec> {
    let canonical = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let place = Place { path: path.to_owned(), file, chain: vec![canonical] };
    let Fragment { name, mut spec, loops } = fragment(&place, Over::CommandLine(overrides), shared)?;
    // Before references are linked: each name then stands for one node, matrix or loop.
    let duplicates = check_ids(&mut spec.nodes, shared);
    rounds::check_names(&loops, &spec.nodes, &mut shared.problems);
    reference::link(&mut spec.nodes, &loops, &mut shared.problems);
    // A pipeline without a name is called like its file.
    let fallback = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    Some(Spec {
        name: name.unwrap_or(fallback),
        // Overrides are sources, too, and no files.
        files: shared.sources.paths().filter(|path| path.is_file()).map(Path::to_owned).collect(),
        overrides: overrides.clone(),
        loops: rounds::decided(&loops, &spec.nodes),
        handed_on: rounds::handed_on(&loops, &spec.nodes),
        duplicates,
        lacks_files: shared.unread > 0,
        ..spec
    })
}

/// Reads one file and its includes.
fn fragment(place: &Place, over: Over<'_>, shared: &mut Shared<'_>) -> Option<Fragment> {
    let root = syntax::parse(place.file, shared.sources, &mut shared.problems)?;
    if !matches!(root.value, Value::Map(_)) {
        let fault = field::wrong_type(&root, "a pipeline", "a map");
        return shared.refuse(fault.help("a pipeline has at least `name:` and `nodes:`"));
    }
    let mut fields = field::fields(root, "a pipeline", KEYS, &mut shared.problems);
    // Before all other keys: they may refer to params.
    let raw = params(take(&mut fields, "params"), place.file, over, shared);
    let mut scope = Scope::new(&raw, shared);
    let mut fragment = Fragment::default();
    fragment.spec.params = scope.resolve_all().to_json();
    head(&mut fragment, &mut fields, &mut scope);
    let (nodes, repeats) = (take(&mut fields, "nodes"), take(&mut fields, "repeat"));
    if let Some(included) = scope.take(&mut fields, "include") {
        add_files(&mut fragment, included, place, scope.shared);
    } else if nodes.is_none() && repeats.is_none() {
        let fault =
            Diagnostic::error("missing-key", "the pipeline has no `nodes:`").at(Span::new(place.file, 0, 0), "");
        scope.shared.report(
            fault.help("write `nodes:` and below it one entry for each step: `passages: {op: OPERATOR, from: corpus}`"),
        );
    }
    let entries = nodes.and_then(|nodes| field::map(nodes, "`nodes`", &mut scope.shared.problems)).unwrap_or_default();
    // Without a loop around them, all nodes have one empty list of coordinates.
    fragment.spec.nodes.extend(node::all(entries, &[Vec::new()], &mut scope));
    if let Some(repeats) = repeats {
        let (nodes, loops) = repeat::all(repeats, place, &mut scope);
        fragment.spec.nodes.extend(nodes);
        fragment.loops.extend(loops);
    }
    Some(fragment)
}

fn head(fragment: &mut Fragment, fields: &mut Fields, scope: &mut Scope<'_, '_>) {
    let name = scope.take(fields, "name");
    fragment.name = name.and_then(|name| field::text(&name, "`name`", &mut scope.shared.problems));
    if let Some(description) = scope.take(fields, "description") {
        field::text(&description, "`description`", &mut scope.shared.problems);
    }
    let spec = &mut fragment.spec;
    spec.schedule = scope.take(fields, "schedule").and_then(|value| schedule::read(value, scope.shared));
    if let Some(budget) = scope.take(fields, "budget") {
        (spec.budget, spec.periods) = self::budget(budget, scope.shared);
    }
    if let Some(on_budget) = scope.take(fields, "on_budget") {
        let word = field::choice(&on_budget, "`on_budget`", &["stop", "finish"], &mut scope.shared.problems);
        spec.finishes = word == Some("finish");
    }
    if let Some(tests) = scope.take(fields, "tests") {
        spec.tests = pipeline_test::read(tests, &mut scope.shared.problems);
    }
}

/// Reads the nodes and loops of all files named by `include:`.
fn add_files(to: &mut Fragment, value: Spanned, from: &Place, shared: &mut Shared<'_>) {
    for wanted in include::files(value, shared) {
        let place = include::open(&wanted, from, shared);
        let file = place.and_then(|place| fragment(&place, Over::Include(wanted.params), shared));
        let Some(Fragment { mut spec, mut loops, .. }) = file else {
            // Its nodes are missing now: references to them are not reported.
            shared.unread += 1;
            continue;
        };
        include::prefix(&mut spec.nodes, &mut loops, &wanted.prefix);
        to.spec.nodes.extend(spec.nodes);
        to.loops.extend(loops);
    }
}

/// Reads `budget: {calls: 500, tokens: 1.5M, cost: 2.50, per_day: {…}, per_month: {…}}`.
fn budget(mut value: Spanned, shared: &mut Shared<'_>) -> (BudgetLimits, PeriodLimits) {
    let mut periods = PeriodLimits::default();
    if let Value::Map(entries) = &mut value.value {
        // Taken out first: the values of the other keys are amounts.
        let (per_day, per_month) = (take(entries, "per_day"), take(entries, "per_month"));
        periods.per_day = per_day.map(|value| limits(value, "`per_day`", &BudgetLimits::NAMES, shared));
        periods.per_month = per_month.map(|value| limits(value, "`per_month`", &BudgetLimits::NAMES, shared));
    }
    let names = [&BudgetLimits::NAMES[..], &["per_day", "per_month"]].concat();
    (limits(value, "`budget`", &names, shared), periods)
}

fn limits(value: Spanned, what: &str, names: &[&str], shared: &mut Shared<'_>) -> BudgetLimits {
    let mut budget = BudgetLimits::default();
    for (name, amount) in field::fields(value, what, names, &mut shared.problems) {
        if !BudgetLimits::NAMES.contains(&name.text.as_str()) {
            continue;
        }
        let what = format!("`{}`", name.text);
        let Some(text) = field::text(&amount, &what, &mut shared.problems) else { continue };
        if let Err(message) = budget.set(&name.text, &text) {
            shared.report(Diagnostic::error("bad-value", message).at(amount.span, ""));
        }
    }
    budget
}

/// Reports duplicate node ids and keeps the first node of each. A node and the variants or rounds of another one may not
/// have the same name either: a reference by the name would mean both. Returns these names.
fn check_ids(nodes: &mut Vec<NodeSpec>, shared: &mut Shared<'_>) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, Span> = BTreeMap::new();
    let mut duplicates = BTreeSet::new();
    nodes.retain(|node| {
        let name = base(&node.id);
        let first = *seen.entry(name.to_owned()).or_insert(node.id_span);
        // The variants of a matrix and the rounds of a loop have one name, and one place in the text.
        if first == node.id_span {
            return true;
        }
        let fault = Diagnostic::error("duplicate-node", format!("duplicate node `{name}`"));
        let fault = fault.at(node.id_span, "again here").at(first, "first here");
        shared.report(fault.help("rename one of them, or include the file with a `prefix:`"));
        duplicates.insert(name.to_owned());
        false
    });
    duplicates
}
