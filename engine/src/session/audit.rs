//! Checks that the store's files match its records, and that results can be recomputed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::failure::Failure;
use super::run::runtime;
use super::trace::LineageView;
use crate::execute::{Machine, ReplayOptions, replay};
use crate::lineage::{
    Catalog, Missing, NotFound, Report, Roots, Target, choices, note_checks, note_unfinished, resolve, upstream,
    verify, verify_ledger, verify_records,
};
use crate::store::{NodeRun, Store, StoreUse};

/// How thoroughly to audit. The default reads and compares everything recorded, and recomputes nothing.
#[derive(Clone, Debug, Default)]
pub struct AuditOptions {
    /// The run that has the target (the newest one).
    pub run: Option<String>,
    /// Recompute the outputs of deterministic nodes.
    pub replay: bool,
    /// Derive again what external nodes recorded.
    pub rollouts: bool,
    /// Check at most this many rows of a node whose rows are independent (all).
    pub sample: Option<u64>,
    /// Seed of that sample (from the clock).
    pub seed: Option<u64>,
    /// Recompute nodes that run programs named by their params.
    pub allow_programs: bool,
    /// Fail on differences that are otherwise only noted.
    pub strict: bool,
}

/// The result of an audit.
#[non_exhaustive]
pub struct Audit {
    /// Description of the audited target.
    pub target: String,
    /// The seed of the sample, if rows were sampled.
    pub seed: Option<u64>,
    /// The checks and their findings.
    pub report: Report,
    /// Prevents garbage collection during the audit. `None` for a read-only store, which cannot be collected either.
    _in_use: Option<StoreUse>,
}

impl LineageView<'_> {
    /// Audits a run, a node, a port, an artifact, a result or a file, and everything behind it; of what a loop hands on,
    /// also the choice of the round. `checking` gets the name of every node before it is recomputed. Not for code that
    /// already runs on tokio.
    ///
    /// # Errors
    /// Fails if the name is unknown, if the file of that name was changed, or if the work cannot be done.
    pub fn audit(
        &self,
        what: &str,
        options: &AuditOptions,
        checking: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Audit, Failure> {
        let store = self.session.existing()?;
        // Before anything is read, so that no collection comes in between. A read-only store cannot be entered.
        let in_use = store.enter().ok();
        let catalog = Catalog::read(store);
        let target =
            resolve(store, &catalog, what, options.run.as_deref(), self.session.directory()).map_err(changed)?;
        let mut roots = Roots::of(store, &catalog, &target);
        let mut entries = ledger(store, &target);
        // Which round a loop hands on is a claim, too: what decided it is audited with it.
        for choice in choices(store, what, &target) {
            roots.add(Roots::of(store, &catalog, &choice));
            entries.extend(ledger(store, &choice));
        }
        let closure = upstream(&catalog, &roots);
        let mut report = verify(store, &catalog, &roots, &closure, &entries, options.strict);
        let mut runs: BTreeSet<String> = closure.steps.iter().map(|step| step.result.run.clone()).collect();
        if let Target::Run(run) | Target::Node { run, .. } = &target {
            runs.insert(run.clone());
        }
        runs.extend(report.replaced.values().cloned());
        verify_ledger(store, &runs, &mut report);
        verify_records(store, &runs, &mut report);
        note_checks(&entries, &mut report);
        if let Target::Run(run) = &target {
            note_unfinished(store, run, &mut report);
        }
        // Without a seed, one that could not be predicted when the rows were recorded.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let clock = u64::from(now.subsec_nanos()) ^ now.as_secs().rotate_left(20);
        let seed = options.seed.unwrap_or(clock);
        if options.replay || options.rollouts {
            let replayed = ReplayOptions {
                replay: options.replay,
                recheck: options.rollouts,
                sample: options.sample,
                seed,
                allow_programs: options.allow_programs,
                machine: Machine::detect(),
                directory: self.session.directory().to_owned(),
                secrets: Arc::clone(&self.session.secrets),
            };
            let registry = self.session.registry().clone();
            let work = replay(store.clone(), registry, Arc::new(closure), replayed, report, checking);
            report = runtime()?.block_on(work)?;
        }
        Ok(Audit { target: describe(&target), seed: options.sample.map(|_| seed), report, _in_use: in_use })
    }
}

/// A changed file is not a usage error: the audit fails.
fn changed(missing: NotFound) -> Failure {
    if missing.cause != Missing::Changed {
        return missing.into();
    }
    Failure::Other(match missing.help {
        Some(help) => format!("{} ({help})", missing.message),
        None => missing.message,
    })
}

/// Returns the ledger entries of the target: all nodes of a run, or one node.
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
