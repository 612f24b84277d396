//! An operator's declaration for given params, before anything runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use searchmill_schemas::RecordKind;

use super::context::Context;
use super::deliver::Deliver;
use super::goal::Goal;
use super::kernel::{QueryKernel, RowShape};
use super::params::ParamIssue;
use super::port::{OutputType, PortType, Ports};
use super::recheck::Recheck;
use super::repeatability::{Effect, Repeatability};
use super::rows::Inputs;
use super::sources::Source;
use super::tables::{TableRules, Tables};
use crate::endpoint::EndpointUse;
use crate::error::OperatorError;

type InputCheck = Box<dyn Fn(&[&str]) -> Vec<ParamIssue> + Send + Sync>;
type VariantCheck = Box<dyn Fn(&[Option<&str>]) -> Vec<ParamIssue> + Send + Sync>;
type FileCheck = Box<dyn Fn(&Path) -> Vec<ParamIssue> + Send + Sync>;
type SourceList = Box<dyn Fn(&Path) -> Vec<Source> + Send + Sync>;
type Fetch = Box<dyn Fn(&Context) -> Result<(), OperatorError> + Send + Sync>;
type OpenRecheck = Box<dyn Fn(&Inputs, &Context) -> Result<Box<dyn Recheck>, OperatorError> + Send + Sync>;

/// An operator's declaration for given params. Starts with [`pure`](Self::pure), [`seeded`](Self::seeded) or
/// [`external`](Self::external); further calls add what the operator needs.
///
/// ```
/// use searchmill_engine::prelude::*;
/// use searchmill_schemas::RecordKind;
///
/// let words = 0;
/// let ports = Ports::new()
///     .rows_in("documents", &[RecordKind::Document], "The documents to shorten.")
///     .rows_out("documents", RecordKind::Document, "The shortened documents.");
/// let mut declaration = Declaration::pure(ports);
/// if words == 0 {
///     let issue = ParamIssue::new("words", "nothing is left of a text");
///     declaration = declaration.issues([issue.with_help("write 1 or more")]);
/// }
/// assert_eq!(declaration.issues[0].path, "words");
/// ```
#[must_use]
#[derive(Default)]
pub struct Declaration {
    /// Input and output ports.
    pub ports: Ports,
    /// Whether repeated runs produce the same result.
    pub effect: Effect,
    /// Where recomputation on a CPU produces the same bytes.
    pub repeatability: Repeatability,
    /// Problems of the params beyond their types.
    pub issues: Vec<ParamIssue>,
    /// Added to the operator's version.
    pub revision: u32,
    /// The endpoint the operator calls.
    pub endpoint: Option<EndpointUse>,
    /// Services whose answers the operator observes, beside its endpoint.
    pub observed: Vec<EndpointUse>,
    /// The shape of the rows of a [`Kernel::AsyncMap`](super::Kernel::AsyncMap).
    pub rows: Option<RowShape>,
    /// Whether the operator runs programs named by its params.
    pub runs_programs: bool,
    /// Whether programs named by its params are asked what its sources are.
    pub asks_programs: bool,
    /// Whether the operator, or a program it runs, computes on the node's GPUs.
    pub uses_gpus: bool,
    /// Whether the operator retries according to the node's `retry`.
    pub retries: bool,
    /// Why the node's `retry` has no effect with these params, and the remedy, if the operator knows more than the
    /// engine.
    pub no_retry: Option<(&'static str, &'static str)>,
    /// An influence on the output that is in no key.
    pub unseen: Option<String>,
    /// What it says of columns.
    pub tables: TableRules,
    /// An input that answers the calls of a param: bound, the secrets in the param are not needed.
    pub answered: Option<(&'static str, &'static str)>,
    /// Which variant of its kind the output is (the kind of an index, how rollouts were sampled).
    pub variant: Option<&'static str>,
    /// The input whose variant the output has too, if the output is not declared as its rows anyway.
    pub passes_variant: Option<&'static str>,
    check_inputs: Option<InputCheck>,
    check_variants: Vec<(&'static str, VariantCheck)>,
    check_files: Option<FileCheck>,
    sources: Option<SourceList>,
    fetch: Option<Fetch>,
    recheck: Option<OpenRecheck>,
    deliver: Option<Box<dyn Deliver>>,
}

impl Declaration {
    /// Same inputs and params: same bytes.
    pub fn pure(ports: Ports) -> Self {
        Self::new(ports, Effect::Pure)
    }

    /// Same inputs, params and seed: same bytes.
    pub fn seeded(ports: Ports) -> Self {
        Self::new(ports, Effect::Seeded)
    }

    /// Calls external services; results are kept because they cost money.
    pub fn external(ports: Ports) -> Self {
        Self::new(ports, Effect::External)
    }

    fn new(ports: Ports, effect: Effect) -> Self {
        Self { ports, effect, repeatability: effect.into(), ..Self::default() }
    }

    /// Adds to the operator's version, for a change that other params of the operator do not share: rows that were paid for
    /// in another way than by calls (`map` with `python`) are then not paid for again.
    pub fn revision(self, revision: u32) -> Self {
        Self { revision, ..self }
    }

    /// Sets where recomputation on a CPU produces the same bytes (pure and seeded: everywhere; external: nowhere). A
    /// kernel that depends on more at run time (a GPU, an encoder inside an index) calls [`Context::computed_on`]; the
    /// result records the weaker of the two.
    pub fn repeatability(self, repeatability: Repeatability) -> Self {
        Self { repeatability, ..self }
    }

    /// Adds problems of params that deserialised. They are reported at the param's place in the file, before anything
    /// runs.
    pub fn issues(mut self, issues: impl IntoIterator<Item = ParamIssue>) -> Self {
        self.issues.extend(issues);
        self
    }

    /// Adds a check of the params against the names of the bound inputs. Reported like [`Declaration::issues`].
    pub fn checks_inputs(self, check: impl Fn(&[&str]) -> Vec<ParamIssue> + Send + Sync + 'static) -> Self {
        Self { check_inputs: Some(Box::new(check)), ..self }
    }

    /// Adds a check of the params against the files that they name. Relative paths start at the directory passed to
    /// `check`; a file that does not exist is reported by the engine. Reported like [`Declaration::issues`].
    pub fn checks_files(self, check: impl Fn(&Path) -> Vec<ParamIssue> + Send + Sync + 'static) -> Self {
        Self { check_files: Some(Box::new(check)), ..self }
    }

    /// Says which columns the outputs have, given those of the inputs that are known. Leave out what is not certain:
    /// nodes behind this one are checked against it.
    pub fn gives(mut self, rule: impl Fn(&Tables) -> Tables + Send + Sync + 'static) -> Self {
        self.tables.gives = Some(Box::new(rule));
        self
    }

    /// Says which columns an output has at most, where [`Self::gives`] cannot know them all: nodes behind this one are checked
    /// against them, and a node that names none of them is a mistake.
    pub fn gives_at_most(mut self, rule: impl Fn(&Tables) -> Tables + Send + Sync + 'static) -> Self {
        self.tables.gives_at_most = Some(Box::new(rule));
        self
    }

    /// Says that each output of a fixed record kind has the columns of that kind alone, and each other output those of its
    /// input.
    pub fn gives_plain_columns(self) -> Self {
        let outputs = self.ports.outputs.clone();
        self.gives(move |inputs| {
            let mut known = Tables::new();
            for port in &outputs {
                let schema = match &port.output {
                    // A plain table may have any columns, and a folder has none.
                    OutputType::Fixed(PortType::Rows(RecordKind::Table) | PortType::Tree(_)) => None,
                    OutputType::Fixed(PortType::Rows(kind)) => Some(kind.schema()),
                    OutputType::SameAs(input) => inputs.get(input).cloned(),
                };
                known.extend(schema.map(|schema| (port.name.clone(), schema)));
            }
            known
        })
    }

    /// Adds a check of the params against the known columns of the inputs. Reported like [`Declaration::issues`], by
    /// `validate`, and by a run before it starts anything.
    pub fn checks_columns(mut self, check: impl Fn(&Tables) -> Vec<ParamIssue> + Send + Sync + 'static) -> Self {
        self.tables.check = Some(Box::new(check));
        self
    }

    /// Checks a query against the known columns of its inputs, and derives those of its outputs. Only for a query that is
    /// planned without rows.
    pub fn query(mut self, kernel: impl QueryKernel + 'static) -> Self {
        self.tables.query = Some(Arc::new(kernel));
        self
    }

    /// Names the variant of the output, if it is known, for the checks of the nodes that read it.
    pub fn variant(self, variant: impl Into<Option<&'static str>>) -> Self {
        Self { variant: variant.into(), ..self }
    }

    /// Says that the rows of the output are those of an input with more columns: they are of the same variant. Of an output of
    /// the same rows ([`Ports::same_out`]) that is known.
    pub fn passes_variant(self, input: &'static str) -> Self {
        Self { passes_variant: Some(input), ..self }
    }

    /// Adds a check of the params against the variants of what is bound to `port`, in its order (`None`: unknown until it is
    /// there, or the same again). Reported like [`Declaration::issues`].
    pub fn checks_variants(
        mut self,
        port: &'static str,
        check: impl Fn(&[Option<&str>]) -> Vec<ParamIssue> + Send + Sync + 'static,
    ) -> Self {
        self.check_variants.push((port, Box::new(check)));
        self
    }

    /// Sets the endpoint the operator calls, if any. All nodes of a run that call the same endpoint share its limits,
    /// and `plan` estimates the cost. The node's `retry` applies. All calls must go through [`Context::call`].
    pub fn endpoint(self, endpoint: Option<EndpointUse>) -> Self {
        Self { retries: self.retries || endpoint.is_some(), endpoint, ..self }
    }

    /// Lists the services that the operator calls with [`Context::observe`], beside its endpoint. Observations are
    /// remembered by service and content: no other row, node or model pays for one again.
    pub fn observes(self, observed: Vec<EndpointUse>) -> Self {
        Self { retries: self.retries || !observed.is_empty(), observed, ..self }
    }

    /// Returns the endpoint and the observed services.
    pub fn endpoints(&self) -> impl Iterator<Item = &EndpointUse> {
        self.endpoint.iter().chain(&self.observed)
    }

    /// Whether its calls may cost money.
    pub fn pays(&self) -> bool {
        self.endpoints().next().is_some()
    }

    /// For operators with a [`Kernel::AsyncMap`](super::Kernel::AsyncMap): sets the shape of the rows, so that `plan`
    /// can look them up without opening the kernel.
    pub fn rows(self, rows: RowShape) -> Self {
        Self { rows: Some(rows), ..self }
    }

    /// Returns when no more samples of the rows are drawn, if that is before all are.
    pub fn goal(&self) -> Option<Goal> {
        self.rows.as_ref().and_then(|shape| shape.goal)
    }

    /// Declares that the operator runs programs named by its params. An audit then recomputes the node only if the user
    /// allows it: a recorded or imported result must not decide what runs on this machine. Such a node needs no worker
    /// built for CUDA: its GPUs are for those programs.
    pub fn runs_programs(self, runs_programs: bool) -> Self {
        Self { uses_gpus: self.uses_gpus || runs_programs, runs_programs, ..self }
    }

    /// Declares that programs are run to find its sources: those that its params name. An audit needs the user's permission
    /// for that, even if it recomputes nothing.
    pub fn asks_programs(self, asks_programs: bool) -> Self {
        Self { asks_programs, ..self }
    }

    /// Declares that the operator computes on the node's GPUs; otherwise `resources.gpus` is rejected. Implied by
    /// [`Declaration::runs_programs`].
    pub fn uses_gpus(self, uses_gpus: bool) -> Self {
        Self { uses_gpus: self.uses_gpus || uses_gpus, ..self }
    }

    /// Declares that the operator retries external calls according to the node's `retry`; otherwise `retry` is
    /// rejected. Implied by [`Declaration::endpoint`].
    pub fn retries(self, retries: bool) -> Self {
        Self { retries: self.retries || retries, ..self }
    }

    /// Declares that the operator retries if `on`; otherwise `retry` is rejected with this reason and this remedy.
    pub fn retries_if(self, on: bool, why_not: &'static str, remedy: &'static str) -> Self {
        Self { no_retry: Some((why_not, remedy)), ..self.retries(on) }
    }

    /// Sets an influence on the output that is in no key, reported by `validate`: what a program reads beyond its
    /// command.
    pub fn unseen(self, unseen: Option<String>) -> Self {
        Self { unseen, ..self }
    }

    /// Declares that nothing of the param is called if the input is bound, as that answers all its calls. The node then
    /// runs without the secrets in the param.
    pub fn answered_by(self, input: &'static str, param: &'static str) -> Self {
        Self { answered: Some((input, param)), ..self }
    }

    /// Lists external files and URLs the operator reads: their content is part of the node's key. Relative paths start
    /// at the directory passed to `list`. `list` is called again for every key: its result may depend on which files
    /// exist. Called again, it adds to the files and URLs.
    pub fn reads(self, list: impl Fn(&Path) -> Vec<Source> + Send + Sync + 'static) -> Self {
        let Some(earlier) = self.sources else { return Self { sources: Some(Box::new(list)), ..self } };
        // The order is that of the calls: the key has the position of each source.
        let sources: SourceList = Box::new(move |directory| [earlier(directory), list(directory)].concat());
        Self { sources: Some(sources), ..self }
    }

    /// Downloads [`Source::Fetched`] files and resolves [`Source::Awaited`]. A run calls it before it computes the
    /// node's key, if one of them is missing; `plan` and `validate` are offline and never call it. Called again, it adds
    /// to what is fetched.
    pub fn fetches(self, fetch: impl Fn(&Context) -> Result<(), OperatorError> + Send + Sync + 'static) -> Self {
        let Some(earlier) = self.fetch else { return Self { fetch: Some(Box::new(fetch)), ..self } };
        // In the order of the calls: the first failure ends it.
        let all: Fetch = Box::new(move |context| earlier(context).and_then(|()| fetch(context)));
        Self { fetch: Some(all), ..self }
    }

    /// Delivers finished outputs to their destinations.
    pub fn delivers(self, deliver: impl Deliver) -> Self {
        Self { deliver: Some(Box::new(deliver)), ..self }
    }

    /// For `audit`: opens a check of recorded rows against their inputs, without external calls. Only external
    /// operators need it; the others are recomputed.
    pub fn rechecks(
        self,
        open: impl Fn(&Inputs, &Context) -> Result<Box<dyn Recheck>, OperatorError> + Send + Sync + 'static,
    ) -> Self {
        Self { recheck: Some(Box::new(open)), ..self }
    }

    /// Returns the problems of the params, given the names of the bound inputs.
    pub fn input_issues(&self, inputs: &[&str]) -> Vec<ParamIssue> {
        self.check_inputs.as_ref().map(|check| check(inputs)).unwrap_or_default()
    }

    /// Returns the problems of the params, given the files that they name.
    pub fn file_issues(&self, directory: &Path) -> Vec<ParamIssue> {
        self.check_files.as_ref().map(|check| check(directory)).unwrap_or_default()
    }

    /// Returns the problems of the params, given the variants of what is bound to each port, with the port.
    pub fn variant_issues<'v>(
        &self,
        variants: impl Fn(&str) -> Vec<Option<&'v str>>,
    ) -> Vec<(&'static str, ParamIssue)> {
        let mut issues = Vec::new();
        for (port, check) in &self.check_variants {
            issues.extend(check(&variants(port)).into_iter().map(|issue| (*port, issue)));
        }
        issues
    }

    /// Lists the external files and URLs whose content is part of the key, as they are now.
    pub fn sources(&self, directory: &Path) -> Vec<Source> {
        self.sources.as_ref().map(|list| list(directory)).unwrap_or_default()
    }

    /// Downloads the fetched sources.
    ///
    /// # Errors
    /// Fails if a source cannot be fetched.
    pub fn fetch(&self, context: &Context) -> Result<(), OperatorError> {
        self.fetch.as_ref().map_or(Ok(()), |fetch| fetch(context))
    }

    /// Opens the check of recorded rows, if the operator has one.
    ///
    /// # Errors
    /// Fails if an input cannot be opened.
    pub fn recheck(&self, inputs: &Inputs, context: &Context) -> Result<Option<Box<dyn Recheck>>, OperatorError> {
        self.recheck.as_ref().map(|open| open(inputs, context)).transpose()
    }

    /// Returns the paths and URLs to which finished outputs are written.
    pub fn destinations(&self) -> Vec<String> {
        self.deliver.as_ref().map(|deliver| deliver.destinations()).unwrap_or_default()
    }

    /// Returns the largest share of rows that may be lost before this node for its outputs to be delivered.
    pub fn max_reject_share(&self) -> f64 {
        self.deliver.as_ref().map_or(1.0, |deliver| deliver.max_reject_share())
    }

    /// Whether tables without rows are delivered.
    pub fn allows_empty(&self) -> bool {
        self.deliver.as_ref().is_some_and(|deliver| deliver.allows_empty())
    }

    /// Whether the destinations have these outputs already.
    pub fn is_delivered(&self, folders: &BTreeMap<String, PathBuf>, context: &Context) -> bool {
        self.deliver.as_ref().is_some_and(|deliver| deliver.is_delivered(folders, context))
    }

    /// Delivers finished outputs. Returns the destinations written.
    ///
    /// # Errors
    /// Fails if a destination cannot be written.
    pub fn deliver(
        &self,
        folders: &BTreeMap<String, PathBuf>,
        context: &Context,
    ) -> Result<Vec<String>, OperatorError> {
        self.deliver.as_ref().map_or(Ok(Vec::new()), |deliver| deliver.deliver(folders, context))
    }
}
