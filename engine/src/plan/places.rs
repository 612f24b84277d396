//! The checks of places outside the pipeline: files that are read are there, and no two nodes write to one place.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Component, Path, PathBuf};

use crate::diagnostic::{Diagnostic, Span};
use crate::operator::Source;
use crate::spec::{NodeSpec, Spanned};

/// Local files must be there when the plan is made: not found is found before anything runs.
pub(super) fn check_sources(node: &NodeSpec, sources: &[Source], directory: &Path, errors: &mut Vec<Diagnostic>) {
    for source in sources {
        let Some(path) = source.path() else { continue };
        if path.contains("://") || exists(&directory.join(path)) {
            continue;
        }
        let span = find_text(&node.with, path).unwrap_or(node.with.span);
        let error = Diagnostic::error("not-found", format!("there is no file or folder `{path}`")).at(span, "");
        errors.push(error.help(format!("relative paths start at {}", directory.display())));
    }
}

fn exists(path: &Path) -> bool {
    path.exists()
        || path.to_str().is_some_and(|pattern| glob::glob(pattern).is_ok_and(|mut found| found.next().is_some()))
}

/// Where a scalar with that text stands.
pub(super) fn find_text(value: &Spanned, text: &str) -> Option<Span> {
    let mut pending = vec![value];
    while let Some(value) = pending.pop() {
        if value.scalar_text().is_some_and(|found| found == text) {
            return Some(value.span);
        }
        pending.extend(value.items());
        pending.extend(value.entries().iter().map(|(_, value)| value));
    }
    None
}

/// Two nodes that write to one place would overwrite each other, and which one wins would depend on which ends last.
pub(super) fn check_destinations(
    nodes: &[NodeSpec],
    destinations: impl Iterator<Item = Option<Vec<String>>>,
    directory: &Path,
    errors: &mut Vec<Diagnostic>,
) {
    let mut first: BTreeMap<PathBuf, (&NodeSpec, Span)> = BTreeMap::new();
    for (node, destinations) in nodes.iter().zip(destinations) {
        for destination in destinations.into_iter().flatten() {
            let span = find_text(&node.with, &destination).unwrap_or(node.with.span);
            let (other, there) = match first.entry(place(&destination, directory)) {
                Entry::Vacant(free) => {
                    free.insert((node, span));
                    continue;
                }
                Entry::Occupied(taken) => *taken.get(),
            };
            let message = format!("`{}` and `{}` both write to `{destination}`", other.id, node.id);
            let error = Diagnostic::error("same-destination", message).at(span, "");
            let error = if there == span { error } else { error.at(there, "the first one writes here") };
            let matrix = "a node with a matrix has its values in its path: `out/${matrix.KEY}.jsonl`";
            let variants = other.id.split('@').next() == node.id.split('@').next();
            errors.push(error.help(if variants { matrix } else { "give one of them another path" }));
        }
    }
}

/// A path with nothing in it that could be left out; a URL as it is.
fn place(destination: &str, directory: &Path) -> PathBuf {
    if destination.contains("://") {
        return PathBuf::from(destination);
    }
    let mut clean = PathBuf::new();
    for part in directory.join(destination).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(clean.pop()),
            part => clean.push(part),
        }
    }
    clean
}
