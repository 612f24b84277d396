//! Recomputes recorded results into a scratch store and compares them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use indexmap::IndexMap;

use super::spot_check::{check_rows, recheck};
use super::{Outcome, Rerun};
use crate::error::OperatorError;
use crate::execute::kernels::kernel_run::KernelRun;
use crate::execute::kernels::run_kernel;
use crate::execute::process::version;
use crate::execute::settings::resources::Machine;
use crate::fingerprint::{SeenSources, SourceDigests, SourceIdentity, identity_params};
use crate::lineage::{
    Closure, Difference, NOT_CHECKED, Report, Severity, SourceState, Step, difference, file_difference,
    first_difference, source_state, sources, texts,
};
use crate::operator::{
    AsyncMapKernel, BoundOperator, Computed, Context, ContextParts, Effect, InputArtifact, Inputs, Kernel, MapKernel,
    MapOutput, OperatorEntry, PortType, Registry, Repeatability, SecretLookup, SourceFiles, http_client,
};
use crate::plan::with_files_of_services;
use crate::spec::service_of;
use crate::store::{ArtifactId, Store, StoreError, StoreSink};

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
    let work = tokio::task::spawn_blocking(move || {
        let restored = Restored::of(&closure, &report);
        let mut bench = Bench { store, registry, options, http, restored };
        let checked = closure.steps.iter().try_for_each(|step| {
            bench.check(step, &told, &mut report)?;
            Ok::<_, OperatorError>(bench.restored.used(step)?)
        });
        // Requested checks that applied to no node.
        let asked = [
            (bench.options.replay, "replay", "no node behind the target is computed without asking the outside"),
            (bench.options.recheck, "recheck", "no node behind the target asks the outside"),
        ];
        for (is_wanted, check, why) in asked {
            if is_wanted && report.nodes.iter().all(|node| node.check != check) {
                report.note_node("any node", check, NOT_CHECKED, why.to_owned());
            }
        }
        // Also after a failure: what was computed again must not stay in the store.
        bench.restored.remove()?;
        checked?;
        Ok(report)
    });
    work.await.map_err(|_| OperatorError::engine("the audit panicked"))?
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
    let digests = SourceDigests::new(BTreeMap::new(), version);
    let sources = operator.declaration.sources(directory);
    let (identities, files) =
        digests.identify(&sources, directory).map_err(|problem| Unchecked(format!("its source {problem}")))?;
    let recorded: Vec<_> = recorded.iter().filter(|source| source.name != "--limit").cloned().collect();
    for position in 0..identities.len().max(recorded.len()) {
        let (now, then) = (identities.get(position), recorded.get(position));
        if now != then {
            let name = now.or(then).map_or("", |source| source.name.as_str());
            return Err(Unchecked(format!("its source `{name}` is not what was read")));
        }
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
                Ok(result) => {
                    for (port, batch) in result.batches {
                        output.push(&port, batch);
                    }
                }
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
    restored: Restored,
}

impl Bench {
    fn check(&mut self, step: &Step, told: &impl Fn(&str), report: &mut Report) -> Result<(), OperatorError> {
        let (known, bound) = (self.registry.get(&step.preimage.operator).is_some(), self.bound(step));
        // Params that cannot be bound are reported by one of the two checks.
        let unbound = known && !self.options.replay;
        let is_external = bound.as_ref().map_or(unbound, |bound| bound.declaration.effect == Effect::External);
        // Whether its bytes repeat somewhere, according to the record or else the operator.
        let recorded = step.result.origin.as_ref().and_then(|origin| Some(origin.computed.as_ref()?.repeats));
        let repeats = recorded.or(bound.as_ref().map(|bound| bound.declaration.repeatability));
        let may_repeat = repeats.is_some_and(|repeats| repeats != Repeatability::Not);
        // A result that does not repeat is reported as not checked, unless its answers are compared below.
        if self.options.replay && (!is_external || may_repeat || !self.options.recheck) {
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

    /// Returns the operator with its recorded params.
    fn bound(&self, step: &Step) -> Option<BoundOperator> {
        // Only the recorded params are whole: those of the key lack the address of an endpoint.
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
        // Before the scratch store goes: later steps may read what was released.
        for id in step.result.outputs.values().map(|output| &output.id) {
            if report.released.contains_key(id) && scratch.check(id).is_ok() {
                report.made_again(id);
                self.restored.retain(&self.store, &scratch, id)?;
            }
        }
        scratch.remove()?;
        let outcome = outcome.unwrap_or_else(|Unchecked(why)| Outcome::NotChecked(why));
        note(step.name(), check.name(), outcome, report);
        Ok(())
    }

    fn outcome(&self, check: Check, step: &Step, scratch: &Store, report: &Report) -> Result<Outcome, Unchecked> {
        let entry = self.entry(step, report)?;
        let rerun = self.rerun(check, step, &entry, scratch)?;
        if check == Check::Answers {
            return Ok(super::answers::compare(&self.store, &rerun, &self.options.directory)?);
        }
        if check == Check::Recheck {
            return Ok(recheck(&self.store, &rerun, self.options.sample, self.options.seed)?);
        }
        if let Some(rows) = self.options.sample {
            let kernel: Option<Arc<dyn MapKernel>> = match rerun.operator.open(&rerun.run.inputs, &rerun.run.context)? {
                Kernel::Map(kernel) => Some(kernel),
                // Which samples a row has follows from other rows.
                Kernel::AsyncMap(_) if rerun.operator.declaration.goal().is_some() => None,
                Kernel::AsyncMap(kernel) => Some(Arc::new(OneByOne { kernel, context: rerun.run.context.clone() })),
                Kernel::Query(_) | Kernel::Blocking(_) => None,
            };
            if let Some(kernel) = kernel
                && let Some(outcome) = check_rows(&self.store, &rerun, kernel.as_ref(), rows, self.options.seed)?
            {
                return Ok(outcome);
            }
        }
        Ok(self.whole(&rerun, scratch, report)?)
    }

    /// Returns the operator, if this build has the same version of it and all inputs and sources are available.
    fn entry(&self, step: &Step, report: &Report) -> Result<OperatorEntry, Unchecked> {
        let (name, version) = (&step.preimage.operator, step.preimage.version);
        let Some(entry) = self.registry.get(name) else {
            return Err(Unchecked(format!("this program has no operator `{name}`")));
        };
        let ours = entry.version + self.bound(step).map_or(0, |operator| operator.declaration.revision);
        if u64::from(ours) != version {
            return Err(Unchecked(format!(
                "it was made by `{name}` version {version}, this program has version {ours}"
            )));
        }
        if let Some(input) = step.inputs.iter().find(|input| report.damaged.contains(&input.id)) {
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
            inputs.bind(&input.port, self.restored.open(&self.store, &input.id)?);
        }
        let main_port = operator.declaration.ports.inputs.first().map(|port| port.name.clone());
        let directory = origin.map_or(self.options.directory.as_path(), |origin| Path::new(&origin.directory));
        let sources = Arc::new(seen(&operator, directory, &step.preimage.sources)?);
        let context = Context::new(ContextParts {
            seed: step.preimage.seed.unwrap_or_default(),
            scratch: scratch.root().join("tmp"),
            threads: self.options.machine.threads,
            secrets: Arc::clone(&self.options.secrets),
            sources: Arc::clone(&sources) as Arc<dyn SourceFiles>,
            ..ContextParts::bare(directory, &tokio::runtime::Handle::current(), self.http.clone())
        });
        // The memos of the scratch store are empty, and deleted with it.
        let run = KernelRun { inputs, main_port, ..KernelRun::new(context, scratch, sources) };
        Ok(Rerun { step, operator, run })
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
        run_kernel(&rerun.operator, &rerun.operator.declaration, &rerun.run, &mut sink)?;
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
                && let Ok(InputArtifact::Rows(one)) = self.store.open_input(&output.id)
                && let Ok(InputArtifact::Rows(other)) = scratch.open_input(&output.id)
                && let Ok(Some((found, rows))) = first_difference(&one, &other)
            {
                // The record is right, but the files are not: find the difference if they can still be read.
                differences.push((port.clone(), found, rows));
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

    /// Returns the first difference between a recorded and a recomputed artifact of different bytes, and the number of
    /// differing rows; `None` if all rows are equal.
    fn difference(
        &self,
        scratch: &Store,
        recorded: &ArtifactId,
        computed: &ArtifactId,
    ) -> Result<Option<(Difference, u64)>, OperatorError> {
        if let (Ok(InputArtifact::Rows(one)), InputArtifact::Rows(other)) =
            (self.store.open_input(recorded), scratch.open_input(computed)?)
        {
            return first_difference(&one, &other);
        }
        if let Some(one) = self.store.artifact(recorded)
            && let Some(other) = scratch.artifact(computed)
            && let Some(found) = file_difference(&one, &other)
        {
            return Ok(Some((found, 0)));
        }
        Ok(Some((difference("digest".to_owned(), &recorded.to_string(), &computed.to_string()), 0)))
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

/// Released artifacts that a replay has made again: kept aside while later steps need them.
struct Restored {
    /// The inputs of later steps that are one of the released artifacts.
    users: BTreeMap<ArtifactId, usize>,
    here: BTreeSet<ArtifactId>,
    /// Holds them; removed at the end.
    aside: Option<Store>,
}

impl Restored {
    fn of(closure: &Closure, report: &Report) -> Self {
        let mut users = BTreeMap::new();
        for input in closure.steps.iter().flat_map(|step| &step.inputs) {
            // What lies in the store needs no second copy.
            if report.released.contains_key(&input.id) {
                *users.entry(input.id).or_default() += 1;
            }
        }
        Self { users, here: BTreeSet::new(), aside: None }
    }

    /// Takes what a step gave again out of its scratch store.
    fn retain(&mut self, store: &Store, scratch: &Store, id: &ArtifactId) -> Result<(), StoreError> {
        if self.users.contains_key(id) && self.here.insert(*id) {
            let aside = match &mut self.aside {
                Some(aside) => aside,
                empty => empty.insert(store.scratch()?),
            };
            aside.take_over(scratch, id)?;
        }
        Ok(())
    }

    /// Opens an artifact of the store, or one that is here again.
    fn open(&self, store: &Store, id: &ArtifactId) -> Result<InputArtifact, StoreError> {
        match &self.aside {
            Some(aside) if self.here.contains(id) => aside.open_input(id),
            _ => store.open_input(id),
        }
    }

    /// Removes what no later step uses.
    fn used(&mut self, step: &Step) -> Result<(), StoreError> {
        for input in &step.inputs {
            let Some(users) = self.users.get_mut(&input.id) else { continue };
            *users -= 1;
            if *users == 0 {
                self.users.remove(&input.id);
                if self.here.remove(&input.id)
                    && let Some(aside) = &self.aside
                {
                    aside.discard(&input.id)?;
                }
            }
        }
        Ok(())
    }

    fn remove(self) -> Result<(), StoreError> {
        self.aside.map_or(Ok(()), Store::remove)
    }
}
