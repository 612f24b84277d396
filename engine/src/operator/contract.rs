//! The trait that every operator implements.

use super::context::Context;
use super::declaration::Declaration;
use super::kernel::Kernel;
use super::params::Params;
use super::rows::Inputs;
use crate::error::OperatorError;

/// Column of a decision about a loop: why it ends (text).
pub const ENDED: &str = "ended";
/// Column of a decision about a loop: the round that it hands on (a whole number).
pub const HANDS_ON: &str = "hands_on";

/// A kind of step. The guide `CONTRIBUTING.md` of the repository builds one from the first line to its tests.
///
/// ```
/// use searchmill_engine::prelude::*;
/// use searchmill_schemas::{Document, RecordKind};
///
/// /// Params of `greet`.
/// #[derive(Clone, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct GreetParams {
///     /// The text of the document.
///     text: String,
/// }
///
/// struct Greet;
///
/// impl Operator for Greet {
///     type Params = GreetParams;
///     const NAME: &'static str = "greet";
///     const VERSION: u32 = 1;
///     const ABOUT: &'static str = "Writes one document.";
///     const EXAMPLES: &'static [Example] =
///         &[Example { title: "A greeting", yaml: "hello: {op: greet, with: {text: hi}}" }];
///
///     fn declare(_params: &GreetParams) -> Declaration {
///         Declaration::pure(Ports::new().rows_out("documents", RecordKind::Document, "The greeting."))
///     }
///
///     fn open(params: &GreetParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
///         Ok(Kernel::Blocking(Box::new(Greeting(params.text.clone()))))
///     }
/// }
///
/// struct Greeting(String);
///
/// impl BlockingKernel for Greeting {
///     fn run(&self, _inputs: &Inputs, outputs: &mut Outputs<'_>, _context: &Context) -> Result<(), OperatorError> {
///         let greeting = Document { id: "d1".to_owned(), title: None, text: self.0.clone(), metadata: None };
///         outputs.write_rows("documents", &[greeting])
///     }
/// }
///
/// let registry = Registry::new(&[entry::<Greet>()]);
/// assert_eq!(registry.get("greet").map(|entry| entry.version), Some(1));
/// ```
pub trait Operator: 'static {
    /// Parameters (the YAML under `with:`). Doc comments become the reference page and the editor's help.
    /// Derive `serde::{Serialize, Deserialize}` with `deny_unknown_fields` and defaults, and `schemars::JsonSchema`.
    type Params: Params;
    /// The operator's name after `op:`, kebab-case.
    const NAME: &'static str;
    /// Increase it when the same params and inputs could produce other bytes.
    const VERSION: u32;
    /// One sentence for the reference page.
    const ABOUT: &'static str;
    /// Complete pipelines or node snippets for the reference page; a test binds each. The page also derives the
    /// operator's effects and degrees of repeatability from them.
    const EXAMPLES: &'static [Example];

    /// Whether the engine puts it between a node with a matrix and an input that takes one table. Its inputs are then
    /// named by the variants, and its params are `columns` and `tables: [{name, values}]`.
    const GATHERS: bool = false;

    /// Whether the engine puts it after each round of a loop with `best` or `stop`, whose keys are its params. Its inputs
    /// are named by the tables of its queries; `rounds` is its result of the round before. In the last row of its first
    /// output, [`ENDED`](super::ENDED) says why the loop ends (NULL: it goes on), and [`HANDS_ON`](super::HANDS_ON) which
    /// round it hands on.
    const DECIDES: bool = false;

    /// Declares ports, issues, effect and sources: everything the plan, the key and the reference page need. Depends on
    /// params alone; called once when they are bound, even if they have issues.
    fn declare(params: &Self::Params) -> Declaration;

    /// Opens the kernel where it runs: loads tokenizers, opens side inputs, connects.
    ///
    /// # Errors
    /// Fails if something named by the params is missing.
    fn open(params: &Self::Params, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError>;
}

/// A snippet for the reference page: the `nodes:` entry of this operator.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// What the example shows.
    pub title: &'static str,
    /// YAML of one node, for example `chunks: {op: chunk, from: corpus, with: {size: 200}}`.
    pub yaml: &'static str,
}
