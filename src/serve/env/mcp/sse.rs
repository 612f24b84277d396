//! `GET /sse`, `POST /messages`: MCP's transport of 2024-11-05, which the client of DeepSearch-RL's seed speaks. The
//! stream names the address for messages; answers come over the stream.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, StreamExt};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::serve::env::episodes::sessions::random_id;
use crate::serve::env::mcp;
use crate::serve::env::problem::Problem;
use crate::serve::env::state::{Env, View};

/// An open stream; it is forgotten when it is dropped.
struct Opened {
    env: Arc<Env>,
    id: String,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.env.streams.close(&self.id);
    }
}

#[derive(Deserialize)]
pub(crate) struct Session {
    session_id: Option<String>,
}

/// Opens a stream.
pub(crate) async fn open(view: View) -> Result<impl IntoResponse, Problem> {
    let env = view.env;
    let id = random_id();
    let Some(answers) = env.streams.open(&id) else {
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too many streams are open; try again later"));
    };
    let opened = Opened { env: Arc::clone(&env), id };
    Ok(Sse::new(events(opened, answers, env.closed())).keep_alive(KeepAlive::default()))
}

fn events(
    opened: Opened,
    answers: mpsc::Receiver<Value>,
    closed: impl Future<Output = ()> + Send + 'static,
) -> impl Stream<Item = Result<Event, Infallible>> + Send + 'static {
    let address = Event::default().event("endpoint").data(format!("/messages?session_id={}", opened.id));
    let answers = futures::stream::unfold((opened, answers), |(opened, mut answers)| async move {
        let answer = answers.recv().await?;
        Some((Event::default().event("message").data(answer.to_string()), (opened, answers)))
    });
    // The stream never ends by itself: without `take_until`, a shutdown would wait for the client.
    futures::stream::iter([address]).chain(answers).take_until(Box::pin(closed)).map(Ok)
}

/// Accepts a message; its answer follows over the stream.
pub(crate) async fn message(view: View, Query(session): Query<Session>, body: Bytes) -> Result<StatusCode, Problem> {
    let Some(id) = session.session_id else { return Err(Problem::bad("the address needs `session_id=`")) };
    let Some(sender) = view.env.streams.find(&id) else {
        return Err(Problem::new(StatusCode::NOT_FOUND, "there is no open stream with this `session_id`"));
    };
    // A slot for the answer before the work: a client that does not read must not fill the memory.
    let Ok(slot) = sender.try_reserve_owned() else {
        let detail = "too many answers wait on the stream; read them first";
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, detail));
    };
    let active = view.env.enter().ok_or_else(Problem::draining)?;
    tokio::spawn(async move {
        if let Some(answer) = mcp::read(&view, &body).await {
            slot.send(answer);
        }
        drop(active);
    });
    Ok(StatusCode::ACCEPTED)
}
