//! Prompts of users as services: each different request is paid once.

use searchmill_engine::operator::{Context, OperatorError, ParamIssue, Prices, RowFailure, Usage};
use serde_json::{Map, Value};

use super::prompt_params::Asks;
use crate::policy::Policy;
use crate::policy::endpoint::{Endpoint, Observer};
use crate::prompt::{Answer, Asked, Output, Prompts, ask};
use crate::protocol::{ProtocolParams, ProtocolSettings};

/// What a call gave: the answer, or an error that the caller reads; and its cost.
pub(super) type Told<T> = (Result<T, String>, Usage);

/// A prompt and the endpoint that it is sent to.
pub(super) struct PromptService {
    pub(super) prompts: Prompts,
    endpoint: Endpoint,
    prices: Prices,
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
        (output, described): (&Output, Option<String>),
        place: usize,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        let mut endpoint =
            asks.endpoint().cloned().ok_or_else(|| OperatorError::pipeline("a prompt needs an endpoint"))?;
        let format = output.response_format().filter(|_| asks.constrained);
        endpoint.extra.extend(format.map(|format| ("response_format".to_owned(), format)));
        let chat = ProtocolParams::ToolCall.open(&ProtocolSettings::default());
        let endpoint = Endpoint::open(&endpoint, chat, None, context)?;
        let prompts = Prompts::new(&asks.prompt).map_err(refused)?;
        let (prices, repairs) = (endpoint.prices(), asks.repairs);
        Ok(Self { prompts, endpoint, prices, place, repairs, described })
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
    ) -> Result<Told<T>, RowFailure> {
        let described = self.described.as_deref();
        let messages = match self.prompts.render(values, described) {
            Ok(messages) => messages,
            Err(error) => return Ok((Err(error), Usage::default())),
        };
        let mut observer = Observer::new(&self.endpoint, self.place, context);
        match ask(&mut observer, &self.prices, messages, described, self.repairs, read).await {
            Ok(Asked { answer, usage }) => Ok((answer.map_err(|unfit| unfit.message), usage)),
            Err(failure) if observer.has_failed() => Ok((Err(failure.message), failure.usage)),
            Err(failure) => Err(failure),
        }
    }
}

fn refused(issue: ParamIssue) -> OperatorError {
    let error = OperatorError::pipeline(format!("`{}`: {}", issue.path, issue.message));
    issue.help.into_iter().fold(error, OperatorError::with_help)
}
