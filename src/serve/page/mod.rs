//! The page of `searchmill ui`: what a store holds and what runs now, as JSON for a browser, and the page itself.
//!
//! `runs` has pipelines, runs, nodes and what the next run would do, `layout` where nodes stand in a drawing, `rows` the rows of tables, `live` the events of a run as they come, `assets`
//! the built page, `files` the files of reports and other folders, `labels` what people say of rows, `schedules` what runs by itself, `openapi` tells programs what they can ask, `bundle` writes all of it into a folder. `cells` turns
//! values into JSON, `state` and `views` keep what is looked at. All is a question to the engine's `Session`. A browser
//! can write labels, pause schedules and ask for runs, nothing else.

mod assets;
pub(crate) mod bundle;
mod cells;
mod files;
mod labels;
mod layout;
mod live;
mod openapi;
mod problem;
mod rows;
mod runs;
mod schedules;
mod state;
mod views;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use searchmill_engine::{Failure, Session};

use self::assets::{PAGE, SCRIPT, STYLE, asset};
use self::problem::Problem;
use self::state::Page;
use super::http::access::{Door, connect, with_fallbacks};

/// What a browser may do with the page: nothing but run its own script and talk to this server. Texts of a store can
/// never become markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-src 'self'; \
base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Serves the page of a session's store until `until`.
///
/// # Errors
/// If the address can no longer be served.
pub(crate) async fn serve(
    listener: std::net::TcpListener,
    session: Session,
    mut door: Door,
    until: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let page = Arc::new(Page::new(session, format!("http://{}", listener.local_addr()?)));
    page.announce();
    let head = door.head;
    door.format = |refusal| Problem::from(refusal).into_response();
    // Browsers send no token for a page, a script or a frame; the addresses of files have a key instead.
    door.open = |path| !path.starts_with("/api/");
    let router = door.guard(router().with_state(page)).layer(from_fn(guarded));
    Ok(connect(tokio::net::TcpListener::from_std(listener)?, router, head, until).await?)
}

fn router() -> Router<Arc<Page>> {
    let router = Router::new()
        .route("/api/pipelines", get(runs::pipelines))
        .route("/api/plan", get(runs::plan))
        .route("/api/runs", get(runs::runs))
        .route("/api/runs/{run}", get(runs::run))
        .route("/api/runs/{run}/events", get(live::events))
        .route("/api/runs/{run}/nodes/{node}", get(runs::node))
        .route("/api/runs/{run}/nodes/{node}/rows", get(rows::rows))
        .route("/api/runs/{run}/nodes/{node}/row", get(rows::row))
        .route("/api/runs/{run}/nodes/{node}/column", get(rows::column))
        .route("/api/runs/{run}/nodes/{node}/rounds", get(rows::rounds))
        .route("/api/artifacts/{artifact}", get(files::described))
        .route("/api/compare", get(runs::compare))
        .route("/api/labels", get(labels::labels).post(labels::add))
        .route("/api/openapi.json", get(openapi::document))
        .route("/api/schedules", post(schedules::act))
        .route("/files/{key}/{artifact}/{*name}", get(files::file))
        .route("/page.js", get(|| async { asset("text/javascript; charset=utf-8", SCRIPT) }))
        .route("/page.css", get(|| async { asset("text/css; charset=utf-8", STYLE) }));
    let router = with_fallbacks(router, |refusal| Problem::from(refusal).into_response());
    // Every other address is one of a view: the page finds what it shows.
    router.fallback(|uri: Uri| async move {
        if uri.path().starts_with("/api/") {
            Problem::missing(format!("there is nothing at GET {}", uri.path())).into_response()
        } else {
            asset("text/html; charset=utf-8", PAGE.as_bytes())
        }
    })
}

/// Adds to every answer what a browser may do with it.
async fn guarded(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    // Files of artifacts have stricter rules of their own.
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let policy = HeaderName::from_static("cross-origin-resource-policy");
    headers.entry(policy).or_insert(HeaderValue::from_static("same-origin"));
    // What a store holds belongs to those who can read it, not into the caches of a browser.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}
