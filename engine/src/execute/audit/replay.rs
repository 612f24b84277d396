//! Recomputes recorded results into a scratch store and compares them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use indexmap::IndexMap;

use super::rerun::{Outcome, Rerun};
use super::restored::MadeAgain;
use super::spot_check::{Sampled, check_rows};
use crate::error::OperatorError;
use crate::execute::kernels::kernel_run::KernelRun;
use crate::execute::kernels::observations::Observations;
use crate::execute::kernels::run_kernel;
use crate::execute::process::versions::version;
use crate::execute::settings::progress::NodeProgress;
use crate::execute::settings::resources::Machine;
use crate::execute::settings::stop::Stop;
use crate::fingerprint::{Digest, SeenSources, SourceDigests, SourceIdentity, identity_params};
use crate::lineage::{
    Closure, Difference, NOT_CHECKED, Report, Severity, SourceState, Step, difference, file_difference,
    first_difference, source_state, sources, texts,
};
use crate::operator::{
    AsyncMapKernel, BoundOperator, Computed, Context, ContextParts, Effect, InputArtifact, Inputs, Kernel, MapKernel,
    MapOutput, OperatorEntry, PortType, Registry, Repeatability, SecretLookup, http_client,
};
use crate::plan::with_files_of_services;
use crate::spec::{OnError, service_of};
use crate::store::{ArtifactId, Store, StoreSink};

/// What to recompute, and how.
#[derive(Clone)]
pub(crate) struct ReplayOptions {
    /// Whether to recompute the outputs of deterministic nodes.
    pub replay: bool,
    /// Whether to derive again what external nodes recorded.
    pub recheck: bool,
    /// Check at most this many rows of a node whose rows are independent.
    pub sample: Option<u64>,
    /// Seed of that sample.
    pub seed: u64,
    /// Whether to recompute nodes that run programs named by their params.
    pub allow_programs: bool,
    /// The machine's resources.
    pub machine: Machine,
    /// Base of relative paths, for records that do not name one.
    pub directory: PathBuf,
    /// Looks secrets up.
    pub secrets: SecretLookup,
}

/// Recomputes the results of a closure, as far as the options ask for it, each from its recorded inputs, and adds the
/// findings to the report. Calls `told` with the name of every node before it starts.
///
/// # Errors
/// Fails if the work cannot be done (no space, no threads).
pub(crate) async fn replay(
    store: Store,
    registry: Registry,
    closure: Arc<Closure>,
    options: ReplayOptions,
    mut report: Report,
    told: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Report, OperatorError> {
    let http = http_client()?;
    let work = move || {
        let made_again = MadeAgain::of(&closure, &report);
        let mut bench = Bench { store, registry, options, http, made_again };
        let checked = closure.steps.iter().try_for_each(|step| {
            bench.check(step, &told, &mut report)?;
            bench.made_again.used(step).map_err(OperatorError::from)
        });
        bench.note_nothing(&mut report);
        bench.made_again.remove()?;
        checked.map(|()| report)
    };
    let died = |_| OperatorError::engine("the audit panicked");
    tokio::task::spawn_blocking(work).await.map_err(died)?
}

/// Why a step was not checked.
struct Unchecked(String);

/// A failure now is reported, but does not prove the record wrong.
impl<E: Into<OperatorError>> From<E> for Unchecked {
    fn from(error: E) -> Self {
        Self(format!("it cannot be computed again: {}", error.into()))
    }
}

/// Returns the files that an operator reads, if they match the record.
fn seen(operator: &BoundOperator, directory: &Path, recorded: &[SourceIdentity]) -> Result<SeenSources, Unchecked> {
    let digests = SourceDigests::new(std::collections::BTreeMap::new(), version);
    let sources = operator.declaration.sources(directory);
    let (identities, files) =
        digests.identify(&sources, directory).map_err(|problem| Unchecked(format!("its source {problem}")))?;
    let recorded: Vec<_> = recorded.iter().filter(|source| source.name != "--limit").cloned().collect();
    if let Some(place) = (0..identities.len().max(recorded.len())).find(|at| identities.get(*at) != recorded.get(*at)) {
        let name = identities.get(place).or(recorded.get(place)).map_or("", |source| source.name.as_str());
        return Err(Unchecked(format!("its source `{name}` is not what was read")));
    }
    Ok(SeenSources::new(sources, files, directory))
}

/// How to check a recorded node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    /// Recompute its outputs.
    Replay,
    /// Derive again what it recorded, as far as possible without external calls.
    Recheck,
    /// Compare external content with the remembered answers.
    Answers,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Recheck => "recheck",
            Self::Answers => "answers",
        }
    }
}

/// A row kernel that processes one row with all its samples at a time.
struct OneByOne {
    kernel: Arc<dyn AsyncMapKernel>,
    context: Context,
}

impl MapKernel for OneByOne {
    fn map(&self, row: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
        for sample in 0..self.kernel.samples().max(1) {
            match self.context.block_on(self.kernel.run(row, sample, &self.context)) {
                Ok(made) => made.batches.into_iter().for_each(|(port, batch)| output.push(&port, batch)),
                Err(failure) if failure.kind.is_postponed() => return Err(OperatorError::data(failure.message)),
                Err(failure) => {
                    let id = texts(row, 0, &["id"]).first().copied().unwrap_or_default();
                    output.reject(failure.reject(id));
                }
            }
        }
        Ok(())
    }
}

struct Bench {
    store: Store,
    registry: Registry,
    options: ReplayOptions,
    http: reqwest::Client,
    made_again: MadeAgain,
}

impl Bench {
    fn check(&mut self, step: &Step, told: &impl Fn(&str), report: &mut Report) -> Result<(), OperatorError> {
        let (known, bound) = (self.registry.get(&step.preimage.operator).is_some(), self.bound(step));
        // Params that cannot be bound are reported by one of the two checks.
        let unbound = known && !self.options.replay;
        let is_external = bound.as_ref().map_or(unbound, |bound| bound.declaration.effect == Effect::External);
        // A result that does not repeat is reported as not checked, unless its answers are compared below.
        if self.options.replay && (!is_external || self.may_repeat(step) || !self.options.recheck) {
            told(step.name());
            self.check_by(Check::Replay, step, report)?;
        }
        if self.options.recheck && is_external {
            told(step.name());
            self.check_by(Check::Recheck, step, report)?;
            if bound.is_some_and(|operator| operator.declaration.endpoint.is_some()) {
                self.check_by(Check::Answers, step, report)?;
            }
        }
        Ok(())
    }

    /// Whether the bytes of an external node repeat somewhere, according to the record or else the operator.
    fn may_repeat(&self, step: &Step) -> bool {
        let origin = step.result.origin.as_ref();
        let recorded = origin.and_then(|origin| origin.computed.as_ref()).map(|computed| computed.repeats);
        let declared = || Some(self.bound(step)?.declaration.repeatability);
        recorded.or_else(declared).is_some_and(|repeats| repeats != Repeatability::Not)
    }

    /// Returns the operator with its recorded params.
    fn bound(&self, step: &Step) -> Option<BoundOperator> {
        let params = step.result.origin.as_ref().map_or(&step.preimage.params, |origin| &origin.params);
        (self.registry.get(&step.preimage.operator)?.bind)(params.clone()).ok()
    }

    fn check_by(&mut self, check: Check, step: &Step, report: &mut Report) -> Result<(), OperatorError> {
        // A replaced result is not the one of the audited run.
        if let Some(run) = report.replaced.get(&step.key) {
            let why = format!("replaced by run {run}");
            report.note_node(step.name(), check.name(), NOT_CHECKED, why);
            return Ok(());
        }
        let scratch = self.store.scratch()?;
        let outcome = self.outcome(check, step, &scratch, report);
        for id in step.result.outputs.values().map(|output| &output.id) {
            if report.released.contains_key(id) && scratch.check(id).is_ok() {
                report.made_again(id);
                self.made_again.keep(&self.store, &scratch, id)?;
            }
        }
        scratch.remove()?;
        let outcome = outcome.unwrap_or_else(|Unchecked(why)| Outcome::NotChecked(why));
        note(step.name(), check.name(), outcome, report);
        Ok(())
    }

    /// Notes requested checks that applied to no node.
    fn note_nothing(&self, report: &mut Report) {
        let asked = [
            (self.options.replay, "replay", "no node behind the target is computed without asking the outside"),
            (self.options.recheck, "recheck", "no node behind the target asks the outside"),
        ];
        for (_, check, why) in asked.into_iter().filter(|(wanted, ..)| *wanted) {
            if report.nodes.iter().all(|node| node.check != check) {
                report.note_node("any node", check, NOT_CHECKED, why.to_owned());
            }
        }
    }

    fn outcome(&self, check: Check, step: &Step, scratch: &Store, report: &Report) -> Result<Outcome, Unchecked> {
        let entry = self.entry(step, report)?;
        let rerun = self.rerun(check, step, &entry, scratch)?;
        if check == Check::Answers {
            return Ok(super::answers::compare(&self.store, &rerun, &self.options.directory)?);
        }
        if check == Check::Recheck {
            return Ok(super::spot_check::recheck(&self.store, &rerun, self.options.sample, self.options.seed)?);
        }
        if let Some(rows) = self.options.sample {
            let kernel: Option<Arc<dyn MapKernel>> = match rerun.operator.open(&rerun.inputs, &rerun.context)? {
                Kernel::Map(kernel) => Some(kernel),
                // Which samples a row has follows from other rows.
                Kernel::AsyncMap(_) if rerun.operator.declaration.goal().is_some() => None,
                Kernel::AsyncMap(kernel) => Some(Arc::new(OneByOne { kernel, context: rerun.context.clone() })),
                Kernel::Query(_) | Kernel::Blocking(_) => None,
            };
            if let Some(kernel) = kernel
                && let Sampled::Done(outcome) =
                    check_rows(&self.store, &rerun, kernel.as_ref(), rows, self.options.seed)?
            {
                return Ok(outcome);
            }
        }
        Ok(self.whole(&rerun, scratch, report)?)
    }

    /// Returns the operator, if this build has the same version of it and all inputs and sources are available.
    fn entry(&self, step: &Step, report: &Report) -> Result<OperatorEntry, Unchecked> {
        let (name, version) = (&step.preimage.operator, step.preimage.version);
        let entry =
            self.registry.get(name).ok_or_else(|| Unchecked(format!("this program has no operator `{name}`")))?;
        // Only the recorded params are whole: those of the key lack the address of an endpoint.
        let params = step.result.origin.as_ref().map_or(&step.preimage.params, |origin| &origin.params);
        let bound = (entry.bind)(params.clone());
        let ours = entry.version + bound.map_or(0, |operator| operator.declaration.revision);
        if u64::from(ours) != version {
            return Err(Unchecked(format!(
                "it was made by `{name}` version {version}, this program has version {ours}"
            )));
        }
        let damaged = step.inputs.iter().find(|input| report.damaged.contains(&input.id));
        if let Some(input) = damaged {
            return Err(Unchecked(format!("its input `{}` is not what was recorded", input.port)));
        }
        for source in sources(step).iter().filter(|source| source.name != "--limit") {
            let why = match source_state(source) {
                SourceState::Unchanged => continue,
                SourceState::Changed => "changed since it was read",
                SourceState::Gone => "is no longer there",
                SourceState::Named if !source.name.contains("://") => continue,
                SourceState::Named => "is remote",
                SourceState::Unplaced => "lay at a place that was not recorded",
            };
            return Err(Unchecked(format!("its source `{}` {why}", source.name)));
        }
        Ok(*entry)
    }

    fn rerun<'a>(
        &self,
        check: Check,
        step: &'a Step,
        entry: &OperatorEntry,
        scratch: &Store,
    ) -> Result<Rerun<'a>, Unchecked> {
        let origin = step.result.origin.as_ref();
        let params = origin.map_or(&step.preimage.params, |origin| &origin.params);
        let schema = (entry.schema)();
        // The key counts: `origin` may add params that the key leaves out, but may not change others.
        if identity_params(&schema, params) != identity_params(&schema, &step.preimage.params) {
            return Err(Unchecked("its recorded params do not agree".to_owned()));
        }
        let mut operator = (entry.bind)(params.clone())
            .map_err(|issue| Unchecked(format!("its param `{}` is not understood: {}", issue.path, issue.message)))?;
        let declaration = std::mem::take(&mut operator.declaration);
        operator.declaration = with_files_of_services(declaration, &step.preimage.services, self.registry.commands());
        let computed = origin.and_then(|origin| origin.computed.clone());
        let computed = computed.unwrap_or_else(|| Computed::declared(operator.declaration.repeatability));
        if check == Check::Replay
            && let Err(why) = computed.on_this_cpu()
        {
            let asks = operator.declaration.endpoint.is_some();
            let instead = if asks { " (`--rollouts` compares it with the answers that were kept)" } else { "" };
            return Err(Unchecked(format!("{why}{instead}")));
        }
        // Neither of the other checks makes a call or starts a program. They apply to operators that call services; others
        // may start a program to find their sources.
        let starts = check == Check::Replay || !operator.declaration.pays() || operator.declaration.asks_programs;
        if starts && operator.declaration.runs_programs && !self.options.allow_programs {
            return Err(Unchecked("it runs a program: --allow-programs computes it again".to_owned()));
        }
        if check == Check::Replay && !step.preimage.services.is_null() {
            return Err(Unchecked("it needs its services".to_owned()));
        }
        let mut inputs = Inputs::new();
        for input in step.inputs.iter().filter(|input| service_of(&input.port).is_none()) {
            inputs.bind(&input.port, self.made_again.open(&self.store, &input.id)?);
        }
        let main_port = operator.declaration.ports.inputs.first().map(|port| port.name.clone());
        let directory =
            origin.map_or_else(|| self.options.directory.clone(), |origin| PathBuf::from(&origin.directory));
        let sources = Arc::new(seen(&operator, &directory, &step.preimage.sources)?);
        let context = self.context(step, &directory, Arc::clone(&sources), scratch);
        Ok(Rerun { step, operator, inputs, context, main_port, sources })
    }

    fn context(&self, step: &Step, directory: &Path, sources: Arc<SeenSources>, scratch: &Store) -> Context {
        Context::new(ContextParts {
            seed: step.preimage.seed.unwrap_or_default(),
            scratch: scratch.root().join("tmp"),
            threads: self.options.machine.threads,
            secrets: Arc::clone(&self.options.secrets),
            sources,
            ..ContextParts::bare(directory, &tokio::runtime::Handle::current(), self.http.clone())
        })
    }

    fn whole(&self, rerun: &Rerun<'_>, scratch: &Store, report: &Report) -> Result<Outcome, OperatorError> {
        let step = rerun.step;
        let mut ports: IndexMap<String, PortType> = IndexMap::new();
        for (port, output) in &step.result.outputs {
            let Some(port_type) = output.artifact_type.port_type() else {
                return Ok(Outcome::NotChecked(format!("this program does not know the kind of output `{port}`")));
            };
            ports.insert(port.clone(), port_type);
        }
        let limit = step.preimage.sources.iter().find(|source| source.name == "--limit");
        let limit = limit.and_then(|limit| limit.content.parse().ok());
        let mut sink =
            StoreSink::new(scratch, ports).with_limit(limit).with_programs(rerun.operator.declaration.runs_programs);
        run_kernel(&rerun.operator, &rerun.operator.declaration, &kernel_run(rerun, scratch), &mut sink)?;
        let computed = sink.commit()?;
        let mut differences = Vec::new();
        let (mut rows, mut bytes, mut rewritten) = (0, 0, 0);
        for (port, output) in &step.result.outputs {
            let Some(again) = computed.outputs.get(port) else { continue };
            rows += output.rows;
            bytes += output.bytes;
            if again.id != output.id {
                match self.difference(scratch, &output.id, &again.id)? {
                    Some((found, rows)) => differences.push((port.clone(), found, rows)),
                    None => rewritten += 1,
                }
            } else if report.damaged.contains(&output.id)
                && let Ok(Some(found)) = self.tampered(scratch, &output.id)
            {
                // The record is right, but the files are not: find the difference if they can still be read.
                differences.push((port.clone(), found.0, found.1));
            }
        }
        if differences.is_empty() {
            let ports = computed.outputs.len();
            let how = match rewritten {
                0 => "equal digests".to_owned(),
                count => format!("equal rows; {count} tables were written by another version of the file format"),
            };
            return Ok(Outcome::Same(format!("{ports} outputs, {rows} rows, {bytes} bytes: {how}")));
        }
        Ok(Outcome::Differs(differences))
    }

    /// Returns the first difference between a damaged table and the recomputed one with the same id.
    fn tampered(&self, scratch: &Store, id: &ArtifactId) -> Result<Option<(Difference, u64)>, OperatorError> {
        match (self.store.open_input(id)?, scratch.open_input(id)?) {
            (InputArtifact::Rows(one), InputArtifact::Rows(other)) => first_difference(&one, &other),
            _ => Ok(None),
        }
    }

    /// Returns the first difference between a recorded and a recomputed artifact of different bytes, and the number of
    /// differing rows; `None` if all rows are equal.
    fn difference(
        &self,
        scratch: &Store,
        recorded: &ArtifactId,
        computed: &ArtifactId,
    ) -> Result<Option<(Difference, u64)>, OperatorError> {
        let digests = || difference("digest".to_owned(), &recorded.to_string(), &computed.to_string());
        match (self.store.open_input(recorded), scratch.open_input(computed)?) {
            (Ok(InputArtifact::Rows(one)), InputArtifact::Rows(other)) => first_difference(&one, &other),
            _ => match (self.store.artifact(recorded), scratch.artifact(computed)) {
                (Some(one), Some(other)) => Ok(Some((file_difference(&one, &other).unwrap_or_else(digests), 0))),
                _ => Ok(Some((digests(), 0))),
            },
        }
    }
}

fn kernel_run(rerun: &Rerun<'_>, scratch: &Store) -> KernelRun {
    KernelRun {
        inputs: rerun.inputs.clone(),
        main_port: rerun.main_port.clone(),
        context: rerun.context.clone(),
        // The memo of the scratch store: empty, and deleted with it.
        row_base: Digest::from_bytes([0; 32]),
        block_base: Digest::from_bytes([0; 32]),
        recall_blocks: false,
        on_error: OnError::DeadLetter,
        finishes: false,
        stop: Stop::default(),
        progress: Arc::new(NodeProgress::unseen()),
        store: scratch.clone(),
        calls: None,
        observed: Observations::default(),
        sources: Arc::clone(&rerun.sources),
    }
}

fn note(node: &str, check: &'static str, outcome: Outcome, report: &mut Report) {
    match outcome {
        Outcome::Same(detail) => report.note_node(node, check, "same", detail),
        Outcome::NotChecked(why) => report.note_node(node, check, NOT_CHECKED, why),
        Outcome::Differs(differences) => {
            let ports: BTreeSet<&str> = differences.iter().map(|(port, ..)| port.as_str()).collect();
            let ports = ports.into_iter().collect::<Vec<_>>().join(", ");
            report.note_node(node, check, "differs", format!("outputs: {ports}"));
            for (port, found, rows) in differences {
                let count = if rows > 1 { format!(" ({rows} rows differ)") } else { String::new() };
                let message = format!("recorded {:?}, computed {:?}{count}", found.recorded, found.computed);
                let place = Some(format!("output {port}, {}", found.place));
                report.find(Severity::Difference, check, node, place, message);
            }
        }
    }
}
