//! A prompt as a tool.

use searchmill_engine::operator::{Context, OperatorError, RowFailure};
use serde_json::{Map, Value};

use super::prompt_params::PromptToolParams;
use super::prompt_service::PromptService;
use super::results;
use super::service::shown;
use crate::prompt::Output;
use crate::protocol::OfferedCall;
use crate::tool::Called;

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
        let given = |name: &str| (name.to_owned(), call.arguments.get(name).cloned().unwrap_or_default());
        let values: Map<String, Value> = self.params.arguments().into_iter().map(given).collect();
        let told = self.service.ask(&values, |answer| self.output.shown(answer.text), context).await;
        let whole = |text: String| results::whole(&text, self.params.max_chars);
        shown(call.tool, told.map(|(answer, usage)| (answer.map(whole), usage)))
    }
}
