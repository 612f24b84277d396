//! Reads artifacts by node or id.

use super::failure::Failure;
use super::find::find;
use super::open::Session;
use crate::lineage::{came_to_nothing, run_of};
use crate::operator::{InputArtifact, RowsInput};
use crate::plan::nearest;
use crate::store::{ArtifactId, OutputRecord, Store};

/// An artifact to show.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Id of the artifact.
    pub artifact: ArtifactId,
    /// The node's summary of the result; empty if a port was named.
    pub summary: String,
    /// Run and pipeline of the artifact, if the newest run does not have the node.
    pub older: Option<(String, String)>,
}

impl Session {
    /// Returns the rows of a table: `NODE` or `NODE.PORT` of the newest run that has it, an artifact's id, or a pin.
    ///
    /// # Errors
    /// Fails if there is no such table.
    pub fn rows(&self, what: &str) -> Result<RowsInput, Failure> {
        match self.input(what)? {
            InputArtifact::Rows(rows) => Ok(rows),
            InputArtifact::Tree(_) => Err(Failure::usage(format!("`{what}` is a folder, not a table"))),
        }
    }

    /// Returns the artifact of that name, resolved as by [`Session::rows`].
    ///
    /// # Errors
    /// Fails if there is none, or if its files are damaged.
    pub fn input(&self, what: &str) -> Result<InputArtifact, Failure> {
        let store = self.existing()?;
        self.artifact(&find(store, what, None)?.artifact)
    }

    /// Opens an artifact.
    ///
    /// # Errors
    /// Fails if it is not in the store, or if its files are damaged.
    pub fn artifact(&self, id: &ArtifactId) -> Result<InputArtifact, Failure> {
        Ok(self.existing()?.open_input(id)?)
    }

    /// Returns the artifact to show for a node, a port, an artifact's id or a pin; with `rejects`, the node's rejects.
    ///
    /// # Errors
    /// Fails if there is none.
    pub fn shown(&self, what: &str, run: Option<&str>, rejects: bool) -> Result<Shown, Failure> {
        let store = self.existing()?;
        let (node, port) = match what.rsplit_once('.') {
            Some((node, port)) => (node, Some(port)),
            None => (what, None),
        };
        let port = if rejects { Some("rejects") } else { port };
        let runs = match run {
            Some(run) => vec![run_of(store, run)?],
            None => store.newest_runs(),
        };
        for (back, id) in runs.iter().enumerate() {
            if let Some(mut shown) = of_run(store, id, node, port)? {
                let pipeline = || store.run(id).map(|run| run.pipeline).unwrap_or_default();
                shown.older = (back > 0).then(|| (id.clone(), pipeline()));
                return Ok(shown);
            }
        }
        if let Some(run) = run {
            let failed = came_to_nothing(store, &runs, node).map(Failure::from);
            return Err(failed.unwrap_or_else(|| Failure::usage(format!("the run {run} has no node `{node}`"))));
        }
        by_prefix(store, &runs, what).map(|artifact| Shown { artifact, summary: String::new(), older: None })
    }
}

/// Returns the output of a node in that run, if the run has the node.
fn of_run(store: &Store, run: &str, node: &str, port: Option<&str>) -> Result<Option<Shown>, Failure> {
    let mut nodes = store.run_nodes(run).into_iter();
    let Some(done) = nodes.find(|done| done.node == node && !done.outputs.is_empty()) else { return Ok(None) };
    let output = match port {
        None => done.outputs.first().map(|(_, output)| output),
        Some(port) => done.outputs.get(port),
    };
    let Some(output) = output else {
        let ports = done.outputs.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = format!("node `{node}` has no output `{}`", port.unwrap_or_default());
        return Err(Failure::usage(message).with_help(format!("its outputs: {ports}")));
    };
    let result = done.key.filter(|_| port.is_none()).and_then(|key| store.result(&key));
    let summary = result.map(|result| result.summary).unwrap_or_default();
    Ok(Some(Shown { artifact: output.id, summary, older: None }))
}

fn by_prefix(store: &Store, runs: &[String], prefix: &str) -> Result<ArtifactId, Failure> {
    if let Ok(Some(pin)) = store.pinned(prefix) {
        return Ok(pin.artifact);
    }
    if let Some(id) = ArtifactId::parse(prefix) {
        return Ok(id);
    }
    let mut found: Vec<OutputRecord> = store
        .run_ids()
        .iter()
        .flat_map(|run| store.run_nodes(run))
        .flat_map(|node| node.outputs.into_values())
        .filter(|output| prefix.len() >= 4 && output.id.to_string().starts_with(prefix))
        .collect();
    found.sort_by_key(|output| output.id);
    found.dedup_by_key(|output| output.id);
    match found.as_slice() {
        [one] => Ok(one.id),
        [] => Err(came_to_nothing(store, runs, prefix).map_or_else(|| unknown(store, prefix), Failure::from)),
        _ => {
            Err(Failure::usage(format!("`{prefix}` begins more than one artifact's id")).with_help("write more of it"))
        }
    }
}

fn unknown(store: &Store, name: &str) -> Failure {
    let failure = Failure::usage(format!("there is no node and no artifact `{name}` in the store"));
    let all = "`searchmill runs` lists runs; `searchmill status FILE` lists nodes and artifacts";
    failure.with_help(match near_node(store, name) {
        Some(near) => format!("did you mean `{near}`? {all}"),
        None => all.to_owned(),
    })
}

/// Returns the node of the newest run with the closest name.
fn near_node(store: &Store, name: &str) -> Option<String> {
    let nodes = store.run_nodes(store.newest_runs().first()?);
    nearest(name, nodes.iter().map(|done| done.node.as_str())).map(str::to_owned)
}
