//! `audit`: checks that what is recorded is what is there, and that it can be made again.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use searchmill_engine::execute::{Machine, ReplayOptions, replay};
use searchmill_engine::lineage::{Catalog, Roots, Target, note_unfinished, resolve, upstream, verify, verify_ledger};
use searchmill_engine::store::{NodeRun, Store};

use super::Session;
use crate::args::AuditArgs;
use crate::display::audit as page;
use crate::exit::{FAILED, Failure, NOT_CHECKED, OK};
use crate::pipeline;

pub(super) fn audit(session: &Session<'_>, args: &AuditArgs) -> Result<u8, Failure> {
    let store = session.existing_store()?;
    // What is looked at stays while it is looked at; a store that cannot be written cannot be collected either.
    let in_use = store.enter().ok();
    let catalog = Catalog::read(&store);
    let target = resolve(&store, &catalog, &args.what, args.run.as_deref(), &session.directory);
    let target = match target {
        // A file that was changed since it was read or written is no slip of the pen: the audit fails.
        Err(missing) if missing.changed => {
            let help = missing.help.map_or_else(String::new, |help| format!(" ({help})"));
            return Err(Failure::Other(format!("{}{help}", missing.message)));
        }
        other => other?,
    };
    let roots = Roots::of(&store, &catalog, &target);
    let closure = upstream(&catalog, &roots);
    let ledger = ledger(&store, &target);
    let mut report = verify(&store, &catalog, &roots, &closure, &ledger, args.strict);
    let mut runs: BTreeSet<String> = closure.steps.iter().map(|step| step.result.run.clone()).collect();
    runs.extend(run_of(&target));
    runs.extend(report.replaced.values().cloned());
    verify_ledger(&store, &runs, &mut report);
    if let Target::Run(run) = &target {
        note_unfinished(&store, run, &mut report);
    }
    let seed = args.seed.unwrap_or_else(clock);
    if args.replay || args.rollouts {
        let options = ReplayOptions {
            replay: args.replay,
            recheck: args.rollouts,
            sample: args.sample,
            seed,
            allow_programs: args.allow_programs,
            machine: Machine::detect(),
            directory: session.directory.clone(),
            secrets: Arc::new(crate::secrets::look_up),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let notes = session.terminal.clone();
        let told = move |node: &str| notes.note(&format!("checking {node}"));
        let work = replay(store, pipeline::registry(), Arc::new(closure), options, report, told);
        report = runtime.block_on(work)?;
    }
    let signature = match (&args.signature, &args.public_key) {
        (Some(file), Some(key)) => super::attest::verify(session, file, key),
        _ => Ok(OK),
    };
    let page = page::Page { target: describe(&target), seed: args.sample.map(|_| seed), report: &report };
    if let Some(file) = &args.report {
        write(&session.directory.join(file), &page)?;
    }
    if session.terminal.is_json() {
        session.terminal.line(&page.json().to_string());
    } else {
        session.terminal.line(page.text().trim_end());
    }
    drop(in_use);
    Ok(match signature? {
        _ if report.differences() > 0 => FAILED,
        OK if report.unchecked.is_empty() => OK,
        OK if args.strict => FAILED,
        OK => NOT_CHECKED,
        failed => failed,
    })
}

/// The run that is meant, if one is.
fn run_of(target: &Target) -> Option<String> {
    match target {
        Target::Run(run) | Target::Node { run, .. } => Some(run.clone()),
        _ => None,
    }
}

/// What the ledger says of the target: all nodes of a run, or the one node.
fn ledger(store: &Store, target: &Target) -> Vec<NodeRun> {
    match target {
        Target::Run(run) => store.run_nodes(run),
        Target::Node { node, .. } => vec![(**node).clone()],
        _ => Vec::new(),
    }
}

fn describe(target: &Target) -> String {
    match target {
        Target::Run(run) => format!("run {run}"),
        Target::Node { run, node, port: None } => format!("node {} of run {run}", node.node),
        Target::Node { run, node, port: Some(port) } => format!("output {}.{port} of run {run}", node.node),
        Target::Artifact(id) => format!("artifact {id}"),
        Target::Result(key) => format!("result {key}"),
        Target::Source { name, content } => format!("results made from {name} ({content})"),
        Target::Delivered { name, id } => format!("file {name} (artifact {id})"),
    }
}

/// A seed that nobody could have foreseen when the rows were recorded.
fn clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ now.as_secs().rotate_left(20)
}

fn write(path: &Path, page: &page::Page<'_>) -> Result<(), Failure> {
    let is_html = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html"));
    let text = if is_html { page.html() } else { page.markdown() };
    let failed = |error| Failure::Other(format!("cannot write {}: {error}", path.display()));
    std::fs::write(path, text).map_err(failed)
}
