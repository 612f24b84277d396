//! Interprets a word of the command line: a run, a node, an artifact, a result, or a file. If no run is named, a name
//! stands for an output of the newest run of the one pipeline that has it.

use std::collections::BTreeSet;
use std::path::Path;

use super::catalog::Catalog;
use super::output_name::{Missing, NamedOutput, NotFound, came_to_nothing, of_loop, output_of};
use crate::diagnostic::SourceMap;
use crate::fingerprint::{Digest, NodeKey, Preimage, hash_file};
use crate::spec::{self, Overrides, advice, meant_output as meant};
use crate::store::{ArtifactId, ArtifactType, NodeOutcome, NodeRun, RunRecord, Store};

/// Minimum digits of an abbreviated digest.
const LEAST_DIGITS: usize = 4;

/// What a word refers to.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// A run.
    Run(String),
    /// A node of a run, and optionally one of its ports.
    Node {
        /// The run.
        run: String,
        /// The node's record.
        node: Box<NodeRun>,
        /// The output port.
        port: Option<String>,
    },
    /// An artifact.
    Artifact(ArtifactId),
    /// A result, by its key.
    Result(NodeKey),
    /// An external file that results used.
    Source {
        /// As written.
        name: String,
        /// Digest of its content, as in the keys.
        content: String,
    },
    /// A file that results wrote: the artifact that contains the same bytes.
    Delivered {
        /// As written.
        name: String,
        /// The artifact.
        id: ArtifactId,
    },
}

/// Returns the run with that id or unambiguous id prefix, or `latest` or `previous`: the last runs of this store,
/// without imported ones.
///
/// # Errors
/// Fails if there is no run, or more than one.
pub fn run_of(store: &Store, text: &str) -> Result<String, NotFound> {
    let ids = store.run_ids();
    if let Some(back) = ["latest", "previous"].iter().position(|word| *word == text) {
        let own = ids.iter().rev().filter(|id| !store.is_imported(id)).nth(back);
        return own.cloned().ok_or(NotFound::new(format!("there is no {text} run in the store yet"), None));
    }
    let found: Vec<&String> = ids.iter().filter(|id| id.starts_with(text)).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let newest: Vec<&str> = ids.iter().rev().map(String::as_str).collect();
            Err(NotFound::new(format!("there is no run `{text}`"), advice(text, &newest)))
        }
        [first, .., last] => {
            let message = format!("`{text}` begins the ids of {} runs, {first} to {last}", found.len());
            Err(NotFound::new(message, Some("write more of it".to_owned())))
        }
    }
}

/// Interprets `text` as the first of these that fits: `latest` or `previous`; a node (`NODE`, `NODE.PORT`) or what a
/// loop hands on (`LOOP.NAME`) of `run`, or of the newest run of the one pipeline that has it; a pin; a run id or its prefix; an artifact
/// id or its prefix; a node key or its prefix; a file or its digest.
///
/// # Errors
/// Fails if nothing fits, or more than one thing does.
pub fn resolve(
    store: &Store,
    catalog: &Catalog,
    text: &str,
    run: Option<&str>,
    directory: &Path,
) -> Result<Target, NotFound> {
    match run {
        None if matches!(text, "latest" | "previous") => return run_of(store, text).map(Target::Run),
        // Of the runs that are meant, the one that was named.
        Some(run) if text == "latest" => return run_of(store, run).map(Target::Run),
        _ => {}
    }
    let runs = match run {
        Some(run) => vec![run_of(store, run)?],
        None => store.newest_runs(),
    };
    let found = if run.is_some() { output_of(store, &runs, text) } else { newest_output(store, directory, text) };
    match found {
        Ok(Some((run, node, port))) => return Ok(Target::Node { run, node, port }),
        // `documents.jsonl` may be a file beside a node `documents`.
        Err(missing) if !directory.join(text).is_file() => return Err(missing),
        _ => {}
    }
    match store.pinned(text) {
        // A pin is of no run.
        Ok(Some(pin)) if run.is_none() => return Ok(Target::Artifact(pin.artifact)),
        Ok(_) => {}
        Err(error) => return Err(NotFound::unreadable(error.to_string())),
    }
    if text.len() >= LEAST_DIGITS && store.run_ids().iter().any(|id| id.starts_with(text)) {
        return run_of(store, text).map(Target::Run);
    }
    if let Some(found) = digest(catalog, text)? {
        return Ok(found);
    }
    if let Some(found) = file(store, catalog, text, directory)? {
        return Ok(found);
    }
    if let Some(nothing) = came_to_nothing(store, &runs, text) {
        return Err(nothing);
    }
    if run.is_some()
        && let Some(earlier) = earlier_run(store, &runs[0], text)
    {
        return Err(only_in(&runs[0], text, &earlier));
    }
    let message = format!("there is no run, node, pin, artifact or source `{text}` in the store");
    Err(NotFound::new(message, meant_output(store, &runs, text)))
}

/// Returns the nodes that decided which round `text` is of, if `text` names an output of a loop (`rl.policy`) in the
/// target's run. For other names there is nothing to decide.
pub fn choices(store: &Store, text: &str, target: &Target) -> Vec<Target> {
    let Target::Node { run, node: chosen, .. } = target else { return Vec::new() };
    if !matches!(of_loop(store, run, text), Ok(Some(_))) {
        return Vec::new();
    }
    let mut nodes = store.run_nodes(run);
    nodes.retain(|node| node.hands_on.contains(&chosen.node));
    nodes.into_iter().map(|node| Target::Node { run: run.clone(), node: Box::new(node), port: None }).collect()
}

fn digest(catalog: &Catalog, text: &str) -> Result<Option<Target>, NotFound> {
    if text.len() < LEAST_DIGITS || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(None);
    }
    let text = text.to_ascii_lowercase();
    let mut found: Vec<Target> = Vec::new();
    let artifacts = catalog.artifacts().filter(|id| id.to_string().starts_with(&text));
    found.extend(artifacts.map(|id| Target::Artifact(*id)));
    let keys = catalog.results().map(|result| result.key).chain(catalog.damaged().map(|(key, _)| *key));
    found.extend(keys.filter(|key| key.to_string().starts_with(&text)).map(Target::Result));
    found.extend(sources(catalog, |_, content| content.starts_with(&text) && Digest::parse(content).is_some()));
    if found.len() > 1 {
        let message = format!("`{text}` is the prefix of {} digests in the store", found.len());
        return Err(NotFound::new(message, Some("write more of it".to_owned())));
    }
    Ok(found.pop())
}

/// Returns the sources (name in the key, content) accepted by a test, each content once.
fn sources(catalog: &Catalog, accept: impl Fn(&str, &str) -> bool) -> Vec<Target> {
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut found = Vec::new();
    for result in catalog.results() {
        for source in Preimage::read(&result.preimage).sources {
            let (name, content) = (source.name, source.content);
            if !known.contains(&content) && accept(&name, &content) {
                known.insert(content.clone());
                found.push(Target::Source { name, content });
            }
        }
    }
    found
}

fn file(store: &Store, catalog: &Catalog, text: &str, directory: &Path) -> Result<Option<Target>, NotFound> {
    let path = directory.join(text);
    if !path.is_file() {
        // A missing file, or an address.
        let mut found = sources(catalog, |name, _| name == text);
        return Ok((found.len() == 1).then(|| found.remove(0)));
    }
    let digest = hash_file(&path).map_err(|error| NotFound::unreadable(format!("`{text}` cannot be read: {error}")))?;
    let mut found = sources(catalog, |_, content| content == digest.hex());
    if let Some(Target::Source { content, .. }) = found.pop() {
        return Ok(Some(Target::Source { name: text.to_owned(), content }));
    }
    // The folder artifact that contains a file with that content.
    for id in catalog.artifacts() {
        if store.artifact(id).is_some_and(|artifact| artifact.parts.iter().any(|part| part.digest == digest)) {
            return Ok(Some(Target::Delivered { name: text.to_owned(), id: *id }));
        }
    }
    let message = format!("no result in the store used or wrote `{text}` with its current content");
    let read = read_before(catalog, &path);
    let mut help = read.map(|content| format!("it was read with the content {content}: trace that digest"));
    if help.is_none() {
        let node = written_before(store, catalog, &path);
        help = node.map(|node| format!("`{node}` wrote a file of this name with other content"));
    }
    let cause = if help.is_some() { Missing::Changed } else { Missing::Unknown };
    Err(NotFound { message, help, cause })
}

/// Returns the node that wrote a file of that name.
fn written_before(store: &Store, catalog: &Catalog, path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    for id in catalog.artifacts() {
        // The names of a table's parts are not its user's.
        if let Some(artifact) = store.artifact(id)
            && matches!(artifact.artifact_type, ArtifactType::Tree { .. })
            && artifact.parts.iter().any(|part| part.name == name)
        {
            let maker = catalog.makers(id).first()?;
            return catalog.node(&maker.key).map(str::to_owned);
        }
    }
    None
}

/// Returns the content with which a path was last read.
fn read_before(catalog: &Catalog, path: &Path) -> Option<String> {
    let path = std::path::absolute(path).ok()?.display().to_string();
    let read = catalog.results().filter_map(|result| {
        let source = result.origin.as_ref()?.sources.iter().find(|source| source.path == path)?;
        Some((result.finished, source.content.clone()))
    });
    let (_, content) = read.max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(content)
}

/// Says for a command with `--run` that a run has no such output, and which earlier run has it, or what may be meant.
pub fn no_output(store: &Store, run: &str, name: &str) -> NotFound {
    earlier_run(store, run, name).map_or_else(|| no_node(store, run, name), |earlier| only_in(run, name, &earlier))
}

fn only_in(run: &str, name: &str, earlier: &str) -> NotFound {
    NotFound::new(format!("the run {run} has no output of `{name}`"), Some(has_one(earlier)))
}

/// Says that a run has no such node, and what may be meant.
pub fn no_node(store: &Store, run: &str, name: &str) -> NotFound {
    let near = meant_output(store, &[run.to_owned()], name);
    NotFound::new(format!("the run {run} has no node `{name}`"), near)
}

/// Suggests a node of the first of these runs, or what a loop of it handed on, for an unknown name.
pub fn meant_output(store: &Store, runs: &[String], text: &str) -> Option<String> {
    let run = runs.first()?;
    let mut nodes = store.run_nodes(run);
    nodes.retain(|node| node.outcome != NodeOutcome::Ended);
    // Nodes are recorded as they end: two runs of one pipeline should suggest the same.
    nodes.sort_by(|one, other| one.node.cmp(&other.node));
    let names: Vec<&str> = nodes.iter().map(|node| node.node.as_str()).collect();
    let handed_on = store.run(run).map(|record| record.handed_on).unwrap_or_default();
    Some(meant(text, &names, handed_on.keys().map(String::as_str)))
}

/// Returns the output of that name (`NODE`, `NODE.PORT`, `LOOP.NAME`) of the newest run of its pipeline.
///
/// # Errors
/// Fails if the newest runs of several pipelines have it, or if only an earlier run has.
pub fn newest_output(store: &Store, directory: &Path, text: &str) -> Result<Option<NamedOutput>, NotFound> {
    let newest = newest_of_each(store);
    // Of an imported run, or of a pipeline that is no longer here: meant only if no pipeline that is here had it.
    let mut elsewhere = None;
    let mut found: Vec<(&RunRecord, NamedOutput)> = Vec::new();
    for record in &newest {
        let Some(output) = output_of(store, std::slice::from_ref(&record.id), text)? else { continue };
        if is_here(directory, record, &newest) {
            found.push((record, output));
        } else {
            elsewhere = elsewhere.or(Some(output));
        }
    }
    if found.len() > 1 {
        let message = format!("{} pipelines have `{text}`", found.len());
        let choices = found.iter().map(|(run, _)| format!("{} (`{}`, {})", run.id, run.pipeline, run.file));
        let help = format!(
            "choose a run with `--run RUN`: {}; `show`, `path`, `trace` and `audit` take `--file FILE` too",
            choices.collect::<Vec<_>>().join(", ")
        );
        return Err(NotFound::new(message, Some(help)));
    }
    if let Some((_, output)) = found.pop() {
        return Ok(Some(output));
    }
    for run in store.newest_runs() {
        let Some(output) = output_of(store, std::slice::from_ref(&run), text)? else { continue };
        let newer = match store.run(&run) {
            Some(earlier) if !store.is_imported(&run) => newest.iter().find(|newer| newer.pipeline == earlier.pipeline),
            _ => None,
        };
        match newer.filter(|newer| is_here(directory, newer, &newest)) {
            None => elsewhere = elsewhere.or(Some(output)),
            // The pin of this name is meant.
            Some(_) if store.pinned(text).is_ok_and(|pin| pin.is_some()) => return Ok(None),
            Some(newer) => return Err(only_earlier(store, newer, &run, text)),
        }
    }
    Ok(elsewhere)
}

/// Returns the newest run before `run` of the same pipeline that has an output of that name.
fn earlier_run(store: &Store, run: &str, text: &str) -> Option<String> {
    let record = store.run(run)?;
    for earlier in store.newest_runs() {
        // Ids of runs sort by time.
        if earlier.as_str() < run
            && store.run(&earlier).is_some_and(|other| other.pipeline == record.pipeline)
            && matches!(output_of(store, std::slice::from_ref(&earlier), text), Ok(Some(_)))
        {
            return Some(earlier);
        }
    }
    None
}

/// Returns the newest run of each pipeline, the newest first.
fn newest_of_each(store: &Store) -> Vec<RunRecord> {
    let mut names = BTreeSet::new();
    let mut newest = Vec::new();
    for id in store.newest_runs() {
        if store.is_imported(&id) {
            continue;
        }
        let Some(record) = store.run(&id) else { continue };
        if names.insert(record.pipeline.clone()) {
            newest.push(record);
        }
    }
    newest
}

/// Whether the file of a run is here and still has that pipeline. In a store of several folders, another pipeline may have
/// a file of the same name. A file that cannot be read, as it may be while somebody edits it, has its newest run's.
fn is_here(directory: &Path, run: &RunRecord, newest: &[RunRecord]) -> bool {
    let file = directory.join(&run.file);
    if !file.is_file() {
        return false;
    }
    match name_in(&file) {
        Some(name) => name == run.pipeline,
        None => newest.iter().find(|other| other.file == run.file).is_some_and(|other| other.id == run.id),
    }
}

/// Returns the name of the pipeline in a file; `None` if it cannot be read.
pub(crate) fn name_in(file: &Path) -> Option<String> {
    spec::read(file, &Overrides::default(), &mut SourceMap::default()).spec.map(|spec| spec.name)
}

/// The error of a name that the newest run of a pipeline has no output for, but an earlier one has.
fn only_earlier(store: &Store, newer: &RunRecord, earlier: &str, text: &str) -> NotFound {
    let (id, pipeline) = (&newer.id, &newer.pipeline);
    let message = match came_to_nothing(store, std::slice::from_ref(id), text) {
        _ if store.is_running(id) => format!("`{text}` is not there yet: run {id} of `{pipeline}` is running"),
        Some(why) => why.message,
        None => format!("the newest run {id} of `{pipeline}` has no output of `{text}`"),
    };
    NotFound::new(message, Some(has_one(earlier)))
}

fn has_one(earlier: &str) -> String {
    format!("an earlier run has one: `--run {earlier}`; or run the pipeline again")
}
