//! Reads a file and its includes into one [`Spec`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::coordinate::base;
use super::fragment::{Fragment, fragment};
use super::include::Place;
use super::model::{NodeSpec, Overrides, Spec};
use super::scope::Shared;
use super::set::Over;
use super::{reference, rounds};
use crate::diagnostic::{Diagnostic, FileId, Span};

/// Reads a whole pipeline.
pub(super) fn pipeline(path: &Path, file: FileId, overrides: &Overrides, shared: &mut Shared<'_>) -> Option<Spec> {
    let canonical = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let place = Place { path: path.to_owned(), file, chain: vec![canonical] };
    let Fragment { name, mut spec, loops } = fragment(&place, Over::CommandLine(overrides), shared)?;
    // Before references are linked: each name then stands for one node, matrix or loop.
    let duplicates = check_ids(&mut spec.nodes, shared);
    rounds::check_names(&loops, &spec.nodes, &mut shared.problems);
    reference::link(&mut spec.nodes, &loops, &mut shared.problems);
    // A pipeline without a name is called like its file.
    let fallback = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    Some(Spec {
        name: name.unwrap_or(fallback),
        // Overrides are sources, too, and no files.
        files: shared.sources.paths().filter(|path| path.is_file()).map(Path::to_owned).collect(),
        overrides: overrides.clone(),
        loops: rounds::decided(&loops, &spec.nodes),
        handed_on: rounds::handed_on(&loops, &spec.nodes),
        duplicates,
        lacks_files: shared.unread > 0,
        ..spec
    })
}

/// Reports duplicate node ids and keeps the first node of each. A node and the variants or rounds of another one may not
/// have the same name either: a reference by the name would mean both. Returns these names.
fn check_ids(nodes: &mut Vec<NodeSpec>, shared: &mut Shared<'_>) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, Span> = BTreeMap::new();
    let mut duplicates = BTreeSet::new();
    nodes.retain(|node| {
        let name = base(&node.id);
        let first = *seen.entry(name.to_owned()).or_insert(node.id_span);
        // The variants of a matrix and the rounds of a loop have one name, and one place in the text.
        if first == node.id_span {
            return true;
        }
        let fault = Diagnostic::error("duplicate-node", format!("duplicate node `{name}`"));
        let fault = fault.at(node.id_span, "again here").at(first, "first here");
        shared.report(fault.help("rename one of them, or include the file with a `prefix:`"));
        duplicates.insert(name.to_owned());
        false
    });
    duplicates
}
