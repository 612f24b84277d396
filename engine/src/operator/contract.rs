//! The trait that every operator implements.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::context::Context;
use super::error::OperatorError;
use super::kernel::{Kernel, RowShape};
use super::params::{ParamIssue, Params};
use super::port::Ports;
use super::rate_limiter::EndpointUse;
use super::recheck::Recheck;
use super::repeatability::{Effect, Repeatability};
use super::rows::Inputs;
use super::sources::Source;

/// What stands behind a destination's path in the path of its manifest, which is written beside it.
pub const MANIFEST_ENDING: &str = ".manifest.json";

/// A kind of step. See CONTRIBUTING.md for a worked example.
pub trait Operator: Send + Sync + 'static {
    /// Parameters (the YAML under `with:`). Doc comments become the reference page and the editor's help.
    /// Derive `serde::{Serialize, Deserialize}` with `deny_unknown_fields` and defaults, and `schemars::JsonSchema`.
    type Params: Params;
    /// The word after `op:`, kebab-case.
    const NAME: &'static str;
    /// Bump when the same params and inputs could now give other bytes.
    const VERSION: u32;
    /// What running it twice gives.
    const EFFECT: Effect;
    /// For an external operator that asks the outside world only with certain params: which, in a word or two.
    const OUTSIDE: Option<&'static str> = None;
    /// One sentence for the reference page.
    const ABOUT: &'static str;
    /// Complete pipelines or node snippets for the reference page; each is bound by a test.
    const EXAMPLES: &'static [Example];

    /// Types in, types out; depends on params alone.
    fn ports(params: &Self::Params) -> Ports;

    /// Does it run programs that its params name? Then an audit computes it again only where that is allowed: what was
    /// recorded, or imported, must not decide what runs on this machine. And it needs no worker built for CUDA: the GPUs
    /// that its node has are for those programs.
    fn runs_programs(_params: &Self::Params) -> bool {
        false
    }

    /// Where computing it again on a CPU gives the same bytes. A kernel that meets something weaker at run time (a GPU, an
    /// encoder inside an index) says so by [`Context::computed_on`]; the result records the weaker of the two.
    fn repeatability(_params: &Self::Params) -> Repeatability {
        Self::EFFECT.into()
    }

    /// What is wrong with params that deserialised; reported at the param's place in the file, before anything runs.
    fn check(_params: &Self::Params) -> Vec<ParamIssue> {
        Vec::new()
    }

    /// What is wrong with params beside the inputs that are bound, by their names; reported like [`Operator::check`].
    fn check_inputs(_params: &Self::Params, _inputs: &[&str]) -> Vec<ParamIssue> {
        Vec::new()
    }

    /// The endpoint that it asks: all nodes of a run that ask the same share its limits, and `plan` tells what is to be
    /// paid. Every call waits for [`Context::admit_call`].
    fn endpoint(_params: &Self::Params) -> Option<EndpointUse> {
        None
    }

    /// For operators with a [`Kernel::AsyncMap`]: how its rows are known, so that `plan` can look them up without opening
    /// anything.
    fn rows(_params: &Self::Params) -> Option<RowShape> {
        None
    }

    /// Does it repeat calls to the outside as the node's `retry` says? Otherwise that setting is refused.
    fn retries(params: &Self::Params) -> bool {
        Self::endpoint(params).is_some()
    }

    /// Does it compute on the GPUs that its node has, or do programs that it runs? Otherwise `resources.gpus` is refused.
    fn uses_gpus(params: &Self::Params) -> bool {
        Self::runs_programs(params)
    }

    /// Files and URLs outside the pipeline that it reads: their content is part of the node's key. Relative paths start at
    /// `directory`. It is asked anew for every key: what it answers may depend on which files are there.
    fn sources(_params: &Self::Params, _directory: &Path) -> Vec<Source> {
        Vec::new()
    }

    /// What decides its output and is in no key, for `validate` to say: what a program reads beyond its command.
    fn unseen(_params: &Self::Params) -> Option<String> {
        None
    }

    /// Brings its [`Source::Fetched`] files into place and finds out what is [`Source::Awaited`]. Called by a run before the
    /// node's key is made, when one of them is missing; never by `plan` or `validate`, which are offline.
    ///
    /// # Errors
    /// When one cannot be had.
    fn fetch(_params: &Self::Params, _context: &Context) -> Result<(), OperatorError> {
        Ok(())
    }

    /// Opens the kernel on the worker: load tokenizers, open side inputs, connect.
    ///
    /// # Errors
    /// When what the params ask for is not there.
    fn open(params: &Self::Params, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError>;

    /// Paths and URLs that [`Operator::deliver`] writes to, as the user gave them; each may have a manifest beside it
    /// ([`MANIFEST_ENDING`]). The plan refuses places that overlap what the pipeline reads or another node writes.
    fn destinations(_params: &Self::Params) -> Vec<String> {
        Vec::new()
    }

    /// Share of the rows that may be lost before this node (rejected or passed over by nodes that it rests on) and its
    /// outputs still be delivered. Beyond it they are held back.
    fn max_reject_share(_params: &Self::Params) -> f64 {
        0.1
    }

    /// Puts finished outputs where the user wants them (`write`); runs whenever the node's result is known, computed or
    /// cached, so it must be cheap when everything is in place. `folders` has the folder of every tree output. Gives
    /// the places written.
    ///
    /// # Errors
    /// When a place cannot be written.
    fn deliver(
        _params: &Self::Params,
        _folders: &BTreeMap<String, PathBuf>,
        _context: &Context,
    ) -> Result<Vec<String>, OperatorError> {
        Ok(Vec::new())
    }

    /// For `audit`: how to check rows that this operator recorded against its inputs, without asking the outside again.
    /// Only external operators need it; the others are computed again. `inputs` are those that the rows were made from.
    ///
    /// # Errors
    /// When an input cannot be opened.
    fn recheck(
        _params: &Self::Params,
        _inputs: &Inputs,
        _context: &Context,
    ) -> Result<Option<Box<dyn Recheck>>, OperatorError> {
        Ok(None)
    }
}

/// A snippet for the reference page: the `nodes:` entry of this operator.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// What it shows.
    pub title: &'static str,
    /// YAML of one node, for example `chunks: {op: chunk, from: corpus, with: {size: 200}}`.
    pub yaml: &'static str,
}
