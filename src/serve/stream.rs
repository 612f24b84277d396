//! Streamed answers of a model: server-sent events, in the chunk format of each API.

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::stream::unfold;
use searchmill_models::inference::{Completion, Event, Request};
use serde_json::{Value, json};

use super::wire::{Refusal, Served};

/// Part of a streamed answer.
pub(super) enum Told<'a> {
    Text(&'a str),
    End(&'a Completion),
}

/// Streams an answer as server-sent events; `part` converts model output to the API's chunks.
pub(super) fn stream(
    served: &Served,
    request: Request,
    part: impl FnMut(&Told<'_>) -> Vec<Value> + Send + 'static,
) -> Result<Response, Refusal> {
    let events = served.model.start(request).map_err(Refusal::bad)?;
    let chunks = unfold(Some((events, part)), |state| async move {
        let (mut events, mut part) = state?;
        let line = |value: &Value| format!("data: {value}\n\n");
        let lines = |values: Vec<Value>| values.iter().map(line).collect::<String>();
        match events.recv().await {
            Some(Event::Text(text)) => {
                let bytes = Bytes::from(lines(part(&Told::Text(&text))));
                Some((Ok::<_, std::convert::Infallible>(bytes), Some((events, part))))
            }
            Some(Event::Done(Ok(done))) => {
                Some((Ok(Bytes::from(lines(part(&Told::End(&done))) + "data: [DONE]\n\n")), None))
            }
            Some(Event::Done(Err(message))) => {
                let error = json!({"error": {"message": message, "type": "server_error"}});
                Some((Ok(Bytes::from(line(&error))), None))
            }
            None => None,
        }
    });
    Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(chunks)).into_response())
}
