//! A prompt as a tool.

use searchmill_engine::operator::{Context, OperatorError, RowFailure};
use serde_json::Map;

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
        let mut values = Map::new();
        for name in self.params.arguments() {
            // An argument that the model left out is `none` in a template.
            values.insert(name.to_owned(), call.arguments.get(name).cloned().unwrap_or_default());
        }
        let answered = self.service.ask(
            &values,
            |answer| Ok(results::whole(&self.output.shown(answer.text)?, self.params.max_chars)),
            context,
        );
        shown(call.tool, answered.await)
    }
}
