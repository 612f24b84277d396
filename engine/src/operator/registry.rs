//! The registry: operators by name, with their types erased.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::context::Context;
use super::contract::{Example, Operator};
use super::error::OperatorError;
use super::kernel::{Kernel, RowShape};
use super::params::ParamIssue;
use super::port::Ports;
use super::rate_limiter::EndpointUse;
use super::recheck::Recheck;
use super::repeatability::{Effect, Repeatability};
use super::rows::Inputs;
use super::sources::Source;

/// An operator with its params type erased.
#[derive(Clone, Copy)]
pub struct OperatorEntry {
    /// The word after `op:`.
    pub name: &'static str,
    /// Version of its output.
    pub version: u32,
    /// What running it twice gives.
    pub effect: Effect,
    /// With which params an external operator asks the outside world, where that is not always so.
    pub outside: Option<&'static str>,
    /// One sentence.
    pub about: &'static str,
    /// Snippets for the reference page.
    pub examples: &'static [Example],
    /// JSON Schema of its params.
    pub schema: fn() -> Value,
    /// Params to a bound operator; the error carries the path of the offending param.
    pub bind: fn(Value) -> Result<Box<dyn BoundOperator>, ParamIssue>,
}

impl OperatorEntry {
    /// `pure`, `seeded`, `external`, or `external (endpoint)` where it is that only with some params.
    #[must_use]
    pub fn effect_words(&self) -> String {
        match self.outside {
            Some(which) => format!("{} ({which})", self.effect.name()),
            None => self.effect.name().to_owned(),
        }
    }
}

/// An operator with its params.
pub trait BoundOperator: Send + Sync {
    /// Types in, types out.
    fn ports(&self) -> Ports;
    /// What is wrong with the params beyond their types.
    fn check(&self) -> Vec<ParamIssue>;
    /// What is wrong with the params beside the inputs that are bound.
    fn check_inputs(&self, inputs: &[&str]) -> Vec<ParamIssue>;
    /// Does it run programs that its params name?
    fn runs_programs(&self) -> bool;
    /// Where computing it again gives the same bytes.
    fn repeatability(&self) -> Repeatability;
    /// Outside files whose content is part of the key; relative paths start at `directory`.
    fn sources(&self, directory: &Path) -> Vec<Source>;
    /// Does it repeat calls as `retry` says?
    fn retries(&self) -> bool;
    /// Does it compute on GPUs?
    fn uses_gpus(&self) -> bool;
    /// What decides its output and is in no key.
    fn unseen(&self) -> Option<String>;
    /// The endpoint that it asks.
    fn endpoint(&self) -> Option<EndpointUse>;
    /// How its rows are known.
    fn rows(&self) -> Option<RowShape>;
    /// Params after defaults.
    fn params(&self) -> Value;
    /// Brings fetched sources into place.
    ///
    /// # Errors
    /// When one cannot be had.
    fn fetch(&self, context: &Context) -> Result<(), OperatorError>;
    /// Opens the kernel.
    ///
    /// # Errors
    /// When what the params ask for is not there.
    fn open(&self, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError>;
    /// Where finished outputs are put.
    fn destinations(&self) -> Vec<String>;
    /// Share of the rows that may be lost before this node and its outputs still be delivered.
    fn max_reject_share(&self) -> f64;
    /// Puts finished outputs where the user wants them.
    ///
    /// # Errors
    /// When a place cannot be written.
    fn deliver(&self, folders: &BTreeMap<String, PathBuf>, context: &Context) -> Result<Vec<String>, OperatorError>;
    /// How to check recorded rows against the inputs they were made from, if the operator can.
    ///
    /// # Errors
    /// When an input cannot be opened.
    fn recheck(&self, inputs: &Inputs, context: &Context) -> Result<Option<Box<dyn Recheck>>, OperatorError>;
}

struct Bound<O: Operator> {
    params: O::Params,
    value: Value,
    operator: PhantomData<O>,
}

impl<O: Operator> BoundOperator for Bound<O> {
    fn ports(&self) -> Ports {
        O::ports(&self.params)
    }

    fn check(&self) -> Vec<ParamIssue> {
        O::check(&self.params)
    }

    fn check_inputs(&self, inputs: &[&str]) -> Vec<ParamIssue> {
        O::check_inputs(&self.params, inputs)
    }

    fn runs_programs(&self) -> bool {
        O::runs_programs(&self.params)
    }

    fn repeatability(&self) -> Repeatability {
        O::repeatability(&self.params)
    }

    fn sources(&self, directory: &Path) -> Vec<Source> {
        O::sources(&self.params, directory)
    }

    fn retries(&self) -> bool {
        O::retries(&self.params)
    }

    fn uses_gpus(&self) -> bool {
        O::uses_gpus(&self.params)
    }

    fn unseen(&self) -> Option<String> {
        O::unseen(&self.params)
    }

    fn endpoint(&self) -> Option<EndpointUse> {
        O::endpoint(&self.params)
    }

    fn rows(&self) -> Option<RowShape> {
        O::rows(&self.params)
    }

    fn params(&self) -> Value {
        self.value.clone()
    }

    fn fetch(&self, context: &Context) -> Result<(), OperatorError> {
        O::fetch(&self.params, context)
    }

    fn open(&self, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        O::open(&self.params, inputs, context)
    }

    fn destinations(&self) -> Vec<String> {
        O::destinations(&self.params)
    }

    fn max_reject_share(&self) -> f64 {
        O::max_reject_share(&self.params)
    }

    fn deliver(&self, folders: &BTreeMap<String, PathBuf>, context: &Context) -> Result<Vec<String>, OperatorError> {
        O::deliver(&self.params, folders, context)
    }

    fn recheck(&self, inputs: &Inputs, context: &Context) -> Result<Option<Box<dyn Recheck>>, OperatorError> {
        O::recheck(&self.params, inputs, context)
    }
}

/// The entry of an operator, for the registry's list.
#[must_use]
pub fn entry<O: Operator>() -> OperatorEntry {
    OperatorEntry {
        name: O::NAME,
        version: O::VERSION,
        effect: O::EFFECT,
        outside: O::OUTSIDE,
        about: O::ABOUT,
        examples: O::EXAMPLES,
        schema: || schemars::schema_for!(O::Params).to_value(),
        bind: bind::<O>,
    }
}

fn bind<O: Operator>(value: Value) -> Result<Box<dyn BoundOperator>, ParamIssue> {
    let params: O::Params = serde_path_to_error::deserialize(value).map_err(|error| {
        ParamIssue::new(error.path().to_string().replace(['[', ']'], "."), error.inner().to_string())
    })?;
    let value = serde_json::to_value(&params).map_err(|error| ParamIssue::new("", error.to_string()))?;
    Ok(Box::new(Bound::<O> { params, value, operator: PhantomData }))
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
