//! One entry of `nodes:`.

use super::budget::weight;
use super::field::{self, Problems, take};
use super::matrix;
use super::pipeline::{NodeSpec, OnError, Resources};
use super::reference;
use super::scope::{Scope, Shared};
use super::value::{Key, Spanned, Value};
use crate::diagnostic::{Diagnostic, Span};
use crate::operator::RetryPolicy;

const KEYS: &[&str] = &["op", "from", "with", "matrix", "resources", "retry", "on_error", "freeze", "seed"];

/// The nodes that one entry stands for: one, or one for each combination of its matrix.
pub(super) fn read(id: &Key, mut body: Spanned, scope: &mut Scope<'_>, shared: &mut Shared<'_>) -> Vec<NodeSpec> {
    field::node_id(&id.text, id.span, &mut shared.problems);
    let Some(mut matrix) = take_matrix(&mut body) else {
        scope.apply(&mut body, None, shared);
        return one(id, body, Vec::new(), &mut shared.problems).into_iter().collect();
    };
    scope.apply(&mut matrix, None, shared);
    let rows = matrix::combinations(&matrix, &mut shared.problems);
    if !shared.budget.charge(weight(&body).saturating_mul(rows.len())) {
        let fault = Diagnostic::error("too-many-values", "this matrix unfolds to too many values");
        shared.report(fault.at(matrix.span, ""));
        return Vec::new();
    }
    let expand = |coordinates: matrix::Coordinates| {
        let mut body = body.clone();
        scope.apply(&mut body, Some(&coordinates), shared);
        one(id, body, matrix::names(&coordinates, &matrix), &mut shared.problems)
    };
    rows.into_iter().filter_map(expand).collect()
}

fn take_matrix(body: &mut Spanned) -> Option<Spanned> {
    match &mut body.value {
        Value::Map(entries) => take(entries, "matrix"),
        _ => None,
    }
}

fn one(id: &Key, body: Spanned, coordinates: Vec<(String, String)>, problems: &mut Problems) -> Option<NodeSpec> {
    let what = format!("the node `{}`", id.text);
    if body.value == Value::Null {
        problems.push(missing_operator(id, &what));
        return None;
    }
    let known = problems.len();
    let mut fields = field::fields(body, &what, KEYS, problems);
    let Some(operator) = take(&mut fields, "op") else {
        if problems[known..].iter().all(|problem| problem.code != "wrong-type") {
            problems.push(missing_operator(id, &what));
        }
        return None;
    };
    let name = field::text(&operator, "`op`", problems)?;
    let from = take(&mut fields, "from");
    Some(NodeSpec {
        id: matrix::node_id(&id.text, &coordinates),
        id_span: id.span,
        operator: name,
        operator_span: operator.span,
        from_span: from.as_ref().map(|from| from.span),
        from: from.map(|from| reference::bindings(&from, problems)).unwrap_or_default(),
        with: with(take(&mut fields, "with"), id.span, problems),
        resources: take(&mut fields, "resources").map(|value| resources(value, problems)).unwrap_or_default(),
        retry: take(&mut fields, "retry").map(|value| retry(value, problems)).unwrap_or_default(),
        on_error: take(&mut fields, "on_error").map(|value| on_error(&value, problems)).unwrap_or_default(),
        freeze: take(&mut fields, "freeze").and_then(|v| field::flag(&v, "`freeze`", problems)).unwrap_or_default(),
        seed: take(&mut fields, "seed").and_then(|v| field::whole(&v, "`seed`", 0, problems)).unwrap_or_default(),
        matrix: coordinates,
    })
}

fn missing_operator(id: &Key, what: &str) -> Diagnostic {
    let fault = Diagnostic::error("missing-key", format!("{what} does not say what it does")).at(id.span, "");
    fault.help("name its operator: `op: …`")
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

fn resources(value: Spanned, problems: &mut Problems) -> Resources {
    const KEYS: &[&str] = &["concurrency", "threads", "gpus", "memory"];
    let mut fields = field::fields(value, "`resources`", KEYS, problems);
    let mut whole = |name: &str, least: u64, problems: &mut Problems| {
        take(&mut fields, name).and_then(|value| field::whole(&value, &format!("`{name}`"), least, problems))
    };
    let concurrency = whole("concurrency", 1, problems).map(|number| number as usize);
    let threads = whole("threads", 1, problems).map(|number| number as usize);
    let gpus = whole("gpus", 0, problems).map_or(0, |number| u32::try_from(number).unwrap_or(u32::MAX));
    let memory = take(&mut fields, "memory").and_then(|value| field::bytes(&value, "`memory`", problems));
    Resources { concurrency, threads, gpus, memory }
}

fn retry(value: Spanned, problems: &mut Problems) -> RetryPolicy {
    const KEYS: &[&str] = &["max_attempts", "backoff", "max_backoff"];
    let mut fields = field::fields(value, "`retry`", KEYS, problems);
    let attempts = take(&mut fields, "max_attempts").and_then(|v| field::whole(&v, "`max_attempts`", 1, problems));
    let mut duration = |name: &str, problems: &mut Problems| {
        take(&mut fields, name).and_then(|value| field::duration(&value, &format!("`{name}`"), problems))
    };
    let default = RetryPolicy::default();
    RetryPolicy {
        max_attempts: attempts.map_or(default.max_attempts, |number| u32::try_from(number).unwrap_or(u32::MAX)),
        backoff: duration("backoff", problems).unwrap_or(default.backoff),
        max_backoff: duration("max_backoff", problems).unwrap_or(default.max_backoff),
    }
}

fn on_error(value: &Spanned, problems: &mut Problems) -> OnError {
    match field::choice(value, "`on_error`", &["fail", "dead_letter", "drop"], problems) {
        Some("fail") => OnError::Fail,
        Some("drop") => OnError::Drop,
        _ => OnError::DeadLetter,
    }
}
