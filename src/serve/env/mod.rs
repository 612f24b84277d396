//! Serves search indexes and the environment of episodes with the APIs of the systems that train search agents, one file
//! per API. All searches share one queue (`queue`); a request sees the same indexes from its begin to its end (`state`).
//!
//! Retrieval: `research`, `search_r1`, `r1_searcher`, `colbert`, and `mcp` with its transports `sse` and `stdio`.
//! Episodes (`world`, `play`): `openenv` with its WebSocket `socket`, `nemo_gym`. Rewards of texts: `r1_reward`.

mod mcp;
mod metrics;
mod openapi;
mod problem;
mod state;
mod retriever;
mod episodes;
pub(super) mod body;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use self::episodes::{nemo_gym, openenv, r1_reward, socket};
use self::mcp::sse;
use self::problem::Problem;
use self::retriever::index::Index;
use self::retriever::{colbert, r1_searcher, research, search_r1};
use self::state::{Env, Reload, View};
use super::http::access::{Door, connect, with_fallbacks};

pub(crate) use self::episodes::questions::Questions;
pub(crate) use self::episodes::sessions::{EpisodeLimits, World};
pub(crate) use self::mcp::stdio::serve as serve_lines;
pub(crate) use self::retriever::index::{Opened, Served};
pub(crate) use self::retriever::journal::Journal;
pub(crate) use self::retriever::ranking::Ranking;
pub(crate) use self::state::{Limits, Setup};

/// Serves requests until `until`; then rejects new ones and finishes active ones. `reopen` opens the indexes again; it
/// gets the digests of the present ones and returns nothing if they are the same.
///
/// # Errors
/// If the address can no longer be served.
pub(crate) async fn serve(
    listener: TcpListener,
    setup: Setup,
    mut door: Door,
    reopen: impl Fn(&[&str]) -> Result<Option<Opened>, String>,
    until: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (env, asked) = setup.start()?;
    let head = door.head;
    door.format = |refusal| Problem::from(refusal).into_response();
    // `observe` is outermost: it also counts what the door refuses. Tool calls pass the door first.
    let router = door.guard(router().layer(from_fn(nemo_gym::tools)));
    let router = router.layer(from_fn_with_state(Arc::clone(&env), observe));
    let closing = Arc::clone(&env);
    let drained = async move {
        until.await;
        closing.drain().await;
    };
    // A task of its own: connections are accepted while the indexes are opened again.
    let serving = tokio::spawn(connect(tokio::net::TcpListener::from_std(listener)?, router, head, drained));
    tokio::select! {
        served = serving => served.map_err(std::io::Error::other)?,
        () = reload(&env, asked, reopen) => Ok(()),
    }
}

/// Opens the indexes again on each request and on SIGHUP. If that fails, the present ones stay.
async fn reload(
    env: &Arc<Env>,
    mut asked: mpsc::Receiver<Reload>,
    reopen: impl Fn(&[&str]) -> Result<Option<Opened>, String>,
) {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangups = signal(SignalKind::hangup()).ok();
    loop {
        let hung_up = async {
            match &mut hangups {
                Some(signals) => signals.recv().await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            Some(answer) = asked.recv() => Some(answer),
            _ = hung_up => None,
        };
        let present = env.index();
        let digests: Vec<&str> = present.served.iter().map(|index| index.digest.as_str()).collect();
        // Reading an index blocks; `reopen` borrows from its caller, so it cannot move to another thread.
        let opened = tokio::task::block_in_place(|| reopen(&digests));
        let replaced = opened.and_then(|opened| {
            let Some(opened) = opened else { return Ok(false) };
            let index = Index::start(opened, env.limits.queue, Arc::clone(&env.metrics));
            env.replace(index.map_err(|error| error.to_string())?);
            Ok(true)
        });
        if let Err(problem) = &replaced {
            tracing::warn!("the indexes were not reloaded: {problem}");
        }
        if let Some(answer) = answer {
            // A client that has hung up needs no answer.
            drop(answer.send(replaced));
        }
    }
}

fn router() -> Router {
    let router = Router::new()
        .route("/search", post(research::search))
        .route("/batch_search", post(research::batch))
        .route("/health", get(research::health))
        .route("/retrieve", post(search_r1::retrieve))
        .route("/queries", post(r1_searcher::queries))
        .route("/api/search", get(colbert::search))
        .route("/get_reward", post(r1_reward::rewards))
        .route("/mcp", post(mcp::post).get(mcp::no_session).delete(mcp::no_session))
        .route("/sse", get(sse::open))
        .route("/messages", post(sse::message))
        .route("/messages/", post(sse::message))
        .route("/reset", post(openenv::reset))
        .route("/step", post(openenv::step))
        .route("/state", get(openenv::state))
        .route("/schema", get(openenv::schema))
        .route("/metadata", get(openenv::metadata))
        .route("/ws", get(socket::upgrade))
        .route("/tasks.jsonl", get(nemo_gym::tasks))
        .route("/seed_session", post(nemo_gym::seed))
        .route("/verify", post(nemo_gym::verify))
        .route("/close_session", post(nemo_gym::close))
        .route("/reverify_mode", get(nemo_gym::reverify_mode))
        .route("/reload", post(reload_now))
        .route("/openapi.json", get(openapi::document))
        .route("/metrics", get(metrics))
        .route("/", get(page));
    with_fallbacks(router, |refusal| Problem::from(refusal).into_response())
        // The door limits bodies.
        .layer(axum::extract::DefaultBodyLimit::disable())
}

/// Counts a request, gives it its view, and adds the digests of the indexes to its answer, unless the client was not let
/// in. Rejects it if the server is shutting down.
async fn observe(State(env): State<Arc<Env>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    // Unknown paths share one label: a scanner must not create a time series for every path.
    let route = openapi::ROUTES.iter().find(|route| route.path == path).map_or("other", |route| route.path);
    let start = Instant::now();
    let active = env.enter();
    let view = env.view(route);
    let digests = view.index.digests.clone();
    request.extensions_mut().insert(view);
    let mut answer = if active.is_some() { next.run(request).await } else { Problem::draining().into_response() };
    if !matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        answer.headers_mut().insert("x-searchmill-index", digests);
    }
    env.metrics.answered(route, answer.status().as_u16(), start.elapsed());
    answer
}

async fn metrics(view: View) -> Response {
    let episodes = view.env.world.as_ref().map(World::open);
    let text = view.env.metrics.text(view.index.queue.waiting(), episodes);
    ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn page(view: View) -> Json<Value> {
    Json(json!({
        "name": "searchmill",
        "version": env!("CARGO_PKG_VERSION"),
        "indexes": state::described(&view.index),
        "questions": view.env.world.as_ref().map(|world| world.questions.len()),
        "routes": openapi::listed(),
    }))
}

/// `POST /reload`: opens the indexes again, and answers when they are in use.
async fn reload_now(view: View) -> Result<Json<Value>, Problem> {
    let (answer, answered) = oneshot::channel();
    let mut detail = "the server is shutting down".to_owned();
    if view.env.reloads.send(answer).await.is_ok() {
        match answered.await {
            Ok(Ok(changed)) => {
                return Ok(Json(json!({"changed": changed, "indexes": state::described(&view.env.index())})));
            }
            Ok(Err(problem)) => detail = problem,
            // The channel was dropped with the server.
            Err(_) => {}
        }
    }
    Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail))
}
