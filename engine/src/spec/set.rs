//! `params:`: the declared values of a file, and what replaces them: `--set`, `--params`, and the params of an include.

use super::model::Overrides;
use super::scope::{Shared, param_advice};
use super::settings::read_map;
use super::value::{Key, OVER, Spanned, Value};
use super::{field, suggest, syntax};
use crate::diagnostic::{Diagnostic, FileId, Span};

/// The name of the sources of `--set`.
pub(crate) const SET: &str = "--set";

/// Params that override those declared in the file.
pub(super) enum Over<'o> {
    CommandLine(&'o Overrides),
    Include(Spanned),
}

/// Returns the params of a file, with those that override them.
pub(super) fn params(value: Option<Spanned>, file: FileId, over: Over<'_>, shared: &mut Shared<'_>) -> Spanned {
    let span = value.as_ref().map_or(Span::new(file, 0, 0), |value| value.span);
    let entries = value.and_then(|value| field::map(value, "`params`", &mut shared.problems)).unwrap_or_default();
    let mut params = Spanned::new(Value::Map(entries), span);
    match over {
        // Files in order, then `--set`.
        Over::CommandLine(overrides) => {
            for path in &overrides.params_files {
                if let Some(over) = read_map(path, "a file of params", shared.sources, &mut shared.problems) {
                    lay(&mut params, over, &mut Vec::new(), shared);
                }
            }
            for text in &overrides.set {
                set(&mut params, text, shared);
            }
        }
        Over::Include(over) => lay(&mut params, over, &mut Vec::new(), shared),
    }
    params
}

/// Applies one map to another: maps merge, anything else replaces. An undeclared param is an error. Of two different
/// choices (see [`Spanned::choice`]), the new one replaces the old one.
fn lay(params: &mut Spanned, over: Spanned, path: &mut Vec<String>, shared: &mut Shared<'_>) {
    let Value::Map(new) = over.value else { return };
    for (key, value) in new {
        path.push(key.text.clone());
        match slot(params, &key.text, path.len() > 1) {
            Some(old) if merges(old, &value) => lay(old, value, path, shared),
            Some(old) => *old = value,
            None => {
                let fault = undeclared(params, path, key.span, shared);
                shared.report(fault);
            }
        }
        path.pop();
    }
}

fn merges(old: &Spanned, new: &Spanned) -> bool {
    let is_other_choice = matches!((old.choice(), new.choice()), (Some(old), Some(new)) if old != new);
    !old.entries().is_empty() && matches!(new.value, Value::Map(_)) && !is_other_choice
}

/// Returns the slot of a param. Below the top level, an empty map accepts any key.
fn slot<'p>(params: &'p mut Spanned, name: &str, below: bool) -> Option<&'p mut Spanned> {
    let span = params.span;
    match &mut params.value {
        Value::List(items) => items.get_mut(name.parse::<usize>().ok()?),
        Value::Map(entries) => {
            if below && entries.is_empty() {
                entries.push((Key { text: name.to_owned(), span }, Spanned::new(Value::Null, span)));
            }
            entries.iter_mut().find(|(key, _)| key.text == name).map(|(_, value)| value)
        }
        _ => None,
    }
}

fn undeclared(around: &Spanned, path: &[String], span: Span, shared: &Shared<'_>) -> Diagnostic {
    let fault = Diagnostic::error("unknown-param", format!("unknown param `{}`", path.join("."))).at(span, "");
    let depth = path.len() - 1;
    let keys: Vec<_> = around.entries().iter().map(|(key, _)| key.text.as_str()).collect();
    let is_slip = suggest::closest(&path[depth], keys.iter().copied()).is_some();
    let help = match &around.value {
        Value::Map(_) if !is_slip => Some(declare(around, &path[..depth], &keys, shared)),
        _ => param_advice(around, path, depth),
    };
    fault.help_some(help)
}

/// Overrides change params; only the pipeline declares them.
fn declare(around: &Spanned, path: &[String], keys: &[&str], shared: &Shared<'_>) -> String {
    let place = std::iter::once("params").chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join(".");
    let mut help = format!("declare it under `{place}`");
    // What an override has inserted is no place to declare a param.
    if let Some((path, _)) = shared.sources.get(around.span.file)
        && !path.to_string_lossy().starts_with("--")
    {
        help += &format!(" in {}", path.display());
    }
    if let Some(known) = suggest::listing(keys) {
        help += &format!("; {known}");
    }
    help
}

fn set(params: &mut Spanned, text: &str, shared: &mut Shared<'_>) {
    let file = shared.sources.add(SET, text);
    // At the first `=`: the value may contain more of them.
    let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.trim().is_empty()) else {
        let fault = Diagnostic::error("bad-set", format!("`--set {text}` is not `--set NAME=VALUE`"));
        return shared.report(fault.at(Span::new(file, 0, text.len()), "").help("write `--set teacher.model=NAME`"));
    };
    let start = name.len() + 1;
    let Some(value) = parse_value(file, value, start, shared) else { return };
    // `tests: params:` merges options, as a file of params does.
    let (name, lies_over) = name.strip_suffix(OVER).map_or((name, false), |name| (name, true));
    let path: Vec<_> = name.trim().split('.').map(str::to_owned).collect();
    place(params, &path, value, lies_over, Span::new(file, 0, name.len()), shared);
}

fn place(params: &mut Spanned, path: &[String], value: Spanned, lies_over: bool, span: Span, shared: &mut Shared<'_>) {
    let mut here = params;
    for depth in 0..path.len() {
        if slot(here, &path[depth], depth > 0).is_none() {
            let fault = undeclared(here, &path[..=depth], span, shared);
            return shared.report(fault.help_some(choice_advice(here, path, depth)));
        }
        let Some(next) = slot(here, &path[depth], depth > 0) else { return };
        here = next;
    }
    if lies_over && merges(here, &value) {
        return lay(here, value, &mut path.to_vec(), shared);
    }
    *here = value;
}

/// Advises on a path into another option of a choice, which is unknown here.
fn choice_advice(here: &Spanned, path: &[String], depth: usize) -> Option<String> {
    let (chosen, wanted) = (here.choice()?, &path[depth]);
    let is_slip = suggest::closest(wanted, [chosen]).is_some();
    if depth == 0 || depth + 1 == path.len() || is_slip {
        return None;
    }
    let around = path[..depth].join(".");
    Some(format!("`{around}` is `{chosen}`; to choose another, write `--set '{around}={{{wanted}: {{…}}}}'`"))
}

/// Parses a value: lists, maps and quoted strings are YAML; anything else is one plain scalar.
fn parse_value(file: FileId, text: &str, start: usize, shared: &mut Shared<'_>) -> Option<Spanned> {
    let trimmed = text.trim();
    if trimmed.starts_with(['[', '{', '"', '\'']) {
        let mut value = syntax::parse_at(file, text, start, &mut shared.problems)?;
        value.via = None;
        return Some(value);
    }
    let span = Span::new(file, start, start + text.len());
    if trimmed.is_empty() {
        return Some(Spanned::new(Value::String(String::new()), span));
    }
    let mut value = Spanned::new(syntax::plain_scalar(trimmed), span);
    value.text = (!matches!(value.value, Value::String(_))).then(|| trimmed.to_owned());
    Some(value)
}
