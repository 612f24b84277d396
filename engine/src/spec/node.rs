//! Reads one entry of `nodes:`.

use super::budget::weight;
use super::checks;
use super::coordinate::{self, Coordinate};
use super::field::{self, Problems, take};
use super::matrix;
use super::model::{NodeSpec, OnError, Resources};
use super::reference;
use super::scope::{Scope, Shared};
use super::seed;
use super::service;
use super::value::{Key, Spanned, Value};
use crate::diagnostic::{Diagnostic, Span};
use crate::node_id::NodeId;
use crate::operator::RetryPolicy;

/// Advice for a misspelt `op`.
const MEANT_OP: &str = "did you mean `op`?";

const KEYS: &[&str] =
    &["op", "from", "with", "matrix", "services", "resources", "retry", "on_error", "freeze", "seed", "checks"];

/// Returns the nodes of all entries for each of the outer coordinates (those of a loop; outside loops, none): one for each
/// entry, or one per combination of its matrix.
pub(super) fn all(
    entries: Vec<(Key, Spanned)>,
    outer: &[Vec<Coordinate>],
    scope: &mut Scope<'_>,
    shared: &mut Shared<'_>,
) -> Vec<NodeSpec> {
    let mut entries: Vec<_> = entries.into_iter().map(|(id, body)| without_matrix(id, body, scope, shared)).collect();
    let written = entries.iter_mut().filter_map(|(id, _, matrix)| Some((&id.text, matrix.as_mut()?)));
    matrix::take_over(written.collect(), &mut shared.problems);
    let entries: Vec<_> =
        entries.into_iter().filter_map(|(id, body, matrix)| written_node(id, body, matrix, outer, shared)).collect();
    outer
        .iter()
        .flat_map(|outer| entries.iter().flat_map(|node| read(node, outer, scope, shared)).collect::<Vec<_>>())
        .collect()
}

/// A node as written.
struct Written {
    id: Key,
    body: Spanned,
    /// The combinations of its matrix; one empty combination without one.
    variants: Vec<Vec<Coordinate>>,
}

fn without_matrix(
    id: Key,
    mut body: Spanned,
    scope: &mut Scope<'_>,
    shared: &mut Shared<'_>,
) -> (Key, Spanned, Option<Spanned>) {
    let mut matrix = take_matrix(&mut body);
    if let Some(matrix) = &mut matrix {
        scope.apply(matrix, None, shared);
    }
    (id, body, matrix)
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
    let span = matrix.as_ref().map_or(id.span, |matrix| matrix.span);
    let copies = matrix.is_some() || outer.len() > 1;
    let variants = matrix.map_or(vec![Vec::new()], |matrix| matrix::combinations(&matrix, &mut shared.problems));
    repeated_keys(&variants, outer, span, shared);
    let copied = weight(&body).saturating_mul(variants.len()).saturating_mul(outer.len());
    if copies && !shared.budget.charge(copied) {
        let fault = Diagnostic::error("too-many-values", "matrices and rounds expand to too many values");
        shared.report(fault.at(span, ""));
        return None;
    }
    Some(Written { id, body, variants })
}

/// Reports keys of a node's matrix that its loop has, too.
fn repeated_keys(variants: &[Vec<Coordinate>], outer: &[Vec<Coordinate>], span: Span, shared: &mut Shared<'_>) {
    let of_loop = outer.first().into_iter().flatten();
    for key in of_loop.map(|coordinate| &coordinate.key) {
        if variants.first().is_some_and(|own| own.iter().any(|coordinate| coordinate.key == *key)) {
            let fault = Diagnostic::error("bad-matrix", format!("the loop around this node has a key `{key}` already"));
            shared.report(fault.at(span, "").help("rename this one"));
        }
    }
}

fn read(written: &Written, outer: &[Coordinate], scope: &mut Scope<'_>, shared: &mut Shared<'_>) -> Vec<NodeSpec> {
    let expand = |variant: &Vec<Coordinate>| {
        let (mut body, coordinates) = (written.body.clone(), [outer, variant].concat());
        scope.apply(&mut body, Some(&coordinates), shared);
        one(&written.id, body, coordinates, &mut shared.problems)
    };
    written.variants.iter().filter_map(expand).collect()
}

fn take_matrix(body: &mut Spanned) -> Option<Spanned> {
    match &mut body.value {
        Value::Map(entries) => take(entries, "matrix"),
        _ => None,
    }
}

fn one(id: &Key, body: Spanned, coordinates: Vec<Coordinate>, problems: &mut Problems) -> Option<NodeSpec> {
    let what = format!("the node `{}`", id.text);
    if body.value == Value::Null {
        problems.push(missing_operator(id, &what));
        return None;
    }
    if let Value::String(word) = &body.value {
        let fault = field::wrong_type(&body, &what, "a map");
        problems.push(fault.help(format!("write `{}: {{op: {word}}}`", id.text)));
        return None;
    }
    let known = problems.len();
    let mut fields = field::fields(body, &what, KEYS, problems);
    for problem in &mut problems[known..] {
        amend(problem);
    }
    let Some(operator) = take(&mut fields, "op") else {
        let said = |problem: &Diagnostic| problem.code == "wrong-type" || problem.help.as_deref() == Some(MEANT_OP);
        if !problems[known..].iter().any(said) {
            problems.push(missing_operator(id, &what));
        }
        return None;
    };
    let name = field::text(&operator, "`op`", problems)?;
    let from = take(&mut fields, "from");
    let settings = settings(&fields);
    let with = with(take(&mut fields, "with"), id.span, problems);
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
        on_error: take(&mut fields, "on_error").map(|value| on_error(&value, problems)).unwrap_or_default(),
        freeze: take(&mut fields, "freeze").and_then(|v| field::flag(&v, "`freeze`", problems)).unwrap_or_default(),
        seed: take(&mut fields, "seed").and_then(|v| seed::read(&v, problems)).unwrap_or_default(),
        matrix: coordinates,
        keep: None,
        checks: take(&mut fields, "checks").map(|value| checks::read(&value, problems)).unwrap_or_default(),
    })
}

/// Corrects the advice for keys that have other names in other tools.
fn amend(problem: &mut Diagnostic) {
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
    let same = SAME.iter().find(|(theirs, _)| problem.message.ends_with(&format!("has no key `{theirs}`")));
    if let Some((_, ours)) = same {
        problem.help = Some(format!("did you mean `{ours}`?"));
    }
}

fn missing_operator(id: &Key, what: &str) -> Diagnostic {
    let fault = Diagnostic::error("missing-key", format!("{what} has no operator")).at(id.span, "");
    fault.help("write `op: OPERATOR`")
}

fn with(value: Option<Spanned>, id: Span, problems: &mut Problems) -> Spanned {
    match value {
        None => Spanned::empty_map(id),
        Some(value) if value.value == Value::Null => Spanned::empty_map(value.span),
        Some(value) => {
            if !matches!(value.value, Value::Map(_) | Value::Broken) {
                problems.push(field::wrong_type(&value, "`with`", "a map"));
            }
            value
        }
    }
}

/// Returns the execution settings that are written, with their locations.
fn settings(fields: &[(Key, Spanned)]) -> Vec<(String, Span)> {
    let place = |(key, _): &(Key, Spanned)| (key.text.clone(), key.span);
    let named = |name: &str| fields.iter().find(|(key, _)| key.text == name);
    let own = ["retry", "on_error"].iter().filter_map(|name| named(name)).map(place);
    own.chain(named("resources").into_iter().flat_map(|(_, value)| value.entries()).map(place)).collect()
}

fn resources(value: Spanned, problems: &mut Problems) -> Resources {
    const KEYS: &[&str] = &["concurrency", "threads", "gpus", "memory", "fallback", "isolate", "timeout"];
    let mut fields = field::fields(value, "`resources`", KEYS, problems);
    let mut whole = |name: &str, least: u64, problems: &mut Problems| {
        take(&mut fields, name).and_then(|value| field::whole(&value, &format!("`{name}`"), least, problems))
    };
    let concurrency = whole("concurrency", 1, problems).map(|number| number as usize);
    let threads = whole("threads", 1, problems).map(|number| number as usize);
    let gpus = whole("gpus", 0, problems).map_or(0, |number| u32::try_from(number).unwrap_or(u32::MAX));
    let memory = take(&mut fields, "memory").and_then(|value| field::bytes(&value, "`memory`", problems));
    let fallback = take(&mut fields, "fallback");
    let cpu_fallback = fallback.is_some_and(|value| falls_back(&value, problems));
    let isolate = take(&mut fields, "isolate").and_then(|value| field::flag(&value, "`isolate`", problems));
    let timeout = take(&mut fields, "timeout").and_then(|value| field::duration(&value, "`timeout`", problems));
    Resources { concurrency, threads, gpus, memory, cpu_fallback, isolate: isolate.unwrap_or_default(), timeout }
}

fn falls_back(value: &Spanned, problems: &mut Problems) -> bool {
    let word = field::text(value, "`fallback`", problems);
    let is_cpu = word.as_deref() == Some("cpu");
    if word.is_some() && !is_cpu {
        let fault = Diagnostic::error("unknown-word", "`fallback` can only be `cpu`").at(value.span, "");
        problems.push(fault.help("remove it if the node must not run without a GPU"));
    }
    is_cpu
}

fn retry(value: Spanned, problems: &mut Problems) -> RetryPolicy {
    const KEYS: &[&str] = &["max_attempts", "backoff", "max_backoff", "stop_after"];
    let mut fields = field::fields(value, "`retry`", KEYS, problems);
    let attempts = take(&mut fields, "max_attempts").and_then(|v| field::whole(&v, "`max_attempts`", 1, problems));
    let stop = take(&mut fields, "stop_after").and_then(|v| field::whole(&v, "`stop_after`", 0, problems));
    let count =
        |number: Option<u64>, default: u32| number.map_or(default, |number| u32::try_from(number).unwrap_or(u32::MAX));
    let mut duration = |name: &str, problems: &mut Problems| {
        take(&mut fields, name).and_then(|value| field::duration(&value, &format!("`{name}`"), problems))
    };
    let default = RetryPolicy::default();
    RetryPolicy {
        max_attempts: count(attempts, default.max_attempts),
        backoff: duration("backoff", problems).unwrap_or(default.backoff),
        max_backoff: duration("max_backoff", problems).unwrap_or(default.max_backoff),
        stop_after: count(stop, default.stop_after),
        stated: true,
    }
}

fn on_error(value: &Spanned, problems: &mut Problems) -> OnError {
    match field::choice(value, "`on_error`", &["fail", "dead_letter", "drop"], problems) {
        Some("fail") => OnError::Fail,
        Some("drop") => OnError::Drop,
        _ => OnError::DeadLetter,
    }
}
