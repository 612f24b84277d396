//! Outputs by name: `NODE`, `NODE.PORT`, or what a loop hands on (`LOOP.NAME`).

use crate::spec::{advice, same_output, several_loops};
use crate::store::{NodeOutcome, NodeRun, Store};

/// Why nothing was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The store knows nothing of that name.
    Unknown,
    /// A file of that name is known with other content.
    Changed,
    /// What has that name cannot be read.
    Unreadable,
}

/// Nothing of that name was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFound {
    /// The error.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
    /// The cause.
    pub cause: Missing,
}

impl NotFound {
    pub(super) fn new(message: impl Into<String>, help: Option<String>) -> Self {
        Self { message: message.into(), help, cause: Missing::Unknown }
    }

    pub(super) fn unreadable(message: String) -> Self {
        Self { message, help: None, cause: Missing::Unreadable }
    }
}

/// Explains why a node of that name (`NODE`, `NODE.PORT`) has nothing to show: the newest run that has it recorded no
/// outputs for it.
pub fn came_to_nothing(store: &Store, runs: &[String], text: &str) -> Option<NotFound> {
    for run in runs {
        let text = match of_loop(store, run, text) {
            Ok(Some((_, Some(output)))) => output,
            Ok(Some((_, None))) => {
                let message = format!("`{text}` is not known: its loop had not ended when run {run} did");
                return Some(NotFound::new(message, Some("run the pipeline again".to_owned())));
            }
            _ => text.to_owned(),
        };
        let name = text.rsplit_once('.').map_or(text.as_str(), |(name, _)| name);
        let nodes = store.run_nodes(run);
        // The last record of a node is how it ended.
        let Some(node) = nodes.iter().rfind(|node| node.node == text || node.node == name) else { continue };
        let (what, why) = match node.outcome {
            NodeOutcome::Failed => ("failed", node.error.as_ref()),
            NodeOutcome::Skipped if node.was_interrupted() => ("was interrupted", None),
            NodeOutcome::Skipped => ("was skipped", None),
            NodeOutcome::Ended => ("did not run, as its loop had ended,", node.error.as_ref()),
            NodeOutcome::Begun if store.is_running(run) => ("has not ended yet", None),
            NodeOutcome::Begun => ("was stopped before its end", None),
            NodeOutcome::Cached | NodeOutcome::Finished | NodeOutcome::HeldBack | NodeOutcome::CheckFailed => {
                return None;
            }
        };
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        let message = format!("`{}` has nothing to show: it {what} in run {run}{why}", node.node);
        return Some(NotFound::new(message, Some(format!("its output: `searchmill logs {run} --node {}`", node.node))));
    }
    None
}

/// A run, its node, and the port if one was written.
pub(super) type NamedOutput = (String, Box<NodeRun>, Option<String>);

/// Returns the run, the node and the port, if one was written, of `NODE`, `NODE.PORT` or what a loop hands on (`LOOP.NAME`)
/// in the first run that has outputs of that node.
///
/// # Errors
/// Fails if the node has no such port, or if several loops of a matrix hand on an output of that name.
pub fn output_of(store: &Store, runs: &[String], text: &str) -> Result<Option<NamedOutput>, NotFound> {
    for run in runs {
        let handed_on = match of_loop(store, run, text)? {
            Some((_, None)) => continue,
            Some((_, output)) => output,
            None => None,
        };
        let text = handed_on.as_deref().unwrap_or(text);
        let nodes = store.run_nodes(run);
        // The whole text first: names of matrix nodes may contain dots.
        let written = text.rsplit_once('.').map(|(name, port)| (name, Some(port)));
        for (name, port) in [(text, None)].into_iter().chain(written) {
            let Some(node) = nodes.iter().find(|node| node.node == name && !node.outputs.is_empty()) else { continue };
            if let Some(port) = port
                && !node.outputs.contains_key(port)
            {
                let ports: Vec<&str> = node.outputs.keys().map(String::as_str).collect();
                let message = format!("node `{}` has no output `{port}`", node.node);
                return Err(NotFound::new(message, advice(port, &ports)));
            }
            return Ok(Some((run.clone(), Box::new(node.clone()), port.map(str::to_owned))));
        }
    }
    Ok(None)
}

/// Returns what a loop of the run handed on under that name, with the output (`NODE`, `NODE.PORT`) if that was decided.
pub(super) fn of_loop(store: &Store, run: &str, text: &str) -> Result<Option<(String, Option<String>)>, NotFound> {
    if !text.contains('.') {
        return Ok(None);
    }
    let mut found = store.run(run).map(|record| record.handed_on).unwrap_or_default();
    found.retain(|name, _| same_output(name, text));
    if found.len() > 1 {
        let (message, help) = several_loops(text, &found.keys().map(String::as_str).collect::<Vec<_>>());
        return Err(NotFound::new(message, Some(help)));
    }
    Ok(found.pop_first())
}
