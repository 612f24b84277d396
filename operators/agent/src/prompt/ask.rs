//! Asks a model until its answer fits.

use searchmill_engine::operator::{RowFailure, Usage};
use searchmill_schemas::{Message, Role};

use super::answer::Answer;
use crate::policy::{ChatModel, RowSample};

/// What a model answered in the end.
pub struct Asked<T> {
    /// The answer, or why none fits.
    pub answer: Result<T, Unfit>,
    /// Usage of all calls.
    pub usage: Usage,
}

/// No answer fits.
pub struct Unfit {
    /// What is wrong with the last one.
    pub message: String,
    /// The last one.
    pub detail: String,
}

/// Asks a model. An answer that `read` refuses is asked again with the reason, at most `repairs` times; `described`: what
/// the model is then told about the fields.
///
/// # Errors
/// If a call fails; the failure includes the usage so far.
pub async fn ask<T>(
    model: &dyn ChatModel,
    sample: RowSample<'_>,
    mut messages: Vec<Message>,
    described: Option<&str>,
    repairs: u32,
    read: impl Fn(Answer<'_>) -> Result<T, String>,
) -> Result<Asked<T>, RowFailure> {
    let prices = model.prices();
    let mut usage = Usage::default();
    let mut attempt = 0;
    loop {
        let reply = model.reply(&messages, sample).await.map_err(|mut failure| {
            failure.usage += usage;
            failure
        })?;
        usage += reply.usage().at(&prices);
        let wrong = match read(Answer { text: &reply.message.content, is_cut: reply.message.is_cut() }) {
            Ok(answer) => return Ok(Asked { answer: Ok(answer), usage }),
            Err(wrong) => wrong,
        };
        if attempt == repairs {
            let hint = hint(&reply.message);
            let message = match repairs {
                0 => format!("{wrong}{hint}"),
                count => format!("{wrong} (asked again {count} times){hint}"),
            };
            let Message { content, reasoning, .. } = reply.message;
            let detail = if content.trim().is_empty() { reasoning.unwrap_or_default() } else { content };
            return Ok(Asked { answer: Err(Unfit { message, detail }), usage });
        }
        attempt += 1;
        let again = format!("Your reply cannot be used: {wrong}. {}", described.unwrap_or("Reply again."));
        // The model sees its own words: without them it could not mend them.
        messages.push(reply.message.plain(Role::Assistant));
        messages.push(Message::text(Role::User, again));
    }
}

/// Why there may be no answer, beside what the model wrote: the end of an error message, or nothing.
pub fn hint(message: &Message) -> &'static str {
    match message.finish_reason.as_deref() {
        _ if message.is_cut() => ": it was cut at the limit of tokens (`max_tokens`)",
        Some("content_filter") => ": the provider filtered it (`finish_reason`: `content_filter`)",
        _ if message.content.trim().is_empty() && message.reasoning.is_some() => {
            ": the server returned thoughts alone (`reasoning_content`): check its reasoning parser, or switch off \
             thinking"
        }
        _ => "",
    }
}
