//! Resolves a name on the command line to an artifact: `NODE`, `NODE.PORT`, an artifact's id or its prefix, or a pin.

use std::collections::BTreeSet;

use super::failure::Failure;
use super::open::Session;
use crate::lineage::archive::Root;
use crate::lineage::{came_to_nothing, meant_output, newest_output, no_output, output_of, run_of};
use crate::store::{ArtifactId, Makers, NodeRun, Pin, Store};

/// Digits of an id that must be written.
const LEAST_DIGITS: usize = 4;

/// An artifact that was found by name.
pub(super) struct Named {
    pub(super) artifact: ArtifactId,
    pub(super) origin: Origin,
}

/// Where a name was found.
pub(super) enum Origin {
    /// An output of a run.
    Output {
        run: String,
        node: Box<NodeRun>,
        port: String,
    },
    Pin(Pin),
    /// An artifact that no run names, such as an imported one.
    Store,
}

/// Finds an artifact in `run`, or the newest run of the one pipeline that has the node; among the pins, or by its id; with
/// `rejects`, the node's rejects.
pub(super) fn find(session: &Session, what: &str, run: Option<&str>, rejects: bool) -> Result<Named, Failure> {
    let store = session.existing()?;
    let runs = match run {
        Some(run) => vec![run_of(store, run)?],
        None => store.newest_runs(),
    };
    let found = match run {
        Some(_) => output_of(store, &runs, what)?,
        None => newest_output(store, session.directory(), what)?,
    };
    if let Some((run, node, port)) = found {
        let port = match port {
            _ if rejects => "rejects".to_owned(),
            Some(port) => port,
            // The first output is the main one.
            None => node.outputs.first().map(|(port, _)| port.clone()).unwrap_or_default(),
        };
        let Some(output) = node.outputs.get(&port) else {
            let ports = node.outputs.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let message = format!("node `{}` has no output `{port}`", node.node);
            return Err(Failure::usage(message).with_help(format!("its outputs: {ports}")));
        };
        return Ok(Named { artifact: output.id, origin: Origin::Output { run, node, port } });
    }
    // A pin or an id that begins like this is of no use if a run was named.
    if run.is_none() {
        if let Some(pin) = store.pinned(what)? {
            return Ok(Named { artifact: pin.artifact, origin: Origin::Pin(pin) });
        }
        if let Some(found) = by_prefix(store, what)? {
            return Ok(found);
        }
    }
    // A node that failed or was skipped is no unknown name.
    if let Some(nothing) = came_to_nothing(store, &runs, what) {
        return Err(nothing.into());
    }
    if run.is_some() {
        return Err(no_output(store, &runs[0], what).into());
    }
    let failure = Failure::usage(format!("there is no node and no artifact `{what}` in the store"));
    let all = "`searchmill runs` lists runs; `searchmill status FILE` lists nodes and artifacts";
    Err(failure.with_help(match meant_output(store, &runs, what) {
        Some(near) => format!("{near}; {all}"),
        None => all.to_owned(),
    }))
}

/// Finds the artifact whose id begins with `prefix`; the whole id also finds one that no run names.
fn by_prefix(store: &Store, prefix: &str) -> Result<Option<Named>, Failure> {
    let mut found: Vec<Named> = Vec::new();
    // The runs are read for it: not for every short name that is no node.
    let runs = if prefix.len() >= LEAST_DIGITS { store.newest_runs() } else { Vec::new() };
    for run in runs {
        for node in store.run_nodes(&run) {
            for (port, output) in &node.outputs {
                let fits = output.id.to_string().starts_with(prefix);
                if fits && found.iter().all(|known| known.artifact != output.id) {
                    let origin = Origin::Output { run: run.clone(), node: Box::new(node.clone()), port: port.clone() };
                    found.push(Named { artifact: output.id, origin });
                }
            }
        }
    }
    if found.len() > 1 {
        let message = format!("`{prefix}` begins more than one artifact's id");
        return Err(Failure::usage(message).with_help("write more of it"));
    }
    if let Some(found) = found.pop() {
        return Ok(Some(found));
    }
    match ArtifactId::parse(prefix) {
        Some(artifact) if store.artifact(&artifact).is_some() => Ok(Some(Named { artifact, origin: Origin::Store })),
        _ => Ok(None),
    }
}

impl Named {
    /// Returns the artifact with the result that produced it.
    pub(super) fn root(self, store: &Store) -> Root {
        let artifact = self.artifact;
        match self.origin {
            Origin::Output { run, node, port } => {
                let pipeline = store.run(&run).map(|record| record.pipeline).unwrap_or_default();
                Root { artifact, key: node.key, name: format!("{pipeline}/{}.{port}", node.node), run: Some(run) }
            }
            Origin::Pin(pin) => Root { artifact, key: pin.key, name: pin.from, run: None },
            Origin::Store => {
                let key = Makers::read(store).of(&artifact, &BTreeSet::new(), None).first().copied();
                Root { artifact, key, name: artifact.digest().short(), run: None }
            }
        }
    }
}
