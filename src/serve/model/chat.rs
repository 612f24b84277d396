//! `/v1/chat/completions`: continues a conversation, optionally with tools.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use searchmill_models::inference::Ending;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::answer::answer;
use super::body::Body;
use super::chat_choice::{Offer, Speech};
use super::message::{Given, messages};
use super::options::{Wanted, few};
use super::wire::{Answer, Details, Served};
use crate::serve::http::refusal::Refusal;

#[derive(Deserialize)]
pub(super) struct ChatRequest {
    messages: Vec<Given>,
    /// Raw JSON: the order of its keys is part of the prompt.
    tools: Option<Box<RawValue>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    chat_template_kwargs: Option<BTreeMap<String, Value>>,
    add_generation_prompt: Option<bool>,
    /// As in vLLM: the model continues the last message.
    continue_final_message: Option<bool>,
    /// As in SGLang: `false` leaves the thoughts in the text.
    separate_reasoning: Option<bool>,
}

pub(crate) async fn complete(
    State(served): State<Arc<Served>>,
    Body { options, own }: Body<ChatRequest>,
) -> Result<Response, Refusal> {
    options.check(&served)?;
    let (tools, offer) = own.tools()?;
    let (ending, logprobs) = (own.ending()?, own.logprobs()?);
    let messages = messages(own.messages)?;
    if ending == Ending::LastMessage
        && messages.last().is_none_or(|last| last.role != "assistant" || !last.calls.is_empty())
    {
        let message = "`continue_final_message` needs an assistant message without tool calls at the end";
        return Err(Refusal::value("continue_final_message", message));
    }
    let separate = own.separate_reasoning != Some(false);
    let variables = own.chat_template_kwargs.unwrap_or_default();
    let prompt = served.model.chat_tokens_until(&messages, &tools, &variables, ending);
    let prompt = prompt.map_err(|problem| Refusal::value("messages", problem))?;
    let details = Details { logprobs: logprobs.is_some(), token_ids: options.wants_token_ids() };
    let fresh = served.fresh();
    // Some templates open the thoughts in the prompt: the text of the model then only closes them.
    let speech = Speech::new(&served, fresh.clone(), offer, details, served.model.begins_in_thought(&prompt));
    let speech = if separate { speech } else { speech.in_one_text() };
    let object = if options.streams() { "chat.completion.chunk" } else { "chat.completion" };
    let (id, prompt_ids) = (format!("chatcmpl-{fresh}"), details.token_ids.then(|| prompt.clone()));
    let framed = Answer::new(&served, id, object, prompt_ids, options.wants_usage());
    let request = options.request(&served, "messages", prompt, logprobs)?;
    answer(&served, request, framed, speech).await
}

impl ChatRequest {
    /// Returns the tools for the prompt, as JSON, and what the model may do with them.
    fn tools(&self) -> Result<(String, Option<Offer>), Refusal> {
        let tools = self.tools.as_ref().map_or("[]", |tools| tools.get());
        let list: Vec<Value> =
            serde_json::from_str(tools).map_err(|_| Refusal::value("tools", "`tools` must be a list"))?;
        let choice = self.tool_choice.as_ref().map_or(Some("auto"), Value::as_str);
        match (choice, list.first()) {
            (Some("auto"), Some(first)) => {
                let name = first["function"]["name"].as_str().or(first["name"].as_str()).unwrap_or_default();
                let one_call = self.parallel_tool_calls == Some(false);
                Ok((tools.to_owned(), Some(Offer { first: name.to_owned(), one_call })))
            }
            // With `none`, the model does not see the tools, so that it does not call them.
            (Some("auto" | "none"), _) => Ok(("[]".to_owned(), None)),
            _ => {
                let message = "only the values `auto` and `none` of `tool_choice` are supported";
                Err(Refusal::unsupported("tool_choice", message))
            }
        }
    }

    fn ending(&self) -> Result<Ending, Refusal> {
        match (self.continue_final_message == Some(true), self.add_generation_prompt != Some(false)) {
            (true, true) => {
                let message = "`continue_final_message` needs `add_generation_prompt: false`";
                Err(Refusal::value("continue_final_message", message))
            }
            (true, false) => Ok(Ending::LastMessage),
            (false, true) => Ok(Ending::NextTurn),
            (false, false) => Ok(Ending::Conversation),
        }
    }

    fn logprobs(&self) -> Result<Wanted, Refusal> {
        match (self.logprobs == Some(true), self.top_logprobs) {
            (false, Some(count)) if count > 0 => {
                Err(Refusal::value("top_logprobs", "`top_logprobs` needs `logprobs: true`"))
            }
            (false, _) => Ok(None),
            (true, count) => few("top_logprobs", count.unwrap_or(0)).map(Some),
        }
    }
}
