//! The trait that every operator implements.

use super::context::Context;
use super::declaration::Declaration;
use super::error::OperatorError;
use super::kernel::Kernel;
use super::params::Params;
use super::rows::Inputs;

/// A kind of step. See CONTRIBUTING.md for a worked example.
pub trait Operator: 'static {
    /// Parameters (the YAML under `with:`). Doc comments become the reference page and the editor's help.
    /// Derive `serde::{Serialize, Deserialize}` with `deny_unknown_fields` and defaults, and `schemars::JsonSchema`.
    type Params: Params;
    /// The word after `op:`, kebab-case.
    const NAME: &'static str;
    /// Bump when the same params and inputs could now give other bytes.
    const VERSION: u32;
    /// One sentence for the reference page.
    const ABOUT: &'static str;
    /// Complete pipelines or node snippets for the reference page; each is bound by a test. The page also takes from them
    /// which effects and degrees of repeatability the operator has.
    const EXAMPLES: &'static [Example];

    /// Ports, issues, effect, sources: everything that the plan, the key and the reference page need. Depends on params
    /// alone and is called once when they are bound, also for params that have issues.
    fn declare(params: &Self::Params) -> Declaration;

    /// Opens the kernel on the worker: loads tokenizers, opens side inputs, connects.
    ///
    /// # Errors
    /// When something that the params name is missing.
    fn open(params: &Self::Params, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError>;
}

/// A snippet for the reference page: the `nodes:` entry of this operator.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// What it shows.
    pub title: &'static str,
    /// YAML of one node, for example `chunks: {op: chunk, from: corpus, with: {size: 200}}`.
    pub yaml: &'static str,
}
