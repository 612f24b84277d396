//! Asks a model until its answer fits.

use searchmill_engine::operator::{Prices, RowFailure, Usage};
use searchmill_schemas::{Message, Role};

use crate::episode::Offer;
use crate::policy::Actor;

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
    (actor, prices): (&mut dyn Actor, &Prices),
    mut messages: Vec<Message>,
    (described, repairs): (Option<&str>, u32),
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Asked<T>, RowFailure> {
    let (mut usage, mut attempt) = (Usage::default(), 0);
    loop {
        let reply = actor.act(&messages, Offer::Nothing).await.map_err(|mut failure| {
            failure.usage += usage;
            failure
        })?;
        usage += reply.usage().at(prices);
        let wrong = match read(&reply.message.content) {
            Ok(answer) => return Ok(Asked { answer: Ok(answer), usage }),
            Err(wrong) => wrong,
        };
        if attempt == repairs {
            let message = match repairs {
                0 => wrong,
                count => format!("{wrong} (asked again {count} times)"),
            };
            return Ok(Asked { answer: Err(Unfit { message, detail: reply.message.content }), usage });
        }
        attempt += 1;
        let again = format!("Your reply cannot be used: {wrong}. {}", described.unwrap_or("Reply again."));
        messages.push(reply.message.plain(Role::Assistant));
        messages.push(Message::text(Role::User, again));
    }
}
