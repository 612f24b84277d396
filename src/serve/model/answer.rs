//! Answers a request: whole, or as server-sent events.

use std::convert::Infallible;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::stream::unfold;
use searchmill_models::inference::{Completion, Event, Request, finished};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedReceiver;

use super::wire::{Answer, Served};
use crate::serve::http::refusal::Refusal;

/// The choice of an answer, in the format of a route.
pub(crate) trait Choice: Send + 'static {
    /// Returns the choice of a whole answer.
    fn whole(&self, done: &Completion) -> Value;
    /// Returns the first parts of a streamed choice.
    fn start(&mut self) -> Vec<Value>;
    /// Returns the parts that follow from more text.
    fn more(&mut self, text: &str) -> Vec<Value>;
    /// Returns the last parts.
    fn end(&mut self, done: &Completion) -> Vec<Value>;
}

/// Answers a request.
pub(crate) async fn answer(
    served: &Served,
    request: Request,
    answer: Answer,
    choice: impl Choice,
) -> Result<Response, Refusal> {
    let streams = request.stream;
    let events = served.model.start(request).map_err(Refusal::bad)?;
    if streams {
        let lines = Lines { events, answer, choice, begun: false, told: false, ended: false };
        let chunks = unfold(lines, |mut lines| async move {
            let text = lines.next().await?;
            Some((Ok::<_, Infallible>(Bytes::from(text)), lines))
        });
        return Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(chunks)).into_response());
    }
    let done = finished(events).await.map_err(failed)?;
    Ok(Json(answer.whole(choice.whole(&done), &done)).into_response())
}

fn failed(problem: String) -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, problem)
}

/// A streamed answer.
struct Lines<C> {
    events: UnboundedReceiver<Event>,
    answer: Answer,
    choice: C,
    begun: bool,
    /// Whether a chunk was sent.
    told: bool,
    ended: bool,
}

impl<C: Choice> Lines<C> {
    /// Returns the next events of the answer.
    async fn next(&mut self) -> Option<String> {
        if self.ended {
            return None;
        }
        if !self.begun {
            // Before the first token: clients see that the answer begins while the prompt is still read.
            self.begun = true;
            let parts = self.choice.start();
            return Some(self.chunks(parts));
        }
        match self.events.recv().await? {
            Event::Text(text) => {
                let parts = self.choice.more(&text);
                Some(self.chunks(parts))
            }
            Event::Done(done) => {
                self.ended = true;
                // The status 200 is sent already: an error can only be an event of the stream.
                Some(done.map_or_else(|problem| line(&failed(problem).body()), |done| self.last(&done)))
            }
        }
    }

    fn chunks(&mut self, parts: Vec<Value>) -> String {
        let mut lines = String::new();
        for part in parts {
            lines.push_str(&line(&self.answer.chunk(part, !self.told)));
            self.told = true;
        }
        lines
    }

    fn last(&mut self, done: &Completion) -> String {
        let parts = self.choice.end(done);
        let usage = self.answer.last(done).as_ref().map(line).unwrap_or_default();
        self.chunks(parts) + &usage + "data: [DONE]\n\n"
    }
}

fn line(value: &Value) -> String {
    format!("data: {value}\n\n")
}
