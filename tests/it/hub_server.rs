//! Plays the Hugging Face Hub and any other HTTP server: bodies by path.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::Response;
use tokio::sync::oneshot;

/// The commit that every repository is at.
const COMMIT: &str = "cccccccccccccccccccccccccccccccccccccccc";

struct Shelf {
    files: BTreeMap<String, String>,
    asked: Mutex<Vec<String>>,
}

/// A running server; it stops when dropped.
pub(crate) struct HubServer {
    /// `http://127.0.0.1:PORT`.
    pub(crate) address: String,
    shelf: Arc<Shelf>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl HubServer {
    pub(crate) fn start(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let shelf = Arc::new(Shelf { files: files.into_iter().collect(), asked: Mutex::default() });
        let (stop, stopped) = oneshot::channel::<()>();
        let (address, bound) = std::sync::mpsc::channel();
        let shared = Arc::clone(&shelf);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
                address.send(listener.local_addr().expect("an address")).expect("somebody waits");
                let router = Router::new().fallback(answer).with_state(shared);
                let stopped = async { drop(stopped.await) };
                axum::serve(listener, router).with_graceful_shutdown(stopped).await.expect("a server");
            });
        });
        let address = format!("http://{}", bound.recv().expect("an address"));
        Self { address, shelf, stop: Some(stop), thread: Some(thread) }
    }

    /// Paths that were asked for.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.shelf.asked.lock().expect("a list").clone()
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.send(()).ok();
        }
        // A thread that still answers somebody ends with the test.
        drop(self.thread.take());
    }
}

async fn answer(State(shelf): State<Arc<Shelf>>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().to_owned();
    shelf.asked.lock().expect("a list").push(format!("{method} {path}"));
    let Some(body) = shelf.files.get(&path) else {
        return Response::builder().status(StatusCode::NOT_FOUND).body(Body::from("nothing here")).expect("a response");
    };
    let response = Response::builder()
        .header("x-repo-commit", COMMIT)
        .header(header::ETAG, format!("\"{:x}\"", body.len()))
        .header(header::LAST_MODIFIED, "Thu, 01 Jan 2026 00:00:00 GMT");
    if method == Method::HEAD {
        return response.header(header::CONTENT_LENGTH, body.len()).body(Body::empty()).expect("a response");
    }
    let range =
        headers.get(header::RANGE).and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    let Some((from, to)) = range.and_then(|(from, to)| Some((from.parse::<usize>().ok()?, to.parse::<usize>().ok())))
    else {
        return response.body(Body::from(body.clone())).expect("a response");
    };
    let to = to.map_or(body.len(), |to| (to + 1).min(body.len()));
    let place = format!("bytes {from}-{}/{}", to - 1, body.len());
    let part = body.as_bytes()[from..to].to_vec();
    let response = response.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, place);
    response.body(Body::from(part)).expect("a response")
}
