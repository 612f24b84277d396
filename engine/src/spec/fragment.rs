//! Reads one file and its includes: applies params, then reads the keys.

use super::field::{self, Fields, take};
use super::include::{self, Place};
use super::model::NodeSpec;
use super::params::{Over, params};
use super::pipeline_test::{self, TestCase};
use super::rounds::Loop;
use super::schedule::{self, Schedule};
use super::scope::{Scope, Shared};
use super::value::{Spanned, Value};
use super::{node, repeat, syntax};
use crate::diagnostic::{Diagnostic, Span};
use crate::endpoint::{BudgetLimits, PeriodLimits};

const KEYS: &[&str] =
    &["name", "description", "params", "nodes", "repeat", "include", "schedule", "budget", "on_budget", "tests"];

/// One file after reading: its own nodes and those of its includes.
#[derive(Default)]
pub(super) struct Fragment {
    pub(super) name: Option<String>,
    pub(super) nodes: Vec<NodeSpec>,
    pub(super) loops: Vec<Loop>,
    pub(super) params: Option<Spanned>,
    pub(super) schedule: Option<Schedule>,
    pub(super) budget: BudgetLimits,
    pub(super) periods: PeriodLimits,
    pub(super) finishes: bool,
    pub(super) tests: Vec<TestCase>,
}

/// Reads one file and its includes.
pub(super) fn fragment(place: &Place, over: Over<'_>, shared: &mut Shared<'_>) -> Option<Fragment> {
    let text = shared.sources.get(place.file).map(|(_, text)| text.to_owned()).unwrap_or_default();
    let root = syntax::parse(place.file, &text, &mut shared.problems)?;
    if !matches!(root.value, Value::Map(_)) {
        let fault = field::wrong_type(&root, "a pipeline", "a map");
        shared.report(fault.help("a pipeline has at least `name:` and `nodes:`"));
        return None;
    }
    let mut fields = field::fields(root, "a pipeline", KEYS, &mut shared.problems);
    // Before all other keys: they may refer to params.
    let raw = params(take(&mut fields, "params"), place.file, over, shared);
    let mut scope = Scope::new(&raw);
    let resolved = scope.resolve_all(shared);
    let mut fragment = Fragment { params: Some(resolved), ..Fragment::default() };
    head(&mut fragment, &mut fields, &mut scope, shared);
    let (nodes, repeats) = (take(&mut fields, "nodes"), take(&mut fields, "repeat"));
    if let Some(included) = take(&mut fields, "include") {
        add_files(&mut fragment, included, place, &mut scope, shared);
    } else if nodes.is_none() && repeats.is_none() {
        let fault =
            Diagnostic::error("missing-key", "the pipeline has no `nodes:`").at(Span::new(place.file, 0, 0), "");
        shared.report(
            fault.help("write `nodes:` and below it one entry for each step: `passages: {op: OPERATOR, from: corpus}`"),
        );
    }
    let entries = nodes.and_then(|nodes| field::map(nodes, "`nodes`", &mut shared.problems)).unwrap_or_default();
    // Without a loop around them, all nodes have one empty list of coordinates.
    fragment.nodes.extend(node::all(entries, &[Vec::new()], &mut scope, shared));
    if let Some(repeats) = repeats {
        let (nodes, loops) = repeat::all(repeats, place, &mut scope, shared);
        fragment.nodes.extend(nodes);
        fragment.loops.extend(loops);
    }
    Some(fragment)
}

fn head(fragment: &mut Fragment, fields: &mut Fields, scope: &mut Scope<'_>, shared: &mut Shared<'_>) {
    if let Some(name) = take_resolved(fields, "name", scope, shared) {
        fragment.name = field::text(&name, "`name`", &mut shared.problems);
    }
    if let Some(description) = take_resolved(fields, "description", scope, shared) {
        field::text(&description, "`description`", &mut shared.problems);
    }
    if let Some(schedule) = take_resolved(fields, "schedule", scope, shared) {
        fragment.schedule = schedule::read(schedule, shared);
    }
    if let Some(budget) = take_resolved(fields, "budget", scope, shared) {
        (fragment.budget, fragment.periods) = self::budget(budget, shared);
    }
    if let Some(on_budget) = take_resolved(fields, "on_budget", scope, shared) {
        let word = field::choice(&on_budget, "`on_budget`", &["stop", "finish"], &mut shared.problems);
        fragment.finishes = word == Some("finish");
    }
    if let Some(tests) = take_resolved(fields, "tests", scope, shared) {
        fragment.tests = pipeline_test::read(tests, &mut shared.problems);
    }
}

fn take_resolved(fields: &mut Fields, name: &str, scope: &mut Scope<'_>, shared: &mut Shared<'_>) -> Option<Spanned> {
    let mut value = take(fields, name)?;
    scope.apply(&mut value, None, shared);
    Some(value)
}

/// Reads the nodes and loops of all files named by `include:`.
fn add_files(to: &mut Fragment, value: Spanned, from: &Place, scope: &mut Scope<'_>, shared: &mut Shared<'_>) {
    for wanted in include::files(value, scope, shared) {
        let Some(place) = include::open(&wanted, from, shared) else { continue };
        let Some(file) = fragment(&place, Over::Include(wanted.params), shared) else {
            // Its nodes are missing now: references to them are not reported.
            shared.unread += 1;
            continue;
        };
        let (nodes, loops) = include::prefixed(file.nodes, file.loops, &wanted.prefix);
        to.nodes.extend(nodes);
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
