//! The registry: operators by name, with their types erased.

use std::collections::BTreeMap;

use serde_json::Value;

use super::context::Context;
use super::contract::{Example, Operator};
use super::declaration::Declaration;
use super::error::OperatorError;
use super::kernel::Kernel;
use super::params::ParamIssue;
use super::rows::Inputs;

/// An operator with its params type erased.
#[derive(Clone, Copy)]
pub struct OperatorEntry {
    /// The word after `op:`.
    pub name: &'static str,
    /// Version of its output.
    pub version: u32,
    /// One sentence.
    pub about: &'static str,
    /// Snippets for the reference page.
    pub examples: &'static [Example],
    /// JSON Schema of its params.
    pub schema: fn() -> Value,
    /// Params to a bound operator; the error carries the path of the offending param.
    pub bind: fn(Value) -> Result<BoundOperator, ParamIssue>,
}

type Open = Box<dyn Fn(&Inputs, &Context) -> Result<Kernel, OperatorError> + Send + Sync>;

/// An operator with its params.
pub struct BoundOperator {
    /// What it declares with these params.
    pub declaration: Declaration,
    /// Params after defaults.
    pub params: Value,
    open: Open,
}

impl BoundOperator {
    /// Opens the kernel.
    ///
    /// # Errors
    /// When something that the params name is missing.
    pub fn open(&self, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        (self.open)(inputs, context)
    }
}

/// The entry of an operator, for the registry's list.
#[must_use]
pub fn entry<O: Operator>() -> OperatorEntry {
    OperatorEntry {
        name: O::NAME,
        version: O::VERSION,
        about: O::ABOUT,
        examples: O::EXAMPLES,
        schema: || schemars::schema_for!(O::Params).to_value(),
        bind: bind::<O>,
    }
}

fn bind<O: Operator>(value: Value) -> Result<BoundOperator, ParamIssue> {
    let params: O::Params = serde_path_to_error::deserialize(value).map_err(|error| {
        ParamIssue::new(error.path().to_string().replace(['[', ']'], "."), error.inner().to_string())
    })?;
    let value = serde_json::to_value(&params).map_err(|error| ParamIssue::new("", error.to_string()))?;
    let declaration = O::declare(&params);
    let open = Box::new(move |inputs: &Inputs, context: &Context| O::open(&params, inputs, context));
    Ok(BoundOperator { declaration, params: value, open })
}

/// Operators by name.
#[derive(Clone, Default)]
pub struct Registry {
    entries: BTreeMap<&'static str, OperatorEntry>,
}

impl Registry {
    /// A registry of those operators.
    #[must_use]
    pub fn new(entries: &[OperatorEntry]) -> Self {
        Self { entries: entries.iter().map(|entry| (entry.name, *entry)).collect() }
    }

    /// The operator of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&OperatorEntry> {
        self.entries.get(name)
    }

    /// All operators, by name.
    pub fn iter(&self) -> impl Iterator<Item = &OperatorEntry> {
        self.entries.values()
    }
}
