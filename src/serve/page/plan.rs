//! What the next run of a pipeline would do, and what it would cost: started as its newest run was.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use searchmill_engine::{Overrides, RunOptions};
use serde::Deserialize;
use serde_json::{Value, json};

use super::problem::Problem;
use super::state::Page;
use crate::display::planned::as_json;

/// Which pipeline.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    pipeline: String,
}

/// Answers `GET /api/plan`: the nodes, as `plan --json`, of the file as it stands now.
pub(super) async fn plan(State(page): State<Arc<Page>>, Query(asked): Query<Asked>) -> Result<Json<Value>, Problem> {
    let answer = page.ask(move |page| {
        let session = &page.session;
        let mut newest = None;
        for id in session.runs().ids()?.iter().rev() {
            let run = session.runs().get(id)?;
            // A run of another store was of a file elsewhere.
            if run.imported {
                continue;
            }
            if let Some(record) = run.record.filter(|record| record.pipeline == asked.pipeline) {
                newest = Some(record);
                break;
            }
        }
        let Some(record) = newest else {
            return Err(Problem::missing(format!("no run of this store is of `{}`", asked.pipeline)));
        };
        let overrides = Overrides { set: record.set.clone(), params_files: record.params_files.clone() };
        let pipeline = session.check(&record.file, &overrides)?;
        let survey = session.estimate(&pipeline, &RunOptions::default())?;
        let mut nodes = Vec::new();
        for (place, status) in &survey.nodes {
            if let Some(node) = pipeline.plan.get(*place) {
                nodes.push(as_json(session, node, status, survey.work.get(place)));
            }
        }
        Ok(json!({"file": record.file, "set": record.set, "params_files": record.params_files, "nodes": nodes}))
    });
    answer.await.map(Json)
}
