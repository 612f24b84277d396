//! Programs and devices for nodes in processes of their own, and what is said where they are missing.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use searchmill_engine::diagnostic::Diagnostic;
use searchmill_engine::execute::{NO_GPU, Request, Workers, devices, not_known};
use searchmill_engine::plan::Plan;
use searchmill_engine::store::Store;

use crate::exit::Failure;
use crate::pipeline;

/// The program that is built for CUDA: it does not start without a driver, so it is not this one.
const CUDA: &str = "searchmill-worker-cuda";

/// What nodes of this plan may be run in. The driver is only asked where a node wants a GPU: that takes a while.
pub(crate) fn workers(plan: &Plan) -> Result<Workers, Failure> {
    let wants_gpus = plan.nodes().iter().any(|node| node.spec.resources.gpus > 0);
    let devices = if wants_gpus { devices(visible().as_deref()).map_err(Failure::Other)? } else { Vec::new() };
    let seconds = std::env::var("SEARCHMILL_WORKER_SILENCE").ok().and_then(|text| text.parse().ok());
    let silence = seconds.map(Duration::from_secs).unwrap_or_default();
    Ok(Workers { cpu: std::env::current_exe().ok(), cuda: cuda_worker(), devices, silence })
}

/// What the caller lets this process see.
pub(crate) fn visible() -> Option<String> {
    std::env::var("CUDA_VISIBLE_DEVICES").ok()
}

/// The worker for CUDA: as named, beside this program, or on PATH.
pub(crate) fn cuda_worker() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("SEARCHMILL_WORKER_CUDA") {
        return Some(PathBuf::from(named));
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(CUDA)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join(CUDA));
    beside.into_iter().chain(on_path).find(|program| program.is_file())
}

/// Nodes that would run and cannot run here are told before anything runs.
pub(crate) fn check(
    plan: &Plan,
    workers: &Workers,
    store: &Store,
    selected: &BTreeSet<usize>,
    request: Request<'_>,
) -> Result<(), Failure> {
    let lacking = |place: &usize| {
        let node = &plan.nodes()[*place];
        let resources = &node.spec.resources;
        !workers.suffice(resources) || !workers.reach(resources, node.operator.declaration.runs_programs)
    };
    let lacking: Vec<usize> = selected.iter().copied().filter(lacking).collect();
    let lacking = not_known(plan, store, request, lacking)?;
    let findings: Vec<Diagnostic> = lacking.iter().map(|place| finding(plan, *place, workers)).collect();
    if findings.is_empty() { Ok(()) } else { Err(Failure::Pipeline(findings, Box::new(pipeline::texts(plan)))) }
}

fn finding(plan: &Plan, place: usize, workers: &Workers) -> Diagnostic {
    let node = &plan.nodes()[place];
    let (wanted, there) = (node.spec.resources.gpus, workers.devices.len());
    let gpus = |count: usize| if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") };
    let wants = format!("`{}` wants {}", node.id(), gpus(wanted as usize));
    if workers.suffice(&node.spec.resources) {
        let fault = Diagnostic::error("no-cuda-worker", format!("{wants}, and there is no `{CUDA}` to run it in"));
        let help = format!("put `{CUDA}` beside `searchmill` or on PATH, or name it in SEARCHMILL_WORKER_CUDA");
        return fault.at(node.spec.id_span, "").help(help);
    }
    let has = if there == 0 { "none".to_owned() } else { gpus(there) };
    let fault = Diagnostic::error("no-gpu", format!("{wants}, and this machine has {has}"));
    fault.at(node.spec.id_span, "").help(NO_GPU)
}
