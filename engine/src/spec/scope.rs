//! Resolves `${…}`: params (which may refer to each other), environment variables, secrets, matrix coordinates.

use std::collections::BTreeMap;

use super::budget::{Budget, MAX_COPIED, MAX_DEPTH, MAX_STRING, height, weight};
use super::coordinate::Coordinate;
use super::field::{self, Fields};
use super::template::{self, Part, Target};
use super::value::{Spanned, Value};
use super::{suggest, syntax};
use crate::diagnostic::{Diagnostic, SourceMap, Span};

/// Limit of recursion through params.
const MAX_FRAMES: usize = 256;
/// Limit of stored diagnostics.
const MAX_KEPT: usize = 2000;

/// State shared by all files of a pipeline while it is read.
pub(super) struct Shared<'s> {
    pub(super) sources: &'s mut SourceMap,
    pub(super) problems: Vec<Diagnostic>,
    pub(super) budget: Budget,
    /// Number of included files, and their bytes.
    pub(super) included: usize,
    pub(super) included_bytes: usize,
    /// Number of included files that could not be read. What follows from their absence is not reported.
    pub(super) unread: usize,
}

impl Shared<'_> {
    /// Stores a diagnostic, up to the limit.
    pub(super) fn report(&mut self, problem: Diagnostic) {
        // A matrix of 10,000 nodes repeats an error 10,000 times; duplicates are removed only at the end.
        if self.problems.len() < MAX_KEPT {
            self.problems.push(problem);
        }
    }

    /// Reports why there is no value.
    pub(super) fn refuse<T>(&mut self, problem: Diagnostic) -> Option<T> {
        self.report(problem);
        None
    }
}

/// The names that `${…}` in one file may refer to.
pub(super) struct Scope<'a, 's> {
    params: &'a Spanned,
    pub(super) shared: &'a mut Shared<'s>,
    /// Top-level params by name.
    index: BTreeMap<&'a str, &'a Spanned>,
    resolved: BTreeMap<String, Option<Spanned>>,
    active: Vec<String>,
    frames: usize,
}

impl<'a, 's> Scope<'a, 's> {
    /// Creates a scope over params as written.
    pub(super) fn new(params: &'a Spanned, shared: &'a mut Shared<'s>) -> Self {
        let index = params.entries().iter().map(|(key, value)| (key.text.as_str(), value)).collect();
        Self { params, shared, index, resolved: BTreeMap::new(), active: Vec::new(), frames: 0 }
    }

    /// Returns all params, resolved.
    pub(super) fn resolve_all(&mut self) -> Spanned {
        let params = self.params;
        let entries = params.entries().iter().map(|(key, value)| {
            let resolved = self.lookup(std::slice::from_ref(&key.text), value.span);
            (key.clone(), resolved.unwrap_or_else(|| broken(value.span)))
        });
        Spanned::new(Value::Map(entries.collect()), params.span)
    }

    /// Removes a field by name, and returns its value without `${…}`.
    pub(super) fn take(&mut self, fields: &mut Fields, name: &str) -> Option<Spanned> {
        let mut value = field::take(fields, name)?;
        self.apply(&mut value, &[]);
        Some(value)
    }

    /// Replaces every `${…}` below a value; `matrix`: the coordinates of its node.
    pub(super) fn apply(&mut self, value: &mut Spanned, matrix: &[Coordinate]) {
        self.apply_at(value, 1, matrix);
    }

    fn apply_at(&mut self, value: &mut Spanned, depth: usize, matrix: &[Coordinate]) {
        self.frames += 1;
        match &mut value.value {
            Value::String(text) if template::has_reference(text) => {
                let text = std::mem::take(text);
                *value = self.replace(&text, value.span, depth, matrix);
            }
            Value::List(items) => {
                for item in items {
                    self.apply_at(item, depth + 1, matrix);
                }
            }
            Value::Map(entries) => {
                for (_, value) in entries {
                    self.apply_at(value, depth + 1, matrix);
                }
            }
            _ => {}
        }
        self.frames -= 1;
    }

    fn replace(&mut self, text: &str, span: Span, depth: usize, matrix: &[Coordinate]) -> Spanned {
        let parts = match template::parse(text) {
            Ok(parts) => parts,
            Err(fault) => {
                let at = part_span(self.shared.sources, span, text, &fault.range);
                let fault = Diagnostic::error("bad-substitution", fault.message).at(at, "");
                self.shared.report(fault.help(
                    "available: `${params.…}`, `${env:NAME}`, `${secret:NAME}`, `${matrix.…}`, `${repeat.round}` and \
                     `${service.…}`; write `$${` for a literal `${`",
                ));
                return broken(span);
            }
        };
        // A string that is one reference takes the type of what it refers to.
        let new = match template::whole(&parts) {
            Some(target) => self.value_of(target, span, matrix),
            None => self.interpolate(text, &parts, span, matrix),
        };
        match new {
            Some(new) if admit(&new, span, depth, self.shared) => new,
            _ => broken(span),
        }
    }

    /// Returns the value of a reference; `None` after a reported error.
    fn value_of(&mut self, target: &Target, span: Span, matrix: &[Coordinate]) -> Option<Spanned> {
        let value = match target {
            Target::Param(path) => self.lookup(path, span)?,
            Target::Matrix(path) => coordinate(path, span, matrix, self.shared)?,
            Target::Round => round(span, matrix, self.shared)?,
            Target::Env { name, default } => return variable(name, default.as_deref(), span, self.shared),
            // Secrets and addresses are known when the node runs.
            Target::Secret(name) => return Some(Spanned::new(Value::String(format!("${{secret:{name}}}")), span)),
            Target::Service(name) => return Some(Spanned::new(Value::String(format!("${{service.{name}}}")), span)),
        };
        Some(Spanned { via: Some(span), ..value })
    }

    fn interpolate(&mut self, text: &str, parts: &[Part], span: Span, matrix: &[Coordinate]) -> Option<Spanned> {
        let (mut whole, mut is_broken) = (String::new(), false);
        for part in parts {
            let piece = match part {
                Part::Text(text) => Some(text.clone()),
                Part::Reference { target, range } => {
                    let at = part_span(self.shared.sources, span, text, range);
                    let value = self.value_of(target, at, matrix);
                    value.and_then(|value| piece(&named(value, target, matrix), at, self.shared))
                }
            };
            // After an error, the other parts are read for their errors only.
            is_broken |= piece.is_none();
            if is_broken {
                continue;
            }
            whole += &piece.unwrap_or_default();
            if whole.len() > MAX_STRING {
                let message = format!("`${{…}}` makes this string longer than {MAX_STRING} bytes");
                return self.shared.refuse(Diagnostic::error("too-many-values", message).at(span, ""));
            }
        }
        (!is_broken).then(|| Spanned::new(Value::String(whole), span))
    }

    fn lookup(&mut self, path: &[String], span: Span) -> Option<Spanned> {
        let name = path.join(".");
        if let Some(known) = self.resolved.get(&name) {
            return known.clone();
        }
        // Before the limit of frames: a circle is named as one.
        if let Some(start) = self.active.iter().position(|active| *active == name) {
            let active = self.active[start..].iter().chain([&name]);
            let ring = active.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" → ");
            let fault = Diagnostic::error("param-cycle", format!("the param `{name}` refers to itself"));
            return self.shared.refuse(fault.at(span, "closes the cycle").note(format!("the cycle: {ring}")));
        }
        if self.frames > MAX_FRAMES {
            let fault = Diagnostic::error("too-deep", "references between params are nested too deeply");
            return self.shared.refuse(fault.at(span, ""));
        }
        // While it is resolved, a reference to it closes a circle.
        self.active.push(name.clone());
        let value = self.walk(path, span);
        self.active.pop();
        // After an error, too: it is reported once, however often the param is used.
        self.resolved.insert(name, value.clone());
        value
    }

    fn walk(&mut self, path: &[String], span: Span) -> Option<Spanned> {
        let mut here = self.params;
        for (depth, step) in path.iter().enumerate() {
            if matches!(&here.value, Value::String(text) if template::has_reference(text)) {
                let around = self.lookup(&path[..depth], span)?;
                let mut here = &around;
                for (depth, step) in path.iter().enumerate().skip(depth) {
                    if here.value == Value::Broken {
                        return None;
                    }
                    here = here.child(step).or_else(|| unknown(here, path, depth, span, self.shared))?;
                }
                return Some(here.clone());
            }
            let next = if depth == 0 { self.index.get(step.as_str()).copied() } else { here.child(step) };
            here = next.or_else(|| unknown(here, path, depth, span, self.shared))?;
        }
        let mut value = here.clone();
        self.apply_at(&mut value, 1, &[]);
        Some(value)
    }
}

fn unknown<T>(here: &Spanned, path: &[String], depth: usize, span: Span, shared: &mut Shared<'_>) -> Option<T> {
    // Advice compares many names: none is worked out that is dropped.
    if shared.problems.len() >= MAX_KEPT {
        return None;
    }
    let fault = Diagnostic::error("unknown-param", format!("unknown param `{}`", path.join("."))).at(span, "");
    shared.refuse(fault.help_some(param_advice(here, path, depth)))
}

/// Returns what a missing step of a path might have meant.
pub(super) fn param_advice(here: &Spanned, path: &[String], depth: usize) -> Option<String> {
    let keys: Vec<_> = here.entries().iter().take(suggest::MAX_CANDIDATES).map(|(key, _)| key.text.as_str()).collect();
    if let Some(near) = suggest::closest(&path[depth], keys.iter().copied()) {
        let mut meant = path.to_vec();
        near.clone_into(&mut meant[depth]);
        return Some(format!("did you mean `{}`?", meant.join(".")));
    }
    let around = path[..depth].join(".");
    match (&here.value, depth) {
        (Value::Map(entries), 0) if entries.is_empty() => Some("declare it under `params:`".to_owned()),
        (Value::Map(_), 0) => suggest::listing(&keys),
        (Value::Map(_), _) => suggest::listing(&keys).map(|list| format!("in `{around}`, {list}")),
        (Value::List(items), _) => Some(format!("`{around}` is a list of {}", items.len())),
        _ => Some(format!("`{around}` is {}", here.kind())),
    }
}

fn broken(span: Span) -> Spanned {
    Spanned::new(Value::Broken, span)
}

/// Returns the value of a coordinate, or the field of it that the path names behind the key.
fn coordinate(path: &[String], span: Span, matrix: &[Coordinate], shared: &mut Shared<'_>) -> Option<Spanned> {
    let key = path.first()?;
    if let Some(coordinate) = matrix.iter().find(|coordinate| coordinate.key == *key) {
        let mut here = &coordinate.value;
        for (depth, step) in path.iter().enumerate().skip(1) {
            if here.value == Value::Broken {
                return None;
            }
            let Some(next) = here.child(step) else {
                let (around, variant) = (path[..depth].join("."), &coordinate.name);
                let message = format!("`matrix.{around}` has no field `{step}` in the variant `{variant}`");
                let fault = Diagnostic::error("unknown-matrix-key", message).at(span, "");
                let fault = fault.at_some(elsewhere(here, span), "its value");
                return shared.refuse(fault.help_some(param_advice(here, path, depth)));
            };
            here = next;
        }
        return Some(here.clone());
    }
    // The matrix could not be read, and its keys are unknown.
    if matrix.iter().any(|coordinate| coordinate.is_broken() && coordinate.key.is_empty()) {
        return None;
    }
    // The round of a loop is no key: it is `${repeat.round}`.
    let keys: Vec<_> = matrix.iter().filter(|one| one.repeats.is_none()).map(|one| one.key.as_str()).collect();
    let fault = Diagnostic::error("unknown-matrix-key", format!("no matrix key `{key}` here")).at(span, "");
    let help = suggest::advice(key, &keys).unwrap_or_else(|| "only a node with `matrix:` has coordinates".to_owned());
    shared.refuse(fault.help(help))
}

fn round(span: Span, matrix: &[Coordinate], shared: &mut Shared<'_>) -> Option<Spanned> {
    if let Some(coordinate) = matrix.iter().find(|coordinate| coordinate.repeats.is_some()) {
        return Some(coordinate.value.clone());
    }
    let fault = Diagnostic::error("unknown-round", "there are no rounds here").at(span, "");
    shared.refuse(fault.help("`${repeat.round}` is known in the nodes of a loop, below `repeat:`"))
}

/// Replaces a map or list of a matrix, which cannot be part of a string, by its name in the node's id.
fn named(value: Spanned, target: &Target, matrix: &[Coordinate]) -> Spanned {
    let Target::Matrix(path) = target else { return value };
    let coordinate = matrix.iter().find(|coordinate| path[..] == [coordinate.key.clone()]);
    match (&value.value, coordinate) {
        (Value::Map(_) | Value::List(_), Some(coordinate)) => {
            Spanned { value: Value::String(coordinate.name.clone()), ..value }
        }
        _ => value,
    }
}

fn variable(name: &str, default: Option<&str>, span: Span, shared: &mut Shared<'_>) -> Option<Spanned> {
    let Some(text) = std::env::var(name).ok().or_else(|| default.map(str::to_owned)) else {
        let fault = Diagnostic::error("unset-variable", format!("the environment variable `{name}` is not set"));
        return shared.refuse(fault.at(span, "").help(format!("set it or add a default: `${{env:{name}:-default}}`")));
    };
    let mut value = Spanned::new(syntax::plain_scalar(&text), span);
    // `007` stays `007` where a param takes a text.
    value.text = (!matches!(value.value, Value::String(_))).then_some(text);
    Some(value)
}

/// Returns a value's text for use in a longer string.
fn piece(value: &Spanned, at: Span, shared: &mut Shared<'_>) -> Option<String> {
    let text = value.scalar_text();
    let fault = match (&value.value, &text) {
        (Value::Broken, _) => return None,
        (Value::String(text), _) if text.starts_with("${secret:") => {
            Diagnostic::error("secret-in-text", "a secret cannot be part of a longer string")
                .help("write `${secret:NAME}` as the whole value")
        }
        (_, None) => Diagnostic::error("wrong-type", format!("{} cannot be part of a string", value.kind())),
        (_, Some(_)) => return text,
    };
    shared.refuse(fault.at(at, "").at_some(elsewhere(value, at), "defined here"))
}

fn elsewhere(value: &Spanned, at: Span) -> Option<Span> {
    (value.span != at).then_some(value.span)
}

/// Checks that the expansion of `${…}` stays within limits.
fn admit(value: &Spanned, span: Span, depth: usize, shared: &mut Shared<'_>) -> bool {
    if shared.budget.spent() {
        // The first excess was reported.
        return false;
    }
    if !shared.budget.charge(weight(value)) {
        let message = format!("`${{…}}` expands to more than {MAX_COPIED} values (limit)");
        shared.report(Diagnostic::error("too-many-values", message).at(span, "here at the latest"));
        return false;
    }
    if depth + height(value) > MAX_DEPTH {
        let message = format!("values are nested more than {MAX_DEPTH} deep (limit)");
        shared.report(Diagnostic::error("too-deep", message).at(span, "after this is replaced"));
        return false;
    }
    true
}

/// Returns the location of a part of a string's value.
pub(super) fn part_span(sources: &SourceMap, span: Span, value: &str, range: &std::ops::Range<usize>) -> Span {
    let written = sources.text(span);
    if written == value {
        return span.part(range.start, range.end);
    }
    let part = &value[range.clone()];
    // The same reference may stand in the text several times.
    let before = value[..range.start].matches(part).count();
    match written.match_indices(part).nth(before) {
        Some((at, _)) => span.part(at, at + part.len()),
        // Escapes in quotes may write the part differently.
        None => span,
    }
}
