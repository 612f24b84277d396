//! The registry: operators by name, with their param types erased.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::context::Context;
use super::contract::{Example, Operator};
use super::declaration::Declaration;
use super::kernel::Kernel;
use super::params::{ParamIssue, read_params};
use super::rows::Inputs;
use super::sources::Source;
use crate::error::OperatorError;

/// An operator with its params type erased.
#[derive(Clone, Copy)]
pub struct OperatorEntry {
    /// Name after `op:`.
    pub name: &'static str,
    /// Version of its output.
    pub version: u32,
    /// One-sentence description.
    pub about: &'static str,
    /// Whether it gathers the variants of a node with a matrix.
    pub gathers: bool,
    /// Whether it decides after a round of a loop.
    pub decides: bool,
    /// Snippets for the reference page.
    pub examples: &'static [Example],
    /// Returns the JSON Schema of its params.
    pub schema: fn() -> Value,
    /// Binds params; the error has the path of the invalid param.
    pub bind: fn(Value) -> Result<BoundOperator, ParamIssue>,
}

type Open = Box<dyn Fn(&Inputs, &Context) -> Result<Kernel, OperatorError> + Send + Sync>;

/// An operator with its params.
pub struct BoundOperator {
    /// Its declaration for these params.
    pub declaration: Declaration,
    /// Params with defaults filled in.
    pub params: Value,
    open: Open,
}

impl BoundOperator {
    /// Opens the kernel.
    ///
    /// # Errors
    /// Fails if something named by the params is missing.
    pub fn open(&self, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        (self.open)(inputs, context)
    }
}

/// Returns the entry of an operator, for the registry's list.
pub fn entry<O: Operator>() -> OperatorEntry {
    OperatorEntry {
        name: O::NAME,
        version: O::VERSION,
        about: O::ABOUT,
        gathers: O::GATHERS,
        decides: O::DECIDES,
        examples: O::EXAMPLES,
        schema: || schemars::schema_for!(O::Params).to_value(),
        bind: bind::<O>,
    }
}

fn bind<O: Operator>(value: Value) -> Result<BoundOperator, ParamIssue> {
    let params: O::Params = read_params(value)?;
    // Written back: a default that is spelled out and one that is left out must give the same key.
    let value = serde_json::to_value(&params).map_err(|error| ParamIssue::new("", error.to_string()))?;
    let declaration = O::declare(&params);
    let open = Box::new(move |inputs: &Inputs, context: &Context| O::open(&params, inputs, context));
    Ok(BoundOperator { declaration, params: value, open })
}

/// Lists the files and programs that the words of a command name. Relative paths start at the folder.
pub type CommandSources = fn(&[String], &Path) -> Vec<Source>;

/// Operators by name.
#[derive(Clone, Default)]
pub struct Registry {
    entries: BTreeMap<&'static str, OperatorEntry>,
    commands: Option<CommandSources>,
}

impl Registry {
    /// Creates a registry of those operators.
    pub fn new(entries: &[OperatorEntry]) -> Self {
        Self { entries: entries.iter().map(|entry| (entry.name, *entry)).collect(), commands: None }
    }

    /// Sets the rule by which the words of a service's program are read as files and programs.
    #[must_use]
    pub fn with_commands(self, commands: CommandSources) -> Self {
        Self { commands: Some(commands), ..self }
    }

    /// Returns the rule by which the words of a command are read. The default finds words that name a file.
    pub fn commands(&self) -> CommandSources {
        self.commands.unwrap_or(|words, directory| {
            let files = words.iter().filter(|word| directory.join(word).is_file());
            files.map(|word| Source::Argument(word.clone())).collect()
        })
    }

    /// Returns the operator of that name.
    pub fn get(&self, name: &str) -> Option<&OperatorEntry> {
        self.entries.get(name)
    }

    /// Iterates over all operators by name.
    pub fn iter(&self) -> impl Iterator<Item = &OperatorEntry> {
        self.entries.values()
    }
}
