//! `doctor`: checks this machine for searchmill's requirements.

use std::process::Command;

use searchmill_engine::{Device, Failure, Session, cuda_worker, devices, visible_devices};
use serde::Serialize;
use serde_json::json;

use crate::display::{Terminal, bytes};
use crate::exit::{FAILED, OK};

/// Result of one check.
#[derive(Serialize)]
struct Finding {
    what: &'static str,
    /// `ok`, `absent` (optional) or `wrong`.
    state: &'static str,
    detail: String,
}

pub(super) fn doctor(terminal: &Terminal, session: &Session) -> u8 {
    let devices = devices(visible_devices().as_deref());
    let mut findings = vec![processor(), memory(), store(session)];
    findings.extend(gpus(&devices));
    findings.push(worker());
    if terminal.is_json() {
        let version = env!("CARGO_PKG_VERSION");
        terminal.json(&json!({"searchmill": version, "findings": findings, "devices": devices.unwrap_or_default()}));
    } else {
        let mut rows = Vec::new();
        for Finding { what, state, detail } in &findings {
            rows.push(vec![(*what).to_owned(), (*state).to_owned(), detail.clone()]);
        }
        terminal.table(&["what", "state", "detail"], &rows);
    }
    if findings.iter().any(|found| found.state == "wrong") { FAILED } else { OK }
}

impl Finding {
    fn new(what: &'static str, state: &'static str, detail: String) -> Self {
        Self { what, state, detail }
    }
}

fn processor() -> Finding {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    let model = model.unwrap_or(std::env::consts::ARCH);
    #[cfg(not(target_arch = "x86_64"))]
    let vector_units: [(&str, bool); 0] = [];
    #[cfg(target_arch = "x86_64")]
    let vector_units = [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("AVX-512", is_x86_feature_detected!("avx512f")),
        ("VNNI", is_x86_feature_detected!("avx512vnni")),
    ];
    let units = vector_units.iter().filter(|(_, there)| *there).map(|(name, _)| format!(", {name}"));
    Finding::new("processor", "ok", format!("{model}, {threads} threads{}", units.collect::<String>()))
}

fn memory() -> Finding {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    // `MemAvailable`, not `MemFree`: the page cache makes room for programs.
    if let (Some(total), Some(free)) = (kibibytes(&text, "MemTotal:"), kibibytes(&text, "MemAvailable:")) {
        let detail = format!("{}, {} available", bytes(total << 10), bytes(free << 10));
        return Finding::new("memory", "ok", detail);
    }
    Finding::new("memory", "absent", "unknown on this system".to_owned())
}

fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

/// Checks that the store exists and is writable. Does not create one.
fn store(session: &Session) -> Finding {
    let store = session.store();
    let shown = store.location();
    let writable = match store.exists() {
        Ok(false) => {
            return Finding::new("store", "absent", format!("none at {shown} yet: `searchmill run` creates it"));
        }
        Ok(true) => store.probe(),
        Err(failure) => Err(failure),
    };
    let why = match writable {
        Ok(()) => return Finding::new("store", "ok", format!("{shown}, writable")),
        Err(Failure::Usage { message, .. }) => message,
        Err(Failure::Pipeline(..)) => "invalid pipeline".to_owned(),
        Err(other) => other.to_string(),
    };
    Finding::new("store", "wrong", why)
}

fn gpus(devices: &Result<Vec<Device>, String>) -> Vec<Finding> {
    match devices {
        Err(why) => vec![Finding::new("GPU", "wrong", why.clone())],
        Ok(devices) if devices.is_empty() => {
            let why = match visible_devices() {
                Some(list) => format!("none visible in CUDA_VISIBLE_DEVICES (`{list}`)"),
                None => "nvidia-smi lists none".to_owned(),
            };
            vec![Finding::new("GPU", "absent", why)]
        }
        Ok(devices) => devices.iter().map(gpu).collect(),
    }
}

fn gpu(device: &Device) -> Finding {
    let (total, free) = (bytes(device.memory), bytes(device.free));
    let (index, name) = (device.index, &device.name);
    let (driver, compute) = (&device.driver, &device.compute);
    let detail = format!("{index}: {name}, {total}, {free} free, driver {driver}, compute capability {compute}");
    Finding::new("GPU", "ok", detail)
}

/// Checks the CUDA worker, and that it starts: without a driver it does not.
fn worker() -> Finding {
    let Some(program) = cuda_worker() else {
        let detail =
            "no searchmill-worker-cuda next to this program or on PATH (needed by nodes with `gpus`)".to_owned();
        return Finding::new("CUDA worker", "absent", detail);
    };
    let shown = program.display();
    match Command::new(&program).arg("--version").output() {
        Ok(told) if told.status.success() => {
            let version = String::from_utf8_lossy(&told.stdout).trim().to_owned();
            let ours = format!("searchmill {}", env!("CARGO_PKG_VERSION"));
            let state = if version == ours { "ok" } else { "wrong" };
            Finding::new("CUDA worker", state, format!("{shown}: {version}"))
        }
        Ok(told) => {
            let why = String::from_utf8_lossy(&told.stderr).trim().to_owned();
            Finding::new("CUDA worker", "wrong", format!("{shown} does not start: {why}"))
        }
        Err(error) => Finding::new("CUDA worker", "wrong", format!("{shown} does not start: {error}")),
    }
}
