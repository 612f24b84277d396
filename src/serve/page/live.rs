//! The events of a run as server-sent events, also of a run in another process: its record is read as it grows.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::stream::unfold;
use serde::Deserialize;

use super::problem::Problem;
use super::state::Page;

/// Time between two looks at the record.
const PAUSE: Duration = Duration::from_millis(250);
/// Looks without news after which a comment keeps the connection open.
const QUIET: u32 = 60;

/// From where on.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    /// Byte of the record after the last event that is known: the `id` of that event.
    from: Option<u64>,
}

struct Stream {
    page: Arc<Page>,
    run: String,
    byte: u64,
    quiet: u32,
    ended: bool,
}

/// Answers `GET …/events`: one event a line of the record; `end` when the run is over.
pub(super) async fn events(
    State(page): State<Arc<Page>>,
    Path(run): Path<String>,
    Query(asked): Query<Asked>,
) -> Result<Response, Problem> {
    page.require_run(&run)?;
    let stream = Stream { page, run, byte: asked.from.unwrap_or(0), quiet: 0, ended: false };
    let lines = unfold(stream, |mut stream| async move {
        let text = stream.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(text)), stream))
    });
    Ok(([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(lines)).into_response())
}

impl Stream {
    /// Waits for news.
    async fn next(&mut self) -> Option<String> {
        if self.ended {
            return None;
        }
        loop {
            // Looked at before the record is read, so that nothing that a run wrote last is missed.
            let (page, run, byte) = (Arc::clone(&self.page), self.run.clone(), self.byte);
            let looked = tokio::task::spawn_blocking(move || {
                let running = page.session.runs().get(&run).is_ok_and(|run| run.running);
                (running, page.session.runs().events_from(&run, byte))
            });
            let (running, read) = looked.await.ok()?;
            let (lines, next) = match read {
                Ok(read) => read,
                Err(failure) => {
                    self.ended = true;
                    return Some(format!("event: problem\ndata: {}\n\n", serde_json::Value::from(failure.to_string())));
                }
            };
            if next > self.byte {
                self.byte = next;
                self.quiet = 0;
                let mut text = String::with_capacity(lines.len() + 64);
                for line in lines.lines() {
                    text.push_str("data: ");
                    text.push_str(line);
                    text.push_str("\n\n");
                }
                return Some(text + &format!("id: {next}\nevent: place\ndata: {next}\n\n"));
            }
            if !running {
                self.ended = true;
                return Some("event: end\ndata: {}\n\n".to_owned());
            }
            self.quiet += 1;
            if self.quiet >= QUIET {
                self.quiet = 0;
                // A comment in the stream, every 15 s: proxies close connections that are silent for long.
                return Some(": still running\n\n".to_owned());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
