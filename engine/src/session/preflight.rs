//! Checks nodes that would run without the GPUs, programs, secrets or columns they need, before a run costs money.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::open::Session;
use super::pipeline::Pipeline;
use crate::diagnostic::Diagnostic;
use crate::execute::{Chosen, NO_GPU, Request, Workers, devices, not_known};
use crate::fingerprint::Digest;
use crate::node_id::NodeId;
use crate::plan::{Node, NodeIndex, Plan};
use crate::store::Store;

/// The worker program built for CUDA. A separate program, because it does not start without a driver.
const CUDA: &str = "searchmill-worker-cuda";

/// Returns the CUDA worker: the path in SEARCHMILL_WORKER_CUDA, else next to this program or on PATH.
pub fn cuda_worker() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("SEARCHMILL_WORKER_CUDA") {
        return Some(PathBuf::from(named));
    }
    let mut folders = Vec::new();
    // Beside this program first: a worker on PATH may be of another version.
    if let Ok(own) = std::env::current_exe() {
        folders.extend(own.parent().map(Path::to_owned));
    }
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    folders.into_iter().map(|folder| folder.join(CUDA)).find(|program| program.is_file())
}

/// Returns the GPUs that this process may see (`CUDA_VISIBLE_DEVICES`).
pub fn visible_devices() -> Option<String> {
    std::env::var("CUDA_VISIBLE_DEVICES").ok()
}

/// Adds the machine's GPUs to the workers. Asks the driver only if a node needs a GPU: that takes time.
pub(super) fn with_devices(workers: &Workers, plan: &Plan) -> Result<Workers, Failure> {
    let wants_gpus = plan.nodes.iter().any(|node| node.spec.resources.gpus > 0);
    let found = if wants_gpus { devices(visible_devices().as_deref()).map_err(Failure::Other)? } else { Vec::new() };
    Ok(Workers { devices: found, ..workers.clone() })
}

/// Unset secrets of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsetSecrets {
    node: NodeId,
    /// Names of the secrets.
    pub names: Vec<String>,
}

impl fmt::Display for UnsetSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted: Vec<String> = self.names.iter().map(|name| format!("`{name}`")).collect();
        let (word, verb) = if self.names.len() == 1 { ("secret", "is") } else { ("secrets", "are") };
        write!(f, "`{}` needs the {word} {}, which {verb} not set", self.node, quoted.join(" and "))
    }
}

impl Session {
    /// Returns the unset secrets that a node needs, if any.
    pub fn unset_secrets(&self, node: &Node) -> Option<UnsetSecrets> {
        let needed = node.needed_secrets().into_iter();
        let names: Vec<String> = needed.filter(|name| (self.secrets)(name).is_none()).collect();
        if names.is_empty() { None } else { Some(UnsetSecrets { node: node.id().to_owned(), names }) }
    }

    /// Rejects nodes that would run but do not fit the known columns, cannot run on this machine, or lack a secret.
    /// Returns the digest of the plan if all of it fits the columns.
    pub(super) fn preflight(
        &self,
        pipeline: &Pipeline,
        workers: &Workers,
        store: &Store,
        chosen: &Chosen,
        request: Request<'_>,
    ) -> Result<Option<Digest>, Failure> {
        let plan = &pipeline.plan;
        // Planning queries takes longer than a run that finds everything cached: a plan is checked once.
        let digest = plan.columns_digest();
        let mut fits = fitted_before(plan, store, digest);
        if !fits {
            // Reversed: of several findings of a node, the first one stays in the map.
            let mut issues: BTreeMap<NodeIndex, Diagnostic> = plan.column_issues().into_iter().rev().collect();
            fits = issues.is_empty();
            issues.retain(|index, _| chosen.selected.contains(index));
            refuse_of_runs(pipeline, store, request, issues)?;
        }
        let selected = chosen.selected.iter().map(|index| (*index, &plan[*index]));
        let findings = selected.clone().filter_map(|(index, node)| Some((index, gpu_finding(node, workers)?)));
        refuse_of_runs(pipeline, store, request, findings.collect())?;
        let findings = selected.filter_map(|(index, node)| Some((index, self.secret_finding(node)?)));
        refuse_of_runs(pipeline, store, request, findings.collect())?;
        Ok(if fits { Some(digest) } else { None })
    }

    fn secret_finding(&self, node: &Node) -> Option<Diagnostic> {
        let unset = self.unset_secrets(node)?;
        let help = unset.names.iter().map(|name| format!("set the environment variable {name}"));
        let help = help.collect::<Vec<_>>().join("; ");
        Some(Diagnostic::error("secret-not-set", unset.to_string()).at(node.spec.id_span, "").help(help))
    }
}

/// Rejects the nodes with findings that would run. Cached ones need nothing.
fn refuse_of_runs(
    pipeline: &Pipeline,
    store: &Store,
    request: Request<'_>,
    mut findings: BTreeMap<NodeIndex, Diagnostic>,
) -> Result<(), Failure> {
    let running = not_known(&pipeline.plan, store, request, findings.keys().copied().collect())?;
    pipeline.refuse(running.iter().filter_map(|index| findings.remove(index)).collect())
}

/// Whether the last run of the pipeline found that the same plan fits its columns. Looks at the newest runs alone.
fn fitted_before(plan: &Plan, store: &Store, digest: Digest) -> bool {
    const RUNS: usize = 5;
    for id in store.newest_runs().into_iter().take(RUNS) {
        if let Some(run) = store.run(&id)
            && run.pipeline == plan.name
        {
            return run.fits == Some(digest);
        }
    }
    false
}

fn gpus(count: usize) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}

fn gpu_finding(node: &Node, workers: &Workers) -> Option<Diagnostic> {
    let resources = &node.spec.resources;
    let (wanted, there) = (resources.gpus as usize, workers.devices.len());
    let wants = format!("`{}` needs {}", node.id(), gpus(wanted));
    if !workers.suffice(resources) {
        let has = if there == 0 { "none".to_owned() } else { gpus(there) };
        let fault = Diagnostic::error("no-gpu", format!("{wants}, and this machine has {has}"));
        return Some(fault.at(node.spec.id_span, "").help(NO_GPU));
    }
    if workers.reach(resources, node.operator.declaration.runs_programs) {
        return None;
    }
    let fault = Diagnostic::error("no-cuda-worker", format!("{wants}, but `{CUDA}` was not found"));
    let help = format!("put `{CUDA}` next to `searchmill` or on PATH, or set SEARCHMILL_WORKER_CUDA to its path");
    Some(fault.at(node.spec.id_span, "").help(help))
}
