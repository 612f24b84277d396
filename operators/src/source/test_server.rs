//! A real HTTP server on 127.0.0.1 for tests: files by path, ranges, uploads, failures on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::Response;

/// What the server has and what it was asked.
#[derive(Default)]
pub(crate) struct Shelf {
    /// Bodies by path and query.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Further headers of every answer.
    pub headers: Vec<(&'static str, String)>,
    /// Answer 500 so many times first.
    pub failures: usize,
    /// `METHOD path authorization` of every request.
    pub requests: Vec<String>,
}

/// A running server; it ends with its runtime.
pub(crate) struct TestServer {
    /// `http://127.0.0.1:PORT`.
    pub address: String,
    /// What it has.
    pub shelf: Arc<Mutex<Shelf>>,
    _runtime: tokio::runtime::Runtime,
}

impl TestServer {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(path, body)| ((*path).to_owned(), body.to_vec())).collect();
        let shelf = Arc::new(Mutex::new(Shelf { files, ..Shelf::default() }));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shelf));
        runtime.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, shelf, _runtime: runtime }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.shelf.lock().unwrap().requests.clone()
    }
}

async fn answer(
    State(shelf): State<Arc<Mutex<Shelf>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut shelf = shelf.lock().unwrap();
    let path = uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let authorisation = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    shelf.requests.push(format!("{method} {path} {authorisation}").trim_end().to_owned());
    let mut response = Response::builder();
    for (name, value) in &shelf.headers {
        response = response.header(*name, value);
    }
    if shelf.failures > 0 {
        shelf.failures -= 1;
        return response.status(StatusCode::INTERNAL_SERVER_ERROR).body(Body::from("not now")).unwrap();
    }
    if method == Method::PUT {
        shelf.files.insert(path, body.to_vec());
        return response.status(StatusCode::CREATED).body(Body::empty()).unwrap();
    }
    if method == Method::DELETE {
        shelf.files.remove(&path);
        return response.status(StatusCode::NO_CONTENT).body(Body::empty()).unwrap();
    }
    let Some(file) = shelf.files.get(&path).cloned() else {
        return response.status(StatusCode::NOT_FOUND).body(Body::from("nothing here")).unwrap();
    };
    let range =
        headers.get(header::RANGE).and_then(|value| value.to_str().ok()).and_then(|text| range(text, file.len()));
    if method == Method::HEAD {
        return response.header(header::CONTENT_LENGTH, file.len()).body(Body::empty()).unwrap();
    }
    let Some((from, to)) = range else { return response.body(Body::from(file)).unwrap() };
    let place = format!("bytes {from}-{}/{}", to - 1, file.len());
    let part = file[from..to].to_vec();
    response.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, place).body(Body::from(part)).unwrap()
}

fn range(text: &str, length: usize) -> Option<(usize, usize)> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    if from.is_empty() {
        return Some((length - to.parse::<usize>().ok()?.min(length), length));
    }
    Some((from.parse().ok()?, to.parse::<usize>().map_or(length, |to| to + 1).min(length)))
}
