//! Files of artifacts that are folders: reports, plots, models, indexes. Reports stand in a frame of an origin of their
//! own, without scripts: whatever they contain, they can read nothing of the page.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream::unfold;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use searchmill_engine::{ArtifactId, Located};
use serde_json::{Value, json};

use super::problem::Problem;
use super::state::Page;

/// What a browser may do with a file of an artifact: show it. No script, no form, no other address.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox; frame-ancestors 'self'";
/// Files of one answer (at most).
const FILES: usize = 1000;
/// Runs of one answer (at most).
const RUNS: usize = 50;
/// Bytes that are read at once.
const BLOCK: usize = 1 << 16;

fn artifact(id: &str) -> Result<ArtifactId, Problem> {
    ArtifactId::parse(id).ok_or_else(|| Problem::missing(format!("`{id}` is no id of an artifact")))
}

/// How a browser shows a file of that name. What it would not show is downloaded.
fn shown_as(name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit_once('.')?;
    match ending {
        "html" => Some("text/html; charset=utf-8"),
        // An SVG can contain scripts: the `sandbox` of the policy runs none.
        "svg" => Some("image/svg+xml"),
        "png" => Some("image/png"),
        // All as plain text: with types of their own, browsers would download some of them.
        "txt" | "md" | "json" | "jsonl" | "yaml" | "yml" | "csv" | "tsv" | "log" | "jinja" => {
            Some("text/plain; charset=utf-8")
        }
        _ => None,
    }
}

/// Answers `GET /api/artifacts/ARTIFACT`: what it is, its files, and which runs have it.
pub(super) async fn described(State(page): State<Arc<Page>>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let answer = page.ask(move |page| {
        let mut described = with_files(&id, &located(page, &id)?);
        // The key stands in the address: a frame sends no token.
        described["folder"] = format!("/files/{}/{id}/", page.key).into();
        described["runs"] = runs_with(page, &artifact(&id)?)?.into();
        Ok(described)
    });
    answer.await.map(Json)
}

/// Finds an artifact. Opening it compares its files with its description: a damaged one is told, not shown.
pub(super) fn located(page: &Page, id: &str) -> Result<Located, Problem> {
    Ok(page.session.store().locate(&artifact(id)?.to_string(), None)?)
}

/// Returns what an artifact is, with its files.
pub(super) fn with_files(id: &str, located: &Located) -> Value {
    let mut files = Vec::new();
    for name in located.files.iter().take(FILES) {
        let bytes = located.folder.join(name).metadata().map(|data| data.len()).ok();
        files.push(json!({"name": name, "bytes": bytes, "shown": shown_as(name).is_some()}));
    }
    json!({"id": id, "kind": located.kind, "rows": located.rows, "count": located.files.len(), "files": files})
}

/// Returns the newest runs that have the artifact, with node and output.
fn runs_with(page: &Page, id: &ArtifactId) -> Result<Vec<Value>, Problem> {
    let mut runs = Vec::new();
    for run in page.session.runs().ids()?.iter().rev() {
        for node in page.session.runs().nodes(run)? {
            for (port, output) in &node.outputs {
                if output.id == *id {
                    runs.push(json!({"run": run, "node": node.node, "port": port}));
                }
            }
        }
        if runs.len() >= RUNS {
            break;
        }
    }
    Ok(runs)
}

/// Answers `GET /files/KEY/ARTIFACT/NAME`: the file.
pub(super) async fn file(
    State(page): State<Arc<Page>>,
    Path((key, id, name)): Path<(String, String, String)>,
) -> Result<Response, Problem> {
    if key != page.key {
        return Err(Problem::missing("the address of this file is of an earlier server: open it from its node"));
    }
    let opened = page.ask(move |page| open(&located(page, &id)?, &name).map(|(file, bytes)| (file, bytes, name)));
    let (file, bytes, name) = opened.await?;
    // In blocks: the file of a model may be larger than the memory.
    let mut answer = Body::from_stream(unfold(file, read)).into_response();
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    let kind = shown_as(&name);
    let value = kind.unwrap_or("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(value));
    let last = name.rsplit('/').next().unwrap_or_default();
    let last = utf8_percent_encode(last, NON_ALPHANUMERIC);
    let disposition = format!("{}; filename*=UTF-8''{last}", if kind.is_some() { "inline" } else { "attachment" });
    if let Ok(disposition) = HeaderValue::from_str(&disposition) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    // A frame of an opaque origin is of no site.
    headers.insert(HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("cross-origin"));
    Ok(answer)
}

fn open(located: &Located, name: &str) -> Result<(File, u64), Problem> {
    // Only names of the artifact's description: no path leads out of its folder.
    if !located.files.iter().any(|known| known == name) {
        return Err(Problem::missing(format!("the artifact has no file `{name}`")));
    }
    let path = located.folder.join(name);
    let opened = File::open(&path).and_then(|file| file.metadata().map(|data| (file, data.len())));
    opened.map_err(|error| Problem::broken(format!("cannot read {}: {error}", path.display())))
}

/// Reads the next block of a file.
async fn read(mut file: File) -> Option<(std::io::Result<Bytes>, File)> {
    let read = tokio::task::spawn_blocking(move || {
        let mut block = vec![0; BLOCK];
        let count = file.read(&mut block)?;
        block.truncate(count);
        Ok((Bytes::from(block), file))
    });
    match read.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
        Ok((block, _)) if block.is_empty() => None,
        Ok((block, file)) => Some((Ok(block), file)),
        // The connection ends before the promised length: the browser says that the download failed.
        Err(error) => {
            tracing::debug!("a file could not be read: {error}");
            None
        }
    }
}
