//! Reads one file and its includes: applies params, then reads the keys.

use super::field::{self, take};
use super::include::{self, Place, Wanted};
use super::model::NodeSpec;
use super::node;
use super::params::{Over, params};
use super::pipeline_test;
use super::pipeline_test::TestCase;
use super::repeat;
use super::rounds::Loop;
use super::schedule::{self, Schedule};
use super::scope::{Scope, Shared};
use super::syntax;
use super::value::{Key, Spanned, Value};
use crate::diagnostic::{Diagnostic, FileId, Span};
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
    let raw = params(take(&mut fields, "params"), place.file, over, shared);
    let mut scope = Scope::new(&raw);
    let resolved = scope.resolve_all(shared);
    let mut fragment = Fragment { params: Some(resolved), ..Fragment::default() };
    head(&mut fragment, &mut fields, &mut scope, shared);
    let included = take(&mut fields, "include");
    if let Some(included) = included.as_ref() {
        (fragment.nodes, fragment.loops) = included_nodes(included.clone(), place, &mut scope, shared);
    }
    let (nodes, repeats) = (take(&mut fields, "nodes"), take(&mut fields, "repeat"));
    if nodes.is_none() && included.is_none() && repeats.is_none() {
        shared.report(no_nodes(place.file));
    }
    fragment.nodes.extend(own_nodes(nodes, &mut scope, shared));
    if let Some(repeats) = repeats {
        let (nodes, loops) = repeat::all(repeats, place, &mut scope, shared);
        fragment.nodes.extend(nodes);
        fragment.loops.extend(loops);
    }
    Some(fragment)
}

fn head(fragment: &mut Fragment, fields: &mut Vec<(Key, Spanned)>, scope: &mut Scope<'_>, shared: &mut Shared<'_>) {
    let mut field = |name: &str, shared: &mut Shared<'_>| {
        let mut value = take(fields, name)?;
        scope.apply(&mut value, None, shared);
        Some(value)
    };
    fragment.name = field("name", shared).and_then(|v| field::text(&v, "`name`", &mut shared.problems));
    field("description", shared).and_then(|v| field::text(&v, "`description`", &mut shared.problems));
    let written = field("schedule", shared);
    fragment.schedule = written.and_then(|written| schedule::read(written, shared));
    let budget = field("budget", shared);
    (fragment.budget, fragment.periods) = budget.map(|budget| self::budget(budget, shared)).unwrap_or_default();
    let on_budget = field("on_budget", shared);
    let word = on_budget.and_then(|on| field::choice(&on, "`on_budget`", &["stop", "finish"], &mut shared.problems));
    fragment.finishes = word == Some("finish");
    let tests = field("tests", shared);
    fragment.tests = tests.map(|tests| pipeline_test::read(tests, &mut shared.problems)).unwrap_or_default();
}

/// Reads the nodes and loops of all files named by `include:`.
fn included_nodes(
    value: Spanned,
    from: &Place,
    scope: &mut Scope<'_>,
    shared: &mut Shared<'_>,
) -> (Vec<NodeSpec>, Vec<Loop>) {
    let wanted = include::files(value, scope, shared);
    let (nodes, loops): (Vec<_>, Vec<_>) = wanted.into_iter().map(|wanted| nodes_of(wanted, from, shared)).unzip();
    (nodes.concat(), loops.concat())
}

fn nodes_of(wanted: Wanted, from: &Place, shared: &mut Shared<'_>) -> (Vec<NodeSpec>, Vec<Loop>) {
    let Some(place) = include::open(&wanted, from, shared) else { return Default::default() };
    let fragment = fragment(&place, Over::Include(wanted.params), shared);
    shared.unread += usize::from(fragment.is_none());
    let fragment = fragment.unwrap_or_default();
    include::prefixed(fragment.nodes, fragment.loops, &wanted.prefix)
}

fn own_nodes(nodes: Option<Spanned>, scope: &mut Scope<'_>, shared: &mut Shared<'_>) -> Vec<NodeSpec> {
    let entries = nodes.and_then(|nodes| field::map(nodes, "`nodes`", &mut shared.problems)).unwrap_or_default();
    node::all(entries, &[Vec::new()], scope, shared)
}

fn no_nodes(file: FileId) -> Diagnostic {
    Diagnostic::error("missing-key", "the pipeline has no `nodes:`")
        .at(Span::new(file, 0, 0), "")
        .help("write `nodes:` and below it one entry for each step: `passages: {op: OPERATOR, from: corpus}`")
}

/// Reads `budget: {calls: 500, tokens: 1.5M, cost: 2.50, per_day: {…}, per_month: {…}}`.
fn budget(value: Spanned, shared: &mut Shared<'_>) -> (BudgetLimits, PeriodLimits) {
    let mut value = value;
    let mut period = |name: &str, shared: &mut Shared<'_>| {
        let Value::Map(entries) = &mut value.value else { return None };
        Some(limits(take(entries, name)?, &format!("`{name}`"), &BudgetLimits::NAMES, shared))
    };
    let periods = PeriodLimits { per_day: period("per_day", shared), per_month: period("per_month", shared) };
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
