//! Marks and notes of people about rows: the only thing that a browser can write.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use searchmill_engine::{ArtifactId, Label, Mark};
use serde::Deserialize;
use serde_json::{Value, json};

use super::problem::Problem;
use super::state::{Page, require_own_page};

/// Which labels.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    artifact: Option<ArtifactId>,
    row: Option<String>,
}

/// Answers `GET /api/labels`: the newest first.
pub(super) async fn labels(State(page): State<Arc<Page>>, Query(asked): Query<Asked>) -> Result<Json<Value>, Problem> {
    let answer = page.ask(move |page| {
        let (mut labels, damaged) = page.session.store().labels()?;
        labels.retain(|label| {
            asked.artifact.is_none_or(|artifact| artifact == label.artifact)
                && asked.row.as_ref().is_none_or(|row| *row == label.row)
        });
        Ok(json!({"labels": labels, "damaged": damaged}))
    });
    answer.await.map(Json)
}

/// A label as the page sends it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Given {
    run: String,
    node: String,
    port: String,
    row: String,
    mark: Option<Mark>,
    #[serde(default)]
    note: String,
    author: String,
}

/// Answers `POST /api/labels`.
pub(super) async fn add(
    State(page): State<Arc<Page>>,
    headers: HeaderMap,
    Json(given): Json<Given>,
) -> Result<Json<Label>, Problem> {
    require_own_page(&headers)?;
    let answer = page.ask(move |page| {
        let nodes = page.nodes(&given.run)?;
        // The last record: a node that ran again has several.
        let node = nodes.iter().rfind(|node| node.node == given.node);
        let output = node.and_then(|node| node.outputs.get(&given.port));
        let output = output.ok_or_else(|| {
            Problem::missing(format!("the run {} has no output {} of `{}`", given.run, given.port, given.node))
        })?;
        let label = Label {
            // Kept for the content: every run with this artifact shows the label.
            artifact: output.id,
            row: given.row,
            mark: given.mark,
            note: given.note,
            author: given.author,
            run: given.run,
            node: given.node,
            port: given.port,
            // Set by the store: a browser may have a wrong clock.
            time: 0.0,
        };
        Ok(page.session.store().label(label)?)
    });
    answer.await.map(Json)
}
