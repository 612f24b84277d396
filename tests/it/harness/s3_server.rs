//! A real S3-compatible server (`s3s` over a folder) on loopback that can disappear, return and hold requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};

pub(crate) const BUCKET: &str = "bucket";
pub(crate) const ACCESS_KEY: &str = "access-key-of-the-tests";
pub(crate) const SECRET_KEY: &str = "secret-key-of-the-tests";

struct Shared {
    s3: S3Service,
    /// Serialises puts: the folder checks a condition and writes in two steps.
    puts: tokio::sync::Mutex<()>,
    /// Puts whose path contains this get no response.
    held: Mutex<Option<&'static str>>,
    /// Method and path of all requests.
    log: Mutex<Vec<String>>,
    /// What happens to the first puts of each path, and their number so far.
    trouble: Mutex<(Option<Trouble>, BTreeMap<String, usize>)>,
}

/// What happens to the first two puts of each path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// They are refused, as if another put were under way.
    Conflict,
    /// They are done, and their answer is lost.
    LostAnswer,
}

/// A bucket in a folder, and its server.
pub(crate) struct S3Server {
    folder: tempfile::TempDir,
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<tokio::runtime::Runtime>,
}

fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request<axum::body::Body>) -> Response<axum::body::Body> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    locked(&shared.log).push(format!("{method} {path}"));
    let held = *locked(&shared.held);
    if method == Method::PUT && held.is_some_and(|part| path.contains(part)) {
        std::future::pending::<()>().await;
    }
    let trouble = if method == Method::PUT { shared.trouble_of(&path) } else { None };
    if trouble == Some(Trouble::Conflict) {
        return answer(StatusCode::CONFLICT, conflict(request.headers()));
    }
    let _alone = match method {
        Method::PUT => Some(shared.puts.lock().await),
        _ => None,
    };
    let (parts, body) = request.into_parts();
    let request = Request::from_parts(parts, s3s::Body::http_body_unsync(body));
    match shared.s3.call(request).await {
        Ok(_) if trouble == Some(Trouble::LostAnswer) => answer(StatusCode::INTERNAL_SERVER_ERROR, String::new()),
        Ok(response) => response.map(axum::body::Body::new),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:?}")),
    }
}

fn answer(status: StatusCode, text: String) -> Response<axum::body::Body> {
    let mut response = Response::new(axum::body::Body::from(text));
    *response.status_mut() = status;
    response
}

/// The words of S3 for concurrent writes, by
/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html>.
fn conflict(headers: &HeaderMap) -> String {
    let conditional = headers.contains_key("if-none-match") || headers.contains_key("if-match");
    let code = if conditional { "ConditionalRequestConflict" } else { "OperationAborted" };
    let message = "A conflicting conditional operation is currently in progress against this resource. Try again.";
    format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>")
}

impl Shared {
    /// Returns the trouble of the next put of a path.
    fn trouble_of(&self, path: &str) -> Option<Trouble> {
        let mut trouble = locked(&self.trouble);
        let (kind, puts) = &mut *trouble;
        let kind = (*kind)?;
        let number = puts.entry(path.to_owned()).or_default();
        *number += 1;
        (*number <= 2).then_some(kind)
    }
}

impl S3Server {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join(BUCKET)).expect("a bucket");
        let files = s3s_fs::FileSystem::new(folder.path()).expect("a folder that can be served");
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let s3 = builder.build();
        let (held, log, trouble) = (Mutex::default(), Mutex::default(), Mutex::default());
        let shared = Shared { s3, puts: tokio::sync::Mutex::default(), held, log, trouble };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self { folder, address, shared: Arc::new(shared), runtime: None };
        server.come_back();
        server
    }

    /// Listens again, at the same address.
    pub(crate) fn come_back(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = std::net::TcpListener::bind(self.address).expect("a port");
        listener.set_nonblocking(true).expect("a listener for tokio");
        self.address = listener.local_addr().expect("an address");
        let app = axum::Router::new().fallback(serve).with_state(Arc::clone(&self.shared));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            axum::serve(listener, app).await
        });
        self.runtime = Some(runtime);
    }

    /// Stops listening; open connections break.
    pub(crate) fn go_away(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }

    /// Holds puts whose path contains `part` from now on.
    pub(crate) fn hold(&self, part: Option<&'static str>) {
        *locked(&self.shared.held) = part;
    }

    /// Puts get into this trouble from now on.
    pub(crate) fn trouble(&self, kind: Option<Trouble>) {
        *locked(&self.shared.trouble) = (kind, BTreeMap::new());
    }

    /// Returns method and path of all requests that begin with this text.
    pub(crate) fn log(&self, begin: &str) -> Vec<String> {
        locked(&self.shared.log).iter().filter(|line| line.starts_with(begin)).cloned().collect()
    }

    /// Counts the requests that begin with this text (`PUT /bucket/…`).
    pub(crate) fn requests(&self, begin: &str) -> usize {
        self.log(begin).len()
    }

    /// Waits for such a request.
    pub(crate) fn wait_for(&self, begin: &str) {
        let start = Instant::now();
        while self.requests(begin) == 0 {
            assert!(start.elapsed() < Duration::from_mins(1), "no {begin} request arrived");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the file of an object.
    pub(crate) fn object(&self, key: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(key)
    }

    /// Returns the files of all objects whose key begins with this text.
    pub(crate) fn objects(&self, begin: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut pending = vec![self.folder.path().join(BUCKET)];
        while let Some(folder) = pending.pop() {
            for path in super::project::files_in(&folder) {
                if path.is_dir() {
                    pending.push(path);
                } else {
                    found.push(path);
                }
            }
        }
        let root = self.folder.path().join(BUCKET);
        found.retain(|path| path.strip_prefix(&root).is_ok_and(|key| key.to_string_lossy().starts_with(begin)));
        found.sort();
        found
    }

    /// Points a command at this server.
    pub(crate) fn aim(&self, command: &mut Command) {
        let others: Vec<String> =
            std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("AWS_")).collect();
        for name in &others {
            command.env_remove(name);
        }
        command.env("AWS_ENDPOINT_URL", format!("http://{}", self.address)).env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.go_away();
    }
}
