//! Reads one entry of `nodes:`.

use super::budget::weight;
use super::coordinate::{self, Coordinate};
use super::field::{self, Problems, refuse, take, take_as, take_whole};
use super::model::{NodeSpec, OnError, Resources};
use super::scope::{Scope, Shared};
use super::value::{Key, Spanned, Value};
use super::{checks, matrix, reference, seed, service};
use crate::diagnostic::{Diagnostic, Span};
use crate::node_id::NodeId;
use crate::operator::RetryPolicy;

/// Advice for a misspelt `op`.
const MEANT_OP: &str = "did you mean `op`?";

const KEYS: &[&str] =
    &["op", "from", "with", "matrix", "services", "resources", "retry", "on_error", "freeze", "seed", "checks"];

/// Keys that have other names in other tools.
const SAME: &[(&str, &str)] = &[
    ("operator", "op"),
    ("uses", "op"),
    ("type", "op"),
    ("input", "from"),
    ("inputs", "from"),
    ("needs", "from"),
    ("params", "with"),
    ("args", "with"),
    ("config", "with"),
];

/// Returns the nodes of all entries for each of the outer coordinates (those of a loop; outside loops, none): one for each
/// entry, or one per combination of its matrix.
pub(super) fn all(entries: Vec<(Key, Spanned)>, outer: &[Vec<Coordinate>], scope: &mut Scope<'_, '_>) -> Vec<NodeSpec> {
    let mut parts = Vec::with_capacity(entries.len());
    for (id, mut body) in entries {
        let matrix = match &mut body.value {
            Value::Map(fields) => scope.take(fields, "matrix"),
            _ => None,
        };
        parts.push((id, body, matrix));
    }
    // A matrix may name that of a node further down: all are read before any is expanded.
    let matrices = parts.iter_mut().filter_map(|(id, _, matrix)| Some((&id.text, matrix.as_mut()?)));
    matrix::take_over(matrices.collect(), &mut scope.shared.problems);
    let mut written = Vec::with_capacity(parts.len());
    for (id, body, matrix) in parts {
        written.extend(written_node(id, body, matrix, outer, scope.shared));
    }
    let mut nodes = Vec::new();
    for outer in outer {
        for node in &written {
            for variant in &node.variants {
                let (mut body, coordinates) = (node.body.clone(), [outer.as_slice(), variant].concat());
                scope.apply(&mut body, &coordinates);
                nodes.extend(one(&node.id, body, coordinates, &mut scope.shared.problems));
            }
        }
    }
    nodes
}

/// A node as written.
struct Written {
    id: Key,
    body: Spanned,
    /// The combinations of its matrix; one empty combination without one.
    variants: Vec<Vec<Coordinate>>,
}

/// Returns `None` if its variants would copy too many values.
fn written_node(
    id: Key,
    body: Spanned,
    matrix: Option<Spanned>,
    outer: &[Vec<Coordinate>],
    shared: &mut Shared<'_>,
) -> Option<Written> {
    field::node_id(&id.text, id.span, &mut shared.problems);
    let copies = matrix.is_some() || outer.len() > 1;
    let (span, variants) = match matrix {
        Some(matrix) => (matrix.span, matrix::combinations(&matrix, &mut shared.problems)),
        None => (id.span, vec![Vec::new()]),
    };
    // All variants of a matrix have the same keys, and so have all rounds of a loop.
    if let (Some(own), Some(of_loop)) = (variants.first(), outer.first()) {
        for Coordinate { key, .. } in of_loop {
            if own.iter().any(|coordinate| coordinate.key == *key) {
                let message = format!("the loop around this node has a key `{key}` already");
                shared.report(Diagnostic::error("bad-matrix", message).at(span, "").help("rename this one"));
            }
        }
    }
    let copied = weight(&body).saturating_mul(variants.len()).saturating_mul(outer.len());
    // A node that is written once costs what its text costs, which is limited.
    if copies && !shared.budget.charge(copied) {
        let fault = Diagnostic::error("too-many-values", "matrices and rounds expand to too many values");
        return shared.refuse(fault.at(span, ""));
    }
    Some(Written { id, body, variants })
}

fn one(id: &Key, body: Spanned, coordinates: Vec<Coordinate>, problems: &mut Problems) -> Option<NodeSpec> {
    let what = format!("the node `{}`", id.text);
    if body.value == Value::Null {
        return refuse(problems, missing_operator(id, &what));
    }
    if let Value::String(word) = &body.value {
        let fault = field::wrong_type(&body, &what, "a map");
        return refuse(problems, fault.help(format!("write `{}: {{op: {word}}}`", id.text)));
    }
    let known = problems.len();
    let mut fields = field::map(body, &what, problems).unwrap_or_default();
    for (key, _) in fields.iter().filter(|(key, _)| !KEYS.contains(&key.text.as_str())) {
        let ours = SAME.iter().find(|(theirs, _)| *theirs == key.text);
        let help = ours.map(|(_, ours)| format!("did you mean `{ours}`?"));
        problems.push(field::unknown_key(key, &what, KEYS).help_some(help));
    }
    let Some(operator) = take(&mut fields, "op") else {
        // A body that is no map, and a misspelt `op`, were reported.
        let mut reported = problems[known..].iter();
        if !reported.any(|problem| problem.code == "wrong-type" || problem.help.as_deref() == Some(MEANT_OP)) {
            problems.push(missing_operator(id, &what));
        }
        return None;
    };
    let name = field::text(&operator, "`op`", problems)?;
    let from = take(&mut fields, "from");
    let settings = settings(&fields);
    let on_error = take(&mut fields, "on_error");
    let mut with = take(&mut fields, "with").unwrap_or_else(|| Spanned::empty_map(id.span));
    if with.value == Value::Null {
        with = Spanned::empty_map(with.span);
    } else if !matches!(with.value, Value::Map(_) | Value::Broken) {
        problems.push(field::wrong_type(&with, "`with`", "a map"));
    }
    let services = take(&mut fields, "services").map(|value| service::read(value, problems)).unwrap_or_default();
    service::check_references(&with, &services, problems);
    Some(NodeSpec {
        settings,
        services,
        id: NodeId::new(&id.text, &coordinate::names(&coordinates)),
        id_span: id.span,
        operator: name,
        operator_span: operator.span,
        from_span: from.as_ref().map(|from| from.span),
        from: from.map(|from| reference::bindings(&from, problems)).unwrap_or_default(),
        with,
        resources: take(&mut fields, "resources").map(|value| resources(value, problems)).unwrap_or_default(),
        retry: take(&mut fields, "retry").map(|value| retry(value, problems)).unwrap_or_default(),
        on_error: field::named(on_error.as_ref(), "`on_error`", &OnError::ALL, OnError::name, problems)
            .unwrap_or_default(),
        freeze: take_as(&mut fields, "freeze", field::flag, problems).unwrap_or_default(),
        seed: take(&mut fields, "seed").and_then(|v| seed::read(&v, problems)).unwrap_or_default(),
        matrix: coordinates,
        keep: None,
        checks: take(&mut fields, "checks").map(|value| checks::read(&value, problems)).unwrap_or_default(),
    })
}

fn missing_operator(id: &Key, what: &str) -> Diagnostic {
    let fault = Diagnostic::error("missing-key", format!("{what} has no operator")).at(id.span, "");
    fault.help("write `op: OPERATOR`")
}

/// Returns the execution settings that are written, with their locations.
fn settings(fields: &[(Key, Spanned)]) -> Vec<(String, Span)> {
    let mut settings = Vec::new();
    for name in ["retry", "on_error", "resources"] {
        let Some((key, value)) = fields.iter().find(|(key, _)| key.text == name) else { continue };
        if name == "resources" {
            settings.extend(value.entries().iter().map(|(key, _)| (key.text.clone(), key.span)));
        } else {
            settings.push((key.text.clone(), key.span));
        }
    }
    settings
}

fn resources(value: Spanned, problems: &mut Problems) -> Resources {
    const KEYS: &[&str] = &["concurrency", "threads", "gpus", "memory", "fallback", "isolate", "timeout"];
    let mut fields = field::fields(value, "`resources`", KEYS, problems);
    Resources {
        concurrency: take_whole(&mut fields, "concurrency", 1, problems).map(|number| number as usize),
        threads: take_whole(&mut fields, "threads", 1, problems).map(|number| number as usize),
        gpus: take_whole(&mut fields, "gpus", 0, problems).map_or(0, saturated),
        memory: take_as(&mut fields, "memory", field::bytes, problems),
        cpu_fallback: take_as(&mut fields, "fallback", falls_back, problems).unwrap_or_default(),
        isolate: take_as(&mut fields, "isolate", field::flag, problems).unwrap_or_default(),
        timeout: take_as(&mut fields, "timeout", field::duration, problems),
    }
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn falls_back(value: &Spanned, what: &str, problems: &mut Problems) -> Option<bool> {
    if field::text(value, what, problems)? == "cpu" {
        return Some(true);
    }
    let fault = Diagnostic::error("unknown-word", "`fallback` can only be `cpu`").at(value.span, "");
    refuse(problems, fault.help("remove it if the node must not run without a GPU"))
}

fn retry(value: Spanned, problems: &mut Problems) -> RetryPolicy {
    const KEYS: &[&str] = &["max_attempts", "backoff", "max_backoff", "stop_after"];
    let mut fields = field::fields(value, "`retry`", KEYS, problems);
    let default = RetryPolicy::default();
    let attempts = take_whole(&mut fields, "max_attempts", 1, problems);
    // Before the durations: where all values are from one param, this is the order in which they are reported.
    let stop_after = take_whole(&mut fields, "stop_after", 0, problems);
    RetryPolicy {
        max_attempts: attempts.map_or(default.max_attempts, saturated),
        backoff: take_as(&mut fields, "backoff", field::duration, problems).unwrap_or(default.backoff),
        max_backoff: take_as(&mut fields, "max_backoff", field::duration, problems).unwrap_or(default.max_backoff),
        stop_after: stop_after.map_or(default.stop_after, saturated),
        stated: true,
    }
}
