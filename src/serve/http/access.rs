//! Access control of a server: authorization, and timeouts of requests.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use searchmill_engine::Failure;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::refusal::Refusal;

const HEAD: Duration = Duration::from_secs(30);
const BODY: Duration = Duration::from_secs(30);
/// Time for the last answers after the end was asked for.
const LAST_ANSWERS: Duration = Duration::from_mins(1);
/// Maximum size of a request body in bytes, unless set.
const BODY_BYTES: usize = 8 << 20;

/// Binds an address.
pub(crate) fn bind(address: SocketAddr) -> Result<std::net::TcpListener, Failure> {
    let bound = std::net::TcpListener::bind(address).and_then(|listener| {
        // Tokio takes no blocking socket.
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|error| Failure::usage(format!("cannot listen on {address}: {error}")))
}

/// Access rules.
pub(crate) struct Door {
    /// Required token in `Authorization: Bearer …`.
    token: Option<String>,
    /// Whether the server listens on loopback only: requests must then be addressed to this machine. (This blocks web
    /// pages whose host name resolves to this machine.)
    loopback: bool,
    /// Timeout for the head of a request, and for idle connections.
    pub(crate) head: Duration,
    /// Timeout for the body of a request.
    body: Duration,
    /// Maximum size of a request body in bytes.
    pub(crate) bytes: usize,
    /// Whether a path needs no token.
    pub(crate) open: fn(&str) -> bool,
    /// Formats refusals.
    pub(crate) format: fn(Refusal) -> Response,
}

impl Door {
    /// Creates the rules for a server at this address. `None` if other machines could connect without a token.
    pub(crate) fn new(address: SocketAddr, token: Option<String>) -> Option<Self> {
        let loopback = address.ip().is_loopback();
        let format = IntoResponse::into_response;
        let door =
            Self { token, loopback, head: HEAD, body: BODY, bytes: BODY_BYTES, open: |path| path == "/health", format };
        (loopback || door.token.is_some()).then_some(door)
    }

    /// Lets requests pass to the routes as the rules allow.
    pub(crate) fn guard(self, router: Router) -> Router {
        router.layer(from_fn_with_state(Arc::new(self), enter))
    }

    fn refuse(&self, request: &Request) -> Option<Refusal> {
        let headers = request.headers();
        if self.loopback && !text(headers, &header::HOST).is_some_and(is_this_machine) {
            let message = "the Host header must name this machine: localhost or 127.0.0.1";
            return Some(Refusal::new(StatusCode::FORBIDDEN, message));
        }
        // Web pages of other origins can open WebSockets, and send simple requests, without asking.
        if self.loopback && text(headers, &header::ORIGIN).is_some_and(|origin| !is_origin_here(origin)) {
            let message = "the Origin header must name this machine: localhost or 127.0.0.1";
            return Some(Refusal::new(StatusCode::FORBIDDEN, message));
        }
        let given = text(headers, &header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        let given = given.unwrap_or_default();
        match &self.token {
            Some(token) if !(self.open)(request.uri().path()) && !is_same(token, given.trim()) => {
                let message = "the request needs the server's token: `Authorization: Bearer …`";
                Some(Refusal::new(StatusCode::UNAUTHORIZED, message).coded("invalid_api_key"))
            }
            _ => None,
        }
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

fn is_this_machine(host: &str) -> bool {
    // An IPv6 address stands in brackets, since a colon begins the port.
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let address = name.parse::<std::net::IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.is_loopback() || address.is_unspecified())
}

fn is_origin_here(origin: &str) -> bool {
    origin.split_once("://").is_some_and(|(_, host)| is_this_machine(host))
}

/// Compares in constant time for texts of equal length.
fn is_same(one: &str, other: &str) -> bool {
    let differing = one.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    one.len() == other.len() && differing == 0
}

/// Serves requests until `until`, then finishes active ones.
///
/// # Errors
/// If the address can no longer be served.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    door: Door,
    until: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let head = door.head;
    connect(listener, door.guard(router), head, until).await
}

/// Serves requests as the router answers them until `until`, then finishes active ones.
///
/// # Errors
/// If the address can no longer be served.
pub(crate) async fn connect(
    listener: TcpListener,
    router: Router,
    head: Duration,
    until: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let (end, ends) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut until = pin!(until);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                // An error of this connection, or too many open ones: the server continues.
                Err(error) => {
                    tracing::debug!("a connection was lost: {error}");
                    // Without the pause, a lack of file descriptors would make the loop spin.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = until.as_mut() => break,
        };
        // Ended tasks stay in the set until they are joined: it would grow with every connection.
        while connections.try_join_next().is_some() {}
        let (service, mut ends) = (TowerToHyperService::new(router.clone()), ends.clone());
        connections.spawn(async move {
            // HTTP/1 only: the detection of HTTP/2 has no timeout for the first bytes.
            let mut builder = Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(head);
            // With upgrades: `/ws` becomes a WebSocket.
            let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service).with_upgrades());
            let served = tokio::select! {
                served = connection.as_mut() => served,
                _ = ends.changed() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = served {
                tracing::debug!("a connection has ended: {error}");
            }
        });
    }
    // The signal to all connections: `changed` returns once the sender is gone.
    drop(end);
    // A client that does not read its answer must not keep the server from ending.
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_ANSWERS, ended).await.is_err() {
        connections.shutdown().await;
    }
    Ok(())
}

/// Adds what answers addresses without a route, and methods that a route does not have.
pub(crate) fn with_fallbacks<S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    format: fn(Refusal) -> Response,
) -> Router<S> {
    let router = router.fallback(async move |method: Method, uri: Uri| {
        let message = format!("there is nothing at {method} {}", uri.path());
        format(Refusal::new(StatusCode::NOT_FOUND, message).coded("unknown_url"))
    });
    router.method_not_allowed_fallback(async move |method: Method, uri: Uri| {
        let message = format!("{} does not allow {method}", uri.path());
        format(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message).coded("method_not_allowed"))
    })
}

async fn enter(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    if let Some(refusal) = door.refuse(&request) {
        return (door.format)(refusal);
    }
    let (head, body) = request.into_parts();
    // Whole before a route begins: a slow sender takes no place in a queue of the server.
    match tokio::time::timeout(door.body, to_bytes(body, door.bytes)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(head, Body::from(body))).await,
        Ok(Err(_)) => {
            let most = door.bytes.div_ceil(1 << 20);
            let message = format!("the request body is truncated or longer than {most} MiB");
            (door.format)(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message))
        }
        Err(_) => (door.format)(Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request body timed out")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine() {
        for host in ["localhost", "LOCALHOST:8000", "127.0.0.1:80", "127.1.2.3", "[::1]:8000", "[::1]", "0.0.0.0:80"] {
            assert!(is_this_machine(host), "{host}");
        }
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:80"] {
            assert!(is_origin_here(origin), "{origin}");
        }
        for origin in ["null", "", "http://evil.example", "localhost", "https://localhost.evil.com:80"] {
            assert!(!is_origin_here(origin), "{origin}");
        }
        for host in ["", "example.org", "localhost.evil.com", "10.0.0.1:80", "[::2]:80", "127.0.0.1.evil.com"] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[tokio::test]
    async fn connections_that_say_nothing_are_closed() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let short = Duration::from_millis(100);
        let door = Door {
            token: None,
            loopback: true,
            head: short,
            body: short,
            bytes: BODY_BYTES,
            open: |_| false,
            format: IntoResponse::into_response,
        };
        let router = Router::new().route("/", axum::routing::post(|| async { "fine" }));
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(serve(listener, router, door, async { drop(ended.await) }));
        let head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n";
        for (sent, wanted) in [
            ("", ""),
            ("POST / HTTP/1.1\r\nHost: localh", ""),
            (&format!("{head}\r\nab"), "HTTP/1.1 408 "),
            (&format!("{head}\r\nabcd"), "HTTP/1.1 200 "),
        ] {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut answer = String::new();
            let closed = tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut answer)).await;
            assert!(closed.is_ok_and(|read| read.is_ok()), "{sent:?} is still open");
            assert!(answer.starts_with(wanted), "{sent:?}: {answer}");
        }
        drop(end);
        serving.await.unwrap().unwrap();
    }

    #[test]
    fn other_machines_need_a_token() {
        let at = |address: &str, token: Option<&str>| {
            Door::new(address.parse().unwrap(), token.map(str::to_owned)).is_some()
        };
        assert!(at("127.0.0.1:8000", None) && at("[::1]:8000", None) && at("0.0.0.0:8000", Some("t")));
        assert!(!at("0.0.0.0:8000", None) && !at("192.168.1.2:80", None));
        assert!(is_same("abc", "abc") && !is_same("abc", "abd") && !is_same("abc", "ab") && !is_same("abc", ""));
    }
}
