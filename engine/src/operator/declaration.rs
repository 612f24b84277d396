//! What an operator declares about itself with given params, before anything runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::context::Context;
use super::deliver::Deliver;
use super::error::OperatorError;
use super::kernel::RowShape;
use super::params::ParamIssue;
use super::port::Ports;
use super::rate_limiter::EndpointUse;
use super::recheck::Recheck;
use super::repeatability::{Effect, Repeatability};
use super::rows::Inputs;
use super::sources::Source;

type InputCheck = Box<dyn Fn(&[&str]) -> Vec<ParamIssue> + Send + Sync>;
type SourceList = Box<dyn Fn(&Path) -> Vec<Source> + Send + Sync>;
type Fetch = Box<dyn Fn(&Context) -> Result<(), OperatorError> + Send + Sync>;
type OpenRecheck = Box<dyn Fn(&Inputs, &Context) -> Result<Box<dyn Recheck>, OperatorError> + Send + Sync>;

/// What an operator declares with given params. Starts at [`pure`](Self::pure), [`seeded`](Self::seeded) or
/// [`external`](Self::external); each further call adds one word. An operator leaves out what it does not need.
pub struct Declaration {
    /// Types in, types out.
    pub ports: Ports,
    /// What running it twice gives.
    pub effect: Effect,
    /// Where computing it again on a CPU gives the same bytes.
    pub repeatability: Repeatability,
    /// What is wrong with the params beyond their types.
    pub issues: Vec<ParamIssue>,
    /// The endpoint that it asks.
    pub endpoint: Option<EndpointUse>,
    /// How the rows of a [`Kernel::AsyncMap`](super::Kernel::AsyncMap) are known.
    pub rows: Option<RowShape>,
    /// Whether it runs programs that its params name.
    pub runs_programs: bool,
    /// Whether it, or a program that it runs, computes on the node's GPUs.
    pub uses_gpus: bool,
    /// Whether it repeats calls to the outside as the node's `retry` says.
    pub retries: bool,
    /// What decides its output and is in no key.
    pub unseen: Option<String>,
    check_inputs: Option<InputCheck>,
    sources: Option<SourceList>,
    fetch: Option<Fetch>,
    recheck: Option<OpenRecheck>,
    deliver: Option<Box<dyn Deliver>>,
}

impl Declaration {
    /// Gives the same bytes from the same inputs and params.
    #[must_use]
    pub fn pure(ports: Ports) -> Self {
        Self::new(ports, Effect::Pure)
    }

    /// Gives the same bytes from the same inputs, params and seed.
    #[must_use]
    pub fn seeded(ports: Ports) -> Self {
        Self::new(ports, Effect::Seeded)
    }

    /// Asks the outside world; its results are kept because they were paid for.
    #[must_use]
    pub fn external(ports: Ports) -> Self {
        Self::new(ports, Effect::External)
    }

    fn new(ports: Ports, effect: Effect) -> Self {
        Self {
            ports,
            effect,
            repeatability: effect.into(),
            issues: Vec::new(),
            endpoint: None,
            rows: None,
            runs_programs: false,
            uses_gpus: false,
            retries: false,
            unseen: None,
            check_inputs: None,
            sources: None,
            fetch: None,
            recheck: None,
            deliver: None,
        }
    }

    /// Where computing it again on a CPU gives the same bytes (pure and seeded: everywhere; external: nowhere). A kernel that
    /// meets something weaker at run time (a GPU, an encoder inside an index) calls [`Context::computed_on`]; the result
    /// records the weaker of the two.
    #[must_use]
    pub fn repeatability(self, repeatability: Repeatability) -> Self {
        Self { repeatability, ..self }
    }

    /// What is wrong with params that deserialised. Reported at the param's place in the file, before anything runs.
    #[must_use]
    pub fn issues(mut self, issues: impl IntoIterator<Item = ParamIssue>) -> Self {
        self.issues.extend(issues);
        self
    }

    /// Checks the params against the names of the bound inputs. Reported like [`Declaration::issues`].
    #[must_use]
    pub fn checks_inputs(self, check: impl Fn(&[&str]) -> Vec<ParamIssue> + Send + Sync + 'static) -> Self {
        Self { check_inputs: Some(Box::new(check)), ..self }
    }

    /// The endpoint that it asks, if any. All nodes of a run that ask the same endpoint share its limits, and `plan`
    /// estimates the cost. The node's `retry` then applies. Every call is made by [`Context::call`].
    #[must_use]
    pub fn endpoint(mut self, endpoint: Option<EndpointUse>) -> Self {
        self.retries |= endpoint.is_some();
        self.endpoint = endpoint;
        self
    }

    /// For operators with a [`Kernel::AsyncMap`](super::Kernel::AsyncMap): how its rows are known, so that `plan` can look
    /// them up without opening anything.
    #[must_use]
    pub fn rows(self, rows: RowShape) -> Self {
        Self { rows: Some(rows), ..self }
    }

    /// Runs programs that its params name. An audit then computes it again only where the user allows that: what was
    /// recorded, or imported, must not decide what runs on this machine. Such a node needs no worker built for CUDA: its
    /// GPUs are for those programs.
    #[must_use]
    pub fn runs_programs(mut self, runs_programs: bool) -> Self {
        self.uses_gpus |= runs_programs;
        self.runs_programs = runs_programs;
        self
    }

    /// Computes on the node's GPUs; otherwise `resources.gpus` is refused. Implied by [`Declaration::runs_programs`].
    #[must_use]
    pub fn uses_gpus(mut self, uses_gpus: bool) -> Self {
        self.uses_gpus |= uses_gpus;
        self
    }

    /// Repeats calls to the outside as the node's `retry` says; otherwise `retry` is refused. Implied by
    /// [`Declaration::endpoint`].
    #[must_use]
    pub fn retries(mut self, retries: bool) -> Self {
        self.retries |= retries;
        self
    }

    /// What decides its output and is in no key, for `validate` to report: what a program reads beyond its command.
    #[must_use]
    pub fn unseen(self, unseen: Option<String>) -> Self {
        Self { unseen, ..self }
    }

    /// Files and URLs outside the pipeline that it reads: their content is part of the node's key. Relative paths start at
    /// the directory that `list` gets. `list` is called again for every key: its answer may depend on which files exist.
    #[must_use]
    pub fn reads(self, list: impl Fn(&Path) -> Vec<Source> + Send + Sync + 'static) -> Self {
        Self { sources: Some(Box::new(list)), ..self }
    }

    /// Brings [`Source::Fetched`] files into place and resolves [`Source::Awaited`]. A run calls it before it computes the
    /// node's key, when one of them is missing; `plan` and `validate` are offline and never call it.
    #[must_use]
    pub fn fetches(self, fetch: impl Fn(&Context) -> Result<(), OperatorError> + Send + Sync + 'static) -> Self {
        Self { fetch: Some(Box::new(fetch)), ..self }
    }

    /// Puts finished outputs where the user wants them.
    #[must_use]
    pub fn delivers(self, deliver: impl Deliver) -> Self {
        Self { deliver: Some(Box::new(deliver)), ..self }
    }

    /// For `audit`: opens a check of recorded rows against the inputs that they were made from, without asking the outside
    /// again. Only external operators need it; the others are computed again.
    #[must_use]
    pub fn rechecks(
        self,
        open: impl Fn(&Inputs, &Context) -> Result<Box<dyn Recheck>, OperatorError> + Send + Sync + 'static,
    ) -> Self {
        Self { recheck: Some(Box::new(open)), ..self }
    }

    /// What is wrong with the params given the names of the bound inputs.
    #[must_use]
    pub fn input_issues(&self, inputs: &[&str]) -> Vec<ParamIssue> {
        self.check_inputs.as_ref().map(|check| check(inputs)).unwrap_or_default()
    }

    /// Lists the outside files and URLs whose content is part of the key, as they are now.
    #[must_use]
    pub fn sources(&self, directory: &Path) -> Vec<Source> {
        self.sources.as_ref().map(|list| list(directory)).unwrap_or_default()
    }

    /// Brings fetched sources into place.
    ///
    /// # Errors
    /// When one cannot be fetched.
    pub fn fetch(&self, context: &Context) -> Result<(), OperatorError> {
        self.fetch.as_ref().map_or(Ok(()), |fetch| fetch(context))
    }

    /// Opens the check of recorded rows, if the operator has one.
    ///
    /// # Errors
    /// When an input cannot be opened.
    pub fn recheck(&self, inputs: &Inputs, context: &Context) -> Result<Option<Box<dyn Recheck>>, OperatorError> {
        self.recheck.as_ref().map(|open| open(inputs, context)).transpose()
    }

    /// Paths and URLs that finished outputs are written to.
    #[must_use]
    pub fn destinations(&self) -> Vec<String> {
        self.deliver.as_ref().map(|deliver| deliver.destinations()).unwrap_or_default()
    }

    /// Share of the rows that may be lost before this node and its outputs still be delivered.
    #[must_use]
    pub fn max_reject_share(&self) -> f64 {
        self.deliver.as_ref().map_or(1.0, |deliver| deliver.max_reject_share())
    }

    /// Puts finished outputs where the user wants them. Returns the places written.
    ///
    /// # Errors
    /// When a place cannot be written.
    pub fn deliver(
        &self,
        folders: &BTreeMap<String, PathBuf>,
        context: &Context,
    ) -> Result<Vec<String>, OperatorError> {
        self.deliver.as_ref().map_or(Ok(Vec::new()), |deliver| deliver.deliver(folders, context))
    }
}
