//! The checks of places outside the pipeline: source files exist, and no node overwrites what a run reads, what another
//! node writes, or the store.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern};

use super::graph::Plan;
use crate::diagnostic::{Diagnostic, Span};
use crate::node_id;
use crate::operator::{MANIFEST_ENDING, Source};
use crate::spec::{NodeSpec, Spanned, Spec, closest};

/// Code of a finding: a source does not exist.
pub(super) const NOT_FOUND: &str = "not-found";

/// Checks that local source files exist, before anything runs.
pub(super) fn check_sources(node: &NodeSpec, sources: &[Source], directory: &Path, errors: &mut Vec<Diagnostic>) {
    for source in sources {
        let Some(path) = source.path() else { continue };
        // Remote sources are looked up when the node runs: plans are made offline.
        if path.contains("://") || exists(&directory.join(path)) {
            continue;
        }
        let error = Diagnostic::error(NOT_FOUND, format!("there is no file or folder `{path}`"));
        let start = match near_file(&directory.join(path)) {
            Some(name) => format!("did you mean `{name}`? Relative"),
            None => "relative".to_owned(),
        };
        let help = format!("{start} paths start at {}", directory.display());
        errors.push(error.at(span_of(node, path), "").help(help));
    }
}

/// Returns the name of a file beside a missing one that was probably meant.
fn near_file(missing: &Path) -> Option<String> {
    let beside = std::fs::read_dir(missing.parent()?).ok()?;
    let names: Vec<String> = beside.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    closest(missing.file_name()?.to_str()?, names.iter().map(String::as_str)).map(str::to_owned)
}

fn exists(path: &Path) -> bool {
    path.exists()
        || path.to_str().is_some_and(|pattern| glob::glob(pattern).is_ok_and(|mut found| found.next().is_some()))
}

/// Returns the span of a scalar with that text, or of one that names something in the file of that name (`FILE:NAME`).
pub(super) fn find_text(value: &Spanned, text: &str) -> Option<Span> {
    let mut pending = vec![value];
    while let Some(value) = pending.pop() {
        if let Some(scalar) = value.scalar_text()
            && let Some(rest) = scalar.strip_prefix(text)
            && (rest.is_empty() || rest.starts_with(':'))
        {
            return Some(value.span);
        }
        pending.extend(value.children());
    }
    None
}

fn span_of(node: &NodeSpec, text: &str) -> Span {
    find_text(&node.with, text).unwrap_or(node.with.span)
}

/// Checks that no destination equals, contains, or is inside a source, a pipeline file, or another destination. `bound`
/// has the sources and destinations of every node.
pub(super) fn check_destinations(
    spec: &Spec,
    bound: &[(&[Source], Vec<String>)],
    directory: &Path,
    errors: &mut Vec<Diagnostic>,
) {
    if bound.iter().all(|(_, destinations)| destinations.is_empty()) {
        return;
    }
    // All that is read comes first: a destination is reported against a source of any node.
    let mut used = UsedPaths::default();
    for file in &spec.files {
        used.insert(&std::path::absolute(file).unwrap_or_else(|_| file.clone()), Holder::File(file));
    }
    for (node, (sources, _)) in spec.nodes.iter().zip(bound) {
        for source in *sources {
            used.source(node, source, directory);
        }
    }
    for (node, (_, destinations)) in spec.nodes.iter().zip(bound) {
        for destination in destinations {
            let span = span_of(node, destination);
            let places = places(destination, directory);
            let is_special = std::fs::metadata(&places[0]).is_ok_and(|found| !found.is_file() && !found.is_dir());
            // Writing would block, or replace it by a file.
            if is_special && !is_url(local(destination)) {
                let message = format!("`{}` writes to `{destination}`, which is a pipe, socket or device", node.id);
                errors.push(Diagnostic::error("not-a-file", message).at(span, "").help("write to a regular file"));
            }
            if let Some(holder) = places.iter().find_map(|place| used.overlap(place)) {
                errors.push(holder.conflict(node, destination, span));
            }
            for place in places {
                used.by_path.entry(place).or_insert(Holder::Destination(node, span));
            }
        }
    }
}

/// Reports destinations that equal, contain, or are inside the store (a folder or URL).
pub(crate) fn check_store(plan: &Plan, store: &Path, directory: &Path) -> Vec<Diagnostic> {
    let store = place(&store.to_string_lossy(), directory);
    let mut errors = Vec::new();
    for node in &plan.nodes {
        for destination in node.operator.declaration.destinations() {
            let places = places(&destination, directory);
            if places.iter().any(|place| place.starts_with(&store) || store.starts_with(place)) {
                let message = format!("`{}` writes to `{destination}`, where the store is", node.id());
                let error = Diagnostic::error("overwrites-store", message).at(span_of(&node.spec, &destination), "");
                errors.push(error.help(format!("give it a path outside {}", store.display())));
            }
        }
    }
    errors
}

/// The user of a place.
#[derive(Clone, Copy)]
enum Holder<'a> {
    /// A file of the pipeline itself.
    File(&'a Path),
    /// A node that reads it, with the source as written.
    Source(&'a NodeSpec, &'a str),
    /// A node that writes it.
    Destination(&'a NodeSpec, Span),
}

/// A pattern of files read by a node.
struct Matching<'a> {
    pattern: Pattern,
    /// The part before the first wildcard.
    fixed: PathBuf,
    holder: Holder<'a>,
}

/// Places in use. Paths sort by their parts, so the contents of a folder directly follow it.
#[derive(Default)]
struct UsedPaths<'a> {
    by_path: BTreeMap<PathBuf, Holder<'a>>,
    patterns: Vec<Matching<'a>>,
}

impl<'a> UsedPaths<'a> {
    /// Adds a local path, and the file or folder it links to.
    fn insert(&mut self, path: &Path, holder: Holder<'a>) {
        for path in [entry(path), real(path)] {
            self.by_path.entry(path).or_insert(holder);
        }
    }

    fn source(&mut self, node: &'a NodeSpec, source: &'a Source, directory: &Path) {
        let (text, path) = match source {
            Source::Path(text)
            | Source::Argument(text)
            | Source::Data { path: text, .. }
            | Source::Named { path: text, .. }
            | Source::Optional(text) => (text.as_str(), directory.join(local(text))),
            Source::Fetched { path, address } => (address.as_str(), path.clone()),
            Source::Program(path) | Source::Executable(path) => {
                (path.to_str().unwrap_or_default(), directory.join(path))
            }
            Source::Awaited { .. } | Source::Identity(_) => return,
        };
        let holder = Holder::Source(node, text);
        // Remote sources are compared by their text, as destinations are.
        if is_url(text) && source.is_remote() {
            self.by_path.entry(PathBuf::from(text)).or_insert(holder);
        } else if let Some((fixed, pattern)) = pattern(text, &path) {
            self.patterns.push(Matching { pattern, fixed, holder });
        } else {
            self.insert(&path, holder);
        }
    }

    /// Returns the user of that place, of a folder above it, or of something in it.
    fn overlap(&self, place: &Path) -> Option<Holder<'a>> {
        if let Some(holder) = place.ancestors().find_map(|above| self.by_path.get(above)) {
            return Some(*holder);
        }
        match self.by_path.range(place.to_owned()..).next() {
            Some((path, holder)) if path.starts_with(place) => Some(*holder),
            _ => self.patterns.iter().find(|matching| matching.touches(place)).map(|matching| matching.holder),
        }
    }
}

impl Matching<'_> {
    /// Whether the pattern reads that place or something in it.
    fn touches(&self, place: &Path) -> bool {
        let options =
            MatchOptions { require_literal_separator: true, require_literal_leading_dot: true, ..MatchOptions::new() };
        if self.pattern.matches_path_with(place, options) || self.fixed.starts_with(place) {
            return true;
        }
        // A folder that is not there holds no file of the pattern.
        if !place.is_dir() {
            return false;
        }
        let mut files = glob::glob(self.pattern.as_str()).into_iter().flatten().filter_map(Result::ok);
        files.any(|file| file.starts_with(place))
    }
}

impl Holder<'_> {
    /// Returns the error for `node` writing there.
    fn conflict(self, node: &NodeSpec, destination: &str, span: Span) -> Diagnostic {
        let id = &node.id;
        match self {
            Self::File(file) => {
                let message =
                    format!("`{id}` writes to `{destination}`, but this pipeline is read from `{}`", file.display());
                Diagnostic::error("overwrites-pipeline", message).at(span, "").help("give it another path")
            }
            Self::Source(other, text) => {
                let message = format!("`{id}` writes to `{destination}`, but `{}` reads `{text}`", other.id);
                let error = Diagnostic::error("overwrites-source", message).at(span, "");
                let there = span_of(other, text);
                let error = if there == other.with.span { error } else { error.at(there, "read here") };
                error.help("give it another path: a run must not change what it reads")
            }
            Self::Destination(other, there) => {
                let message = format!("`{}` and `{id}` both write to `{destination}`", other.id);
                let error = Diagnostic::error("same-destination", message).at(span, "");
                let error = if there == span { error } else { error.at(there, "the first one writes here") };
                let matrix = "a node with a matrix has its values in its path: `out/${matrix.KEY}.jsonl`";
                let apart = "give one of them another path; neither may lie in the other or be its `.manifest.json`";
                let variants = other.id.name() == node_id::name(id);
                error.help(if variants { matrix } else { apart })
            }
        }
    }
}

fn local(text: &str) -> &str {
    text.strip_prefix("file://").unwrap_or(text)
}

fn is_url(text: &str) -> bool {
    text.contains("://")
}

/// Returns the places of a destination and of its manifest.
fn places(destination: &str, directory: &Path) -> [PathBuf; 2] {
    let place = place(destination, directory);
    let mut manifest = place.clone().into_os_string();
    manifest.push(MANIFEST_ENDING);
    [place, manifest.into()]
}

/// Returns the canonical form of a destination. A link to a file is replaced, a link to a folder is followed.
fn place(destination: &str, directory: &Path) -> PathBuf {
    let plain = local(destination);
    if is_url(plain) {
        return PathBuf::from(plain).components().collect();
    }
    let path = directory.join(plain);
    if path.is_dir() { real(&path) } else { entry(&path) }
}

/// Resolves links in the path's folders, but not in its last part.
fn entry(path: &Path) -> PathBuf {
    match (path.parent(), path.components().next_back()) {
        (Some(folder), Some(Component::Normal(name))) => real(folder).join(name),
        _ => real(path),
    }
}

/// Resolves links, `.` and `..`, as far as the path exists.
fn real(path: &Path) -> PathBuf {
    // Longer than any system's path limit.
    if path.as_os_str().len() > 4096 {
        return path.to_owned();
    }
    let (mut there, mut rest) = (path, Vec::new());
    let mut found = loop {
        match (there.canonicalize(), there.parent(), there.components().next_back()) {
            (Ok(found), ..) => break found,
            (_, Some(folder), Some(part)) => {
                rest.push(part);
                there = folder;
            }
            _ => break there.to_owned(),
        }
    };
    for part in rest.into_iter().rev() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(found.pop()),
            part => found.push(part),
        }
    }
    found
}

/// Returns the fixed part of a file pattern, resolved, and the pattern below it; `None` if the text is not a pattern.
fn pattern(text: &str, path: &Path) -> Option<(PathBuf, Pattern)> {
    // A file may be named like a pattern.
    if !is_wild(text) || path.exists() {
        return None;
    }
    let (mut fixed, mut rest) = (PathBuf::new(), PathBuf::new());
    for part in path.components() {
        let is_rest = !rest.as_os_str().is_empty() || part.as_os_str().to_str().is_some_and(is_wild);
        if is_rest { rest.push(part) } else { fixed.push(part) }
    }
    let fixed = real(&fixed);
    let whole = Path::new(&Pattern::escape(fixed.to_str()?)).join(rest);
    Some((fixed.clone(), Pattern::new(whole.to_str()?).ok()?))
}

fn is_wild(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_path_is_one_place() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("data/sub")).unwrap();
        let written = format!("file://{}/data/x", root.display());
        for form in ["data/x", "./data/x", "data/./x", "data/sub/../x", "new/../data/x", "data/x/", &written] {
            assert_eq!(place(form, &root), root.join("data/x"), "{form}");
        }
        assert_eq!(place("new/deep/../x", &root), root.join("new/x"));
        assert_eq!(place("s3://b//x/", &root), Path::new("s3:/b/x"));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("data", root.join("link")).unwrap();
            assert_eq!(place("link/x", &root), root.join("data/x"));
            assert_eq!(place("link/sub/../../x", &root), root.join("x"));
            std::os::unix::fs::symlink("data/sub", root.join("deep")).unwrap();
            assert_eq!(place("deep/../x", &root), root.join("data/x"), "as the system reads it");
        }
    }

    #[test]
    fn patterns_take_what_they_match_and_the_folders_above() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("data/one")).unwrap();
        std::fs::write(root.join("data/one/part.jsonl"), "").unwrap();
        let touches = |text: &str, place: &str| {
            let (fixed, pattern) = pattern(text, &root.join(text)).expect("a pattern");
            let holder = Holder::File(Path::new(""));
            Matching { pattern, fixed, holder }.touches(&root.join(place))
        };
        for place in ["data/one/part.jsonl", "data/two/part.jsonl", "data/one", "data", ""] {
            assert!(touches("data/*/part.jsonl", place), "{place}");
        }
        for place in ["data/out.jsonl", "data/one/other.jsonl", "data/two", "out"] {
            assert!(!touches("data/*/part.jsonl", place), "{place}");
        }
        assert!(pattern("data", &root.join("data")).is_none());
    }
}
