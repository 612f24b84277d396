//! A file and all that it includes, to one [`Spec`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::field::{self, take};
use super::include;
use super::node;
use super::pipeline::{NodeSpec, Overrides, Spec};
use super::reference;
use super::schedule::{self, Schedule};
use super::scope::{Scope, Shared};
use super::set;
use super::syntax;
use super::value::{Key, Spanned, Value};
use crate::diagnostic::{Diagnostic, FileId, Span};
use crate::operator::Budget;

const KEYS: &[&str] = &["name", "description", "params", "nodes", "include", "schedule", "budget", "tests"];

/// One file, read: its own nodes and those of what it includes.
#[derive(Default)]
pub(super) struct Fragment {
    name: Option<String>,
    description: Option<String>,
    pub(super) nodes: Vec<NodeSpec>,
    params: Option<Spanned>,
    schedule: Option<Schedule>,
    budget: Budget,
    tests: Option<Spanned>,
}

/// Where a file stands in the chain of includes.
pub(super) struct Place<'p> {
    pub(super) path: &'p Path,
    pub(super) file: FileId,
    pub(super) chain: &'p [PathBuf],
}

/// Params that are laid over those that the file declares.
pub(super) enum Over<'o> {
    CommandLine(&'o Overrides),
    Include(Spanned),
}

/// Reads a whole pipeline.
pub(super) fn pipeline(path: &Path, file: FileId, overrides: &Overrides, shared: &mut Shared<'_>) -> Option<Spec> {
    let chain = [std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())];
    let place = Place { path, file, chain: &chain };
    let mut root = fragment(&place, Over::CommandLine(overrides), shared)?;
    check_ids(&mut root.nodes, shared);
    reference::link(&mut root.nodes, &mut shared.problems);
    let fallback = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    Some(Spec {
        name: root.name.unwrap_or(fallback),
        description: root.description,
        files: shared.sources.paths().filter(|path| path.is_file()).map(Path::to_owned).collect(),
        secrets: secrets(&root.nodes, shared),
        nodes: root.nodes,
        params: root.params.map_or(serde_json::Value::Null, |params| params.to_json()),
        overrides: overrides.clone(),
        schedule: root.schedule,
        budget: root.budget,
        tests: root.tests,
    })
}

/// Reads one file and what it includes.
pub(super) fn fragment(place: &Place<'_>, over: Over<'_>, shared: &mut Shared<'_>) -> Option<Fragment> {
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
        fragment.nodes = include::read(included.clone(), place, &mut scope, shared);
    }
    let nodes = take(&mut fields, "nodes");
    if nodes.is_none() && included.is_none() {
        shared.report(no_nodes(place.file));
    }
    fragment.nodes.extend(own_nodes(nodes, &mut scope, shared));
    Some(fragment)
}

fn params(value: Option<Spanned>, file: FileId, over: Over<'_>, shared: &mut Shared<'_>) -> Spanned {
    let nowhere = Span::new(file, 0, 0);
    let span = value.as_ref().map_or(nowhere, |value| value.span);
    let entries = value.and_then(|value| field::map(value, "`params`", &mut shared.problems)).unwrap_or_default();
    let mut params = Spanned::new(Value::Map(entries), span);
    match over {
        Over::CommandLine(overrides) => set::apply(&mut params, overrides, shared),
        Over::Include(over) => set::lay(&mut params, over, &mut Vec::new(), shared),
    }
    params
}

fn head(fragment: &mut Fragment, fields: &mut Vec<(Key, Spanned)>, scope: &mut Scope<'_>, shared: &mut Shared<'_>) {
    let mut field = |name: &str, shared: &mut Shared<'_>| {
        let mut value = take(fields, name)?;
        scope.apply(&mut value, None, shared);
        Some(value)
    };
    fragment.name = field("name", shared).and_then(|v| field::text(&v, "`name`", &mut shared.problems));
    let description = field("description", shared);
    fragment.description = description.and_then(|v| field::text(&v, "`description`", &mut shared.problems));
    let written = field("schedule", shared);
    fragment.schedule = written.and_then(|written| schedule::read(written, shared));
    let budget = field("budget", shared);
    fragment.budget = budget.map(|budget| self::budget(budget, shared)).unwrap_or_default();
    fragment.tests = field("tests", shared);
    if let Some(tests) = &fragment.tests {
        check_tests(tests, shared);
    }
}

fn own_nodes(nodes: Option<Spanned>, scope: &mut Scope<'_>, shared: &mut Shared<'_>) -> Vec<NodeSpec> {
    let entries = nodes.and_then(|nodes| field::map(nodes, "`nodes`", &mut shared.problems)).unwrap_or_default();
    entries.into_iter().flat_map(|(id, body)| node::read(&id, body, scope, shared)).collect()
}

fn no_nodes(file: FileId) -> Diagnostic {
    Diagnostic::error("missing-key", "the pipeline has no `nodes:`")
        .at(Span::new(file, 0, 0), "")
        .help("write `nodes:` and below it one entry for each step: `passages: {op: OPERATOR, from: corpus}`")
}

/// `budget: {calls: 500, tokens: 1.5M, cost: 2.50}`.
fn budget(value: Spanned, shared: &mut Shared<'_>) -> Budget {
    let mut budget = Budget::default();
    for (name, amount) in field::fields(value, "`budget`", &Budget::NAMES, &mut shared.problems) {
        let what = format!("`{}`", name.text);
        let Some(text) = field::text(&amount, &what, &mut shared.problems) else { continue };
        if let Err(message) = budget.set(&name.text, &text)
            && Budget::NAMES.contains(&name.text.as_str())
        {
            shared.report(Diagnostic::error("bad-value", message).at(amount.span, ""));
        }
    }
    budget
}

fn check_tests(tests: &Spanned, shared: &mut Shared<'_>) {
    if !matches!(tests.value, Value::List(_) | Value::Map(_) | Value::Null | Value::Broken) {
        shared.report(field::wrong_type(tests, "`tests`", "a list of tests"));
    }
}

/// Reports ids that two nodes have, keeping the first of them.
fn check_ids(nodes: &mut Vec<NodeSpec>, shared: &mut Shared<'_>) {
    let mut seen: BTreeMap<String, Span> = BTreeMap::new();
    nodes.retain(|node| {
        let Some(first) = seen.get(&node.id) else {
            seen.insert(node.id.clone(), node.id_span);
            return true;
        };
        let fault = Diagnostic::error("duplicate-node", format!("there are two nodes `{}`", node.id));
        let fault = fault.at(node.id_span, "again here").at(*first, "first here");
        shared.report(fault.help("rename one of them, or include the file with a `prefix:`"));
        false
    });
}

fn secrets(nodes: &[NodeSpec], shared: &Shared<'_>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    if !shared.secrets.is_empty() {
        for node in nodes {
            collect_secrets(&node.with, &mut found);
        }
    }
    found
}

fn collect_secrets(value: &Spanned, found: &mut BTreeSet<String>) {
    match &value.value {
        Value::String(text) => {
            let name = text.strip_prefix("${secret:").and_then(|rest| rest.strip_suffix('}'));
            found.extend(name.map(str::to_owned));
        }
        Value::List(items) => {
            for item in items {
                collect_secrets(item, found);
            }
        }
        Value::Map(entries) => {
            for (_, value) in entries {
                collect_secrets(value, found);
            }
        }
        _ => {}
    }
}
