//! `include:`: which other files are read, and how their nodes are named.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::coordinate::base;
use super::field::{self, refuse, take};
use super::model::NodeSpec;
use super::rounds::Loop;
use super::scope::Shared;
use super::syntax;
use super::value::{Spanned, Value};
use crate::diagnostic::{Diagnostic, FileId, Span};
use crate::node_id::NodeId;

const KEYS: &[&str] = &["path", "params", "prefix"];
/// Limit of nested includes.
const MAX_CHAIN: usize = 16;
/// Limit of files per pipeline.
const MAX_FILES: usize = 256;

/// The position of a file in the chain of includes.
pub(super) struct Place {
    pub(super) path: PathBuf,
    pub(super) file: FileId,
    pub(super) chain: Vec<PathBuf>,
}

/// A file to include.
pub(super) struct Wanted {
    path: String,
    span: Span,
    pub(super) params: Spanned,
    pub(super) prefix: String,
}

/// Returns the files named by `include: a.yaml`, `include: [a.yaml, {path: b.yaml, …}]` or `include: {path: …}`.
pub(super) fn files(value: Spanned, shared: &mut Shared<'_>) -> Vec<Wanted> {
    let items = match value.value {
        Value::List(items) => items,
        _ => vec![value],
    };
    items.into_iter().filter_map(|item| wanted(item, shared)).collect()
}

fn wanted(value: Spanned, shared: &mut Shared<'_>) -> Option<Wanted> {
    let span = value.span;
    let problems = &mut shared.problems;
    if !matches!(value.value, Value::Map(_)) {
        let path = field::text(&value, "`include`", problems)?;
        return Some(Wanted { path, span, params: Spanned::empty_map(span), prefix: String::new() });
    }
    let mut fields = field::fields(value, "`include`", KEYS, problems);
    let Some(path) = take(&mut fields, "path") else {
        let fault = Diagnostic::error("missing-key", "`include` has no `path`").at(span, "");
        return refuse(problems, fault.help("write `path: other.yaml`"));
    };
    let params = take(&mut fields, "params").unwrap_or_else(|| Spanned::empty_map(span));
    let entries = field::map(params, "`include.params`", problems).unwrap_or_default();
    let mut prefix = String::new();
    if let Some(value) = take(&mut fields, "prefix") {
        prefix = field::text(&value, "`prefix`", problems).unwrap_or_default();
        if !prefix.is_empty() {
            field::node_id(&prefix, value.span, problems);
        }
    }
    let text = field::text(&path, "`path`", problems)?;
    let params = Spanned::new(Value::Map(entries), span);
    Some(Wanted { path: text, span: path.span, params, prefix })
}

/// Reads the text of an included file, if the limits allow it and it looks like a pipeline.
pub(super) fn open(wanted: &Wanted, from: &Place, shared: &mut Shared<'_>) -> Option<Place> {
    // Paths start at the file that names them: a folder of pipelines can be moved.
    let path = from.path.parent().unwrap_or(Path::new("")).join(&wanted.path);
    // One file has several paths: a circle of includes is found by the real one.
    let canonical = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    let excess = if from.chain.contains(&canonical) {
        Some(format!("`{}` includes itself", wanted.path))
    } else if from.chain.len() >= MAX_CHAIN {
        Some(format!("includes are nested more than {MAX_CHAIN} deep (limit)"))
    } else {
        (shared.included >= MAX_FILES).then(|| format!("more than {MAX_FILES} included files (limit)"))
    };
    if let Some(message) = excess {
        return shared.refuse(Diagnostic::error("include-cycle", message).at(wanted.span, ""));
    }
    shared.included += 1;
    let found = shared.problems.len();
    let file = match syntax::read_file(&path, Some(wanted.span), shared.sources) {
        Ok(file) => file,
        Err(fault) => {
            // An error inside the file would show one of its lines.
            let inside = fault.labels.iter().map(|label| label.span.file).find(|file| *file != wanted.span.file);
            shared.report(fault);
            if inside.is_some_and(|file| !looks_like_a_pipeline(file, shared)) {
                strange(found, wanted, shared);
            }
            return None;
        }
    };
    // Per pipeline: 256 files within the limit of one file could fill the memory together.
    shared.included_bytes += shared.sources.get(file).map_or(0, |(_, text)| text.len());
    if shared.included_bytes > syntax::MAX_BYTES {
        let message = format!("included files exceed {} MiB in total", syntax::MAX_BYTES >> 20);
        return shared.refuse(Diagnostic::error("file-too-large", message).at(wanted.span, "here at the latest"));
    }
    if !looks_like_a_pipeline(file, shared) {
        strange(found, wanted, shared);
        return None;
    }
    let mut chain = from.chain.clone();
    chain.push(canonical);
    Some(Place { path, file, chain })
}

/// Whether the text contains a key of pipelines.
fn looks_like_a_pipeline(file: FileId, shared: &Shared<'_>) -> bool {
    let text = shared.sources.get(file).map_or("", |(_, text)| text);
    ["nodes", "include"].iter().any(|key| text.contains(key))
}

/// Replaces the diagnostics of a file that is not a pipeline. Its lines are not shown, as they may contain secrets.
fn strange(found: usize, wanted: &Wanted, shared: &mut Shared<'_>) {
    // What the parser said about these lines may quote them.
    shared.problems.truncate(found);
    let message = format!("`{}` is not a pipeline: it has neither `nodes:` nor `include:`", wanted.path);
    let fault = Diagnostic::error("not-a-pipeline", message).at(wanted.span, "named here");
    shared.report(fault.help("its lines are not shown because they may contain secrets"));
}

/// Prefixes the ids of the nodes and loops, and references between them.
pub(super) fn prefix(nodes: &mut [NodeSpec], loops: &mut [Loop], prefix: &str) {
    if prefix.is_empty() {
        return;
    }
    let mut own: BTreeSet<String> = nodes.iter().map(|node| base(&node.id).to_owned()).collect();
    own.extend(loops.iter().map(|repeats| repeats.name.clone()));
    for node in nodes {
        node.id = NodeId::from(format!("{prefix}{}", node.id));
        for name in node.matrix.iter_mut().filter_map(|coordinate| coordinate.repeats.as_mut()) {
            rename(name, &own, prefix);
        }
        for reference in node.bindings_mut().flat_map(|binding| &mut binding.references) {
            rename(&mut reference.node, &own, prefix);
        }
    }
    for repeats in loops {
        rename(&mut repeats.name, &own, prefix);
        for output in repeats.next.values_mut() {
            rename(output, &own, prefix);
        }
    }
}

/// Prefixes a reference, unless it leads out of the file.
fn rename(reference: &mut String, own: &BTreeSet<String>, prefix: &str) {
    if own.contains(base(reference)) {
        reference.insert_str(0, prefix);
    }
}
