//! Resolves a name on the command line to an artifact and the result that produced it.

use std::collections::BTreeSet;

use super::failure::Failure;
use crate::lineage::archive::Root;
use crate::lineage::came_to_nothing;
use crate::store::{ArtifactId, Makers, NodeRun, OutputRecord, Store};

/// Finds `NODE` or `NODE.PORT` of the newest run that has it (or of `run`), an artifact's id or a prefix of it, or a
/// pin.
pub(super) fn find(store: &Store, what: &str, run: Option<&str>) -> Result<Root, Failure> {
    let ids = store.newest_runs();
    let runs: Vec<&String> = ids.iter().filter(|id| run.is_none_or(|run| id.starts_with(run))).collect();
    if runs.is_empty() && run.is_some() {
        return Err(Failure::usage(format!("there is no run `{}`", run.unwrap_or_default()))
            .with_help("`searchmill runs` lists them"));
    }
    for id in runs {
        for (name, port) in [(what, None)].into_iter().chain(what.rsplit_once('.').map(|(n, p)| (n, Some(p)))) {
            let nodes = store.run_nodes(id);
            if let Some(node) = nodes.iter().find(|node| node.node == name && !node.outputs.is_empty()) {
                return of_node(store, id, node, port);
            }
        }
    }
    if let Ok(Some(pin)) = store.pinned(what) {
        return Ok(Root { artifact: pin.artifact, key: pin.key, name: pin.from, run: None });
    }
    if let Some(reason) = came_to_nothing(store, &ids, what) {
        return Err(reason.into());
    }
    by_prefix(store, what)
}

fn of_node(store: &Store, run: &str, node: &NodeRun, port: Option<&str>) -> Result<Root, Failure> {
    let output: Option<(&str, &OutputRecord)> = match port {
        None => node.outputs.first().map(|(port, output)| (port.as_str(), output)),
        Some(port) => node.outputs.get(port).map(|output| (port, output)),
    };
    let Some((port, output)) = output else {
        let ports = node.outputs.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = format!("node `{}` has no output `{}`", node.node, port.unwrap_or_default());
        return Err(Failure::usage(message).with_help(format!("its outputs: {ports}")));
    };
    let pipeline = store.run(run).map(|record| record.pipeline).unwrap_or_default();
    let name = format!("{pipeline}/{}.{port}", node.node);
    Ok(Root { artifact: output.id, key: node.key, name, run: Some(run.to_owned()) })
}

fn by_prefix(store: &Store, prefix: &str) -> Result<Root, Failure> {
    let nodes = store.newest_runs().into_iter().flat_map(|run| {
        let nodes = store.run_nodes(&run);
        nodes.into_iter().map(move |node| (run.clone(), node))
    });
    let mut found: Vec<(ArtifactId, String, NodeRun, String)> = Vec::new();
    for (run, node) in nodes {
        for (port, output) in &node.outputs {
            let fits = prefix.len() >= 4 && output.id.to_string().starts_with(prefix);
            if fits && found.iter().all(|(id, ..)| *id != output.id) {
                found.push((output.id, run.clone(), node.clone(), port.clone()));
            }
        }
    }
    match found.as_slice() {
        [(_, run, node, port)] => of_node(store, run, node, Some(port)),
        [] => by_id(store, prefix),
        _ => {
            Err(Failure::usage(format!("`{prefix}` begins more than one artifact's id")).with_help("write more of it"))
        }
    }
}

/// Finds an artifact that no run names, such as an imported one.
fn by_id(store: &Store, text: &str) -> Result<Root, Failure> {
    let unknown = || {
        Failure::usage(format!("there is no node and no artifact `{text}` in the store"))
            .with_help("`searchmill runs` lists runs; `searchmill status FILE` lists nodes and artifacts")
    };
    let id = ArtifactId::parse(text).filter(|id| store.artifact(id).is_some()).ok_or_else(unknown)?;
    let key = Makers::read(store).of(&id, &BTreeSet::new()).first().copied();
    Ok(Root { artifact: id, key, name: id.digest().short(), run: None })
}
