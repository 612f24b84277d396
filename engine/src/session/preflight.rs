//! What nodes need of the machine and of the user, and the findings for nodes that would run without it: reported before
//! anything is paid for.

use std::fmt;
use std::path::PathBuf;

use super::failure::Failure;
use super::open::Session;
use super::options::Chosen;
use super::pipeline::Pipeline;
use crate::diagnostic::Diagnostic;
use crate::execute::{NO_GPU, Request, Workers, devices, not_known};
use crate::plan::{Node, Plan};
use crate::store::Store;

/// The worker program that is built for CUDA. It does not start without a driver, so it is a program of its own.
const CUDA: &str = "searchmill-worker-cuda";

/// The worker for CUDA: as SEARCHMILL_WORKER_CUDA names it, beside this program, or on PATH.
#[must_use]
pub fn cuda_worker() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("SEARCHMILL_WORKER_CUDA") {
        return Some(PathBuf::from(named));
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(CUDA)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(CUDA));
    beside.into_iter().chain(on_path).find(|program| program.is_file())
}

/// The GPUs that this process may see (`CUDA_VISIBLE_DEVICES`).
#[must_use]
pub fn visible_devices() -> Option<String> {
    std::env::var("CUDA_VISIBLE_DEVICES").ok()
}

/// The workers with the GPUs of this machine. The driver is only asked if a node wants a GPU: that takes a while.
pub(super) fn with_devices(workers: &Workers, plan: &Plan) -> Result<Workers, Failure> {
    let wants_gpus = plan.nodes().iter().any(|node| node.spec.resources.gpus > 0);
    let found = if wants_gpus { devices(visible_devices().as_deref()).map_err(Failure::Other)? } else { Vec::new() };
    Ok(Workers { devices: found, ..workers.clone() })
}

/// Secrets that a node refers to and that are not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsetSecrets {
    node: String,
    /// Their names.
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
    /// The secrets that a node refers to and that are not set, if there are any.
    #[must_use]
    pub fn unset_secrets(&self, node: &Node) -> Option<UnsetSecrets> {
        let names: Vec<String> = node.secrets().into_iter().filter(|name| (self.secrets)(name).is_none()).collect();
        (!names.is_empty()).then(|| UnsetSecrets { node: node.id().to_owned(), names })
    }

    /// Nodes that would run and cannot run on this machine, or would fail for want of a secret.
    pub(super) fn preflight(
        &self,
        pipeline: &Pipeline,
        workers: &Workers,
        store: &Store,
        chosen: &Chosen,
        request: Request<'_>,
    ) -> Result<(), Failure> {
        let plan = &pipeline.plan;
        let findings = |finding: &dyn Fn(&Node) -> Option<Diagnostic>| -> Result<Vec<Diagnostic>, Failure> {
            let of = |place: &usize| finding(&plan.nodes()[*place]);
            let lacking = chosen.selected.iter().copied().filter(|place| of(place).is_some()).collect();
            Ok(not_known(plan, store, request, lacking)?.iter().filter_map(of).collect())
        };
        pipeline.refuse(findings(&|node| gpu_finding(node, workers))?)?;
        pipeline.refuse(findings(&|node| Some(secret_finding(node, &self.unset_secrets(node)?)))?)
    }
}

fn secret_finding(node: &Node, unset: &UnsetSecrets) -> Diagnostic {
    let names = unset.names.iter();
    let help = names.map(|name| format!("set the environment variable {name}")).collect::<Vec<_>>().join("; ");
    Diagnostic::error("secret-not-set", unset.to_string()).at(node.spec.id_span, "").help(help)
}

fn gpu_finding(node: &Node, workers: &Workers) -> Option<Diagnostic> {
    let resources = &node.spec.resources;
    let (wanted, there) = (resources.gpus as usize, workers.devices.len());
    let gpus = |count: usize| if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") };
    let wants = format!("`{}` wants {}", node.id(), gpus(wanted));
    if !workers.suffice(resources) {
        let has = if there == 0 { "none".to_owned() } else { gpus(there) };
        let fault = Diagnostic::error("no-gpu", format!("{wants}, and this machine has {has}"));
        return Some(fault.at(node.spec.id_span, "").help(NO_GPU));
    }
    if workers.reach(resources, node.operator.declaration.runs_programs) {
        return None;
    }
    let fault = Diagnostic::error("no-cuda-worker", format!("{wants}, and there is no `{CUDA}` to run it in"));
    let help = format!("put `{CUDA}` beside `searchmill` or on PATH, or name it in SEARCHMILL_WORKER_CUDA");
    Some(fault.at(node.spec.id_span, "").help(help))
}
