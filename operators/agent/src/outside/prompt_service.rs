//! Prompts of users as services, each different request of which is paid once; and a prompt as a tool.

use std::sync::atomic::AtomicBool;

use searchmill_engine::operator::{Context, OperatorError, RowFailure, Usage};
use serde_json::{Map, Value};

use super::function::given;
use super::prompt_params::{Asks, PromptToolParams};
use super::results;
use super::service::shown;
use crate::policy::RowSample;
use crate::policy::endpoint::{Endpoint, Observer};
use crate::prompt::{Answer, Asked, Output, Prompts, ask, unusable};
use crate::protocol::OfferedCall;
use crate::tool::Called;

/// What a call gave: the answer, or an error that the caller reads; and its cost.
pub(super) type Answered<T> = (Result<T, String>, Usage);

/// A prompt and the endpoint that it is sent to.
pub(super) struct PromptService {
    pub(super) prompts: Prompts,
    endpoint: Endpoint,
    place: usize,
    repairs: u32,
    described: Option<String>,
}

impl PromptService {
    /// Opens a prompt that is answered in the form of `output`; `described`: what the model is told of that form. `place` is
    /// the endpoint's in the declaration.
    ///
    /// # Errors
    /// Fails if a template is none, or a secret is unknown.
    pub(super) fn open(
        asks: &Asks<'_>,
        output: &Output,
        described: Option<String>,
        place: usize,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        let Some(endpoint) = asks.endpoint() else {
            return Err(OperatorError::pipeline("a prompt needs an endpoint"));
        };
        let format = if asks.constrained { output.response_format() } else { None };
        let endpoint = endpoint.open_chat(format, context)?;
        let prompts = Prompts::new(&asks.prompt).map_err(unusable)?;
        Ok(Self { prompts, endpoint, place, repairs: asks.repairs, described })
    }

    /// Asks with these values. An answer that does not fit is asked again.
    ///
    /// # Errors
    /// If no model can mend the failure, the budget is used up, or the run stops.
    pub(super) async fn ask<T>(
        &self,
        values: &Map<String, Value>,
        read: impl Fn(Answer<'_>) -> Result<T, String>,
        context: &Context,
    ) -> Result<Answered<T>, RowFailure> {
        let described = self.described.as_deref();
        let messages = match self.prompts.render(values, described) {
            Ok(messages) => messages,
            // The template fails on these arguments: the model reads why, and may give others.
            Err(error) => return Ok((Err(error), Usage::default())),
        };
        let observer = Observer { endpoint: &self.endpoint, place: self.place, has_failed: AtomicBool::new(false) };
        // Calls of tools have no samples: the same call has the same answer in every rollout.
        let sample = RowSample { row: "", number: 0, context };
        match ask(&observer, sample, messages, described, self.repairs, read).await {
            Ok(Asked { answer, usage }) => Ok((answer.map_err(|unfit| unfit.message), usage)),
            // What the observer recorded is an observation, which the model reads; other failures fail the row.
            Err(failure) if observer.has_failed.into_inner() => Ok((Err(failure.message), failure.usage)),
            Err(failure) => Err(failure),
        }
    }
}

/// A tool that asks a language model.
pub(super) struct PromptTool {
    params: PromptToolParams,
    service: PromptService,
    output: Output,
}

impl PromptTool {
    /// Opens the tool. `place` is the endpoint's in the declaration.
    ///
    /// # Errors
    /// Fails if a secret is unknown.
    pub(super) fn open(params: &PromptToolParams, place: usize, context: &Context) -> Result<Self, OperatorError> {
        let output = params.answer().map_err(|issue| OperatorError::pipeline(issue.message))?;
        let described = output.described().map(str::to_owned);
        let service = PromptService::open(&params.asks(), &output, described, place, context)?;
        Ok(Self { params: params.clone(), service, output })
    }

    /// Runs a call.
    pub(super) async fn call(&self, call: OfferedCall<'_>, context: &Context) -> Result<Called, RowFailure> {
        // An argument that the model left out is `none` in a template.
        let values = given(&self.params.parameters, call.arguments);
        let answered = self.service.ask(
            &values,
            |answer| Ok(results::whole(&self.output.shown(answer.text)?, self.params.max_chars)),
            context,
        );
        shown(call.tool, answered.await)
    }
}
