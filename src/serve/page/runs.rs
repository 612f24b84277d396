//! Pipelines, runs, nodes, what differs between two runs, and what the next one would do.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use searchmill_engine::operator::PortType;
use searchmill_engine::{Failure, NodeOutcome, NodeRun, Overrides, PastRun, RunOptions, Session};
use serde::Deserialize;
use serde_json::{Value, json};

use super::layout::draw;
use super::problem::Problem;
use super::schedules;
use super::state::{Page, no_node};
use crate::display::planned::{as_json, sentence};

/// Runs of one answer, unless asked for.
const RUNS: usize = 50;

/// Which runs.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    pipeline: Option<String>,
    /// Only runs before this one.
    before: Option<String>,
    limit: Option<usize>,
}

/// Returns a run as the list shows it.
fn summary(session: &Session, id: &str, run: &PastRun) -> Result<Value, Failure> {
    let Some(record) = &run.record else { return Ok(json!({"id": id, "state": "damaged"})) };
    let end = if record.finished.is_some() { session.runs().end(id)? } else { None };
    let state = match record.exit {
        None if run.running => "running",
        None => "killed",
        // The exit codes of `run`.
        Some(0) => "done",
        Some(3) => "incomplete",
        Some(4) => "budget",
        Some(130) => "interrupted",
        Some(_) => "failed",
    };
    Ok(json!({
        "id": id,
        "pipeline": record.pipeline,
        "file": record.file,
        "state": state,
        "imported": run.imported,
        "started": record.started,
        "finished": record.finished,
        "exit": record.exit,
        "nodes": record.nodes,
        "limit": record.limit.to_string(),
        "set": record.set,
        "end": end,
    }))
}

/// Answers `GET /api/pipelines`: each with its last run and the number of its runs; those that run now first.
pub(super) async fn pipelines(State(page): State<Arc<Page>>) -> Result<Json<Value>, Problem> {
    let answer = page.ask(|page| {
        let session = &page.session;
        let mut last: BTreeMap<String, (Value, usize)> = BTreeMap::new();
        let mut running = Vec::new();
        // The newest first: the first one of a pipeline is its last run.
        for id in session.runs().ids()?.iter().rev() {
            let run = session.runs().get(id)?;
            // Damaged records say no name: they are together.
            let name = run.record.as_ref().map(|record| record.pipeline.clone()).unwrap_or_default();
            if run.running {
                running.push(summary(session, id, &run)?);
            }
            match last.get_mut(&name) {
                Some((_, runs)) => *runs += 1,
                None => {
                    last.insert(name, (summary(session, id, &run)?, 1));
                }
            }
        }
        let mut pipelines = Vec::with_capacity(last.len());
        for (name, (run, runs)) in last {
            pipelines.push(json!({"name": name, "runs": runs, "last": run}));
        }
        // Ids begin with the time: the pipeline that ran last comes first.
        pipelines.sort_by(|one, other| other["last"]["id"].as_str().cmp(&one["last"]["id"].as_str()));
        Ok(json!({
            "store": session.store().location(),
            "exists": session.store().exists()?,
            "running": running,
            "pipelines": pipelines,
            "schedules": schedules::all(session)?,
        }))
    });
    answer.await.map(Json)
}

/// Answers `GET /api/runs`: the newest first.
pub(super) async fn runs(State(page): State<Arc<Page>>, Query(asked): Query<Asked>) -> Result<Json<Value>, Problem> {
    let answer = page.ask(move |page| {
        let session = &page.session;
        let limit = asked.limit.unwrap_or(RUNS).min(1000);
        let (mut runs, mut more) = (Vec::new(), false);
        for id in session.runs().ids()?.iter().rev() {
            // Ids begin with the time: they sort by it.
            if asked.before.as_ref().is_some_and(|before| id >= before) {
                continue;
            }
            let run = session.runs().get(id)?;
            let name = run.record.as_ref().map(|record| record.pipeline.as_str());
            if asked.pipeline.as_deref().is_some_and(|asked| name != Some(asked)) {
                continue;
            }
            // One more that fits: the page offers to load the next ones.
            if runs.len() == limit {
                more = true;
                break;
            }
            runs.push(summary(session, id, &run)?);
        }
        Ok(json!({"runs": runs, "more": more}))
    });
    answer.await.map(Json)
}

/// Answers `GET /api/runs/RUN`: the run with its nodes.
pub(super) async fn run(State(page): State<Arc<Page>>, Path(id): Path<String>) -> Result<Json<Value>, Problem> {
    let answer = page.ask(move |page| {
        let session = &page.session;
        page.require_run(&id)?;
        let run = session.runs().get(&id)?;
        let mut told = summary(session, &id, &run)?;
        let ran = session.runs().nodes(&id)?;
        let edges = session.runs().edges(&id)?;
        let nodes: Vec<Value> = ran.iter().map(node_line).collect();
        told["params"] = run.record.as_ref().map(|record| record.params.clone()).unwrap_or_default();
        told["handed_on"] = json!(run.record.as_ref().map(|record| &record.handed_on));
        told["ran"] = nodes.into();
        told["graph"] = json!(draw(&ran, &edges, state));
        told["edges"] = json!(edges);
        Ok(told)
    });
    answer.await.map(Json)
}

/// Returns the state of a node, in the words of the terminal.
fn state(node: &NodeRun) -> &'static str {
    match node.outcome {
        NodeOutcome::Begun => "begun",
        NodeOutcome::Cached => "cached",
        NodeOutcome::Finished => "done",
        NodeOutcome::HeldBack => "held back",
        NodeOutcome::CheckFailed => "check failed",
        NodeOutcome::Failed => "failed",
        NodeOutcome::Skipped if node.was_interrupted() => "interrupted",
        NodeOutcome::Skipped => "skipped",
        NodeOutcome::Ended => "ended",
    }
}

fn node_line(node: &NodeRun) -> Value {
    let failed = node.checks.iter().filter(|check| !check.passed).count();
    json!({
        "node": node.node,
        "operator": node.operator,
        "state": state(node),
        "why": sentence(&node.reasons),
        "error": node.error,
        "seconds": node.seconds,
        "checks": node.checks.len(),
        "checks_failed": failed,
        "outputs": outputs(node),
    })
}

fn outputs(node: &NodeRun) -> Vec<Value> {
    let mut outputs = Vec::new();
    for (port, output) in &node.outputs {
        let kind = output.artifact_type.port_type();
        outputs.push(json!({
            "port": port,
            "id": output.id,
            "type": kind.as_ref().map(ToString::to_string),
            "table": matches!(kind, Some(PortType::Rows(_))),
            "rows": output.rows,
            "bytes": output.bytes,
        }));
    }
    outputs
}

/// Answers `GET /api/runs/RUN/nodes/NODE`: the node with its result.
pub(super) async fn node(
    State(page): State<Arc<Page>>,
    Path((id, name)): Path<(String, String)>,
) -> Result<Json<Value>, Problem> {
    let answer = page.ask(move |page| {
        let session = &page.session;
        // The last record: a node that ran again has several.
        let Some(node) = page.nodes(&id)?.into_iter().rfind(|node| node.node == name) else {
            return Err(no_node(&id, &name));
        };
        let result = session.runs().result(&node)?;
        let mut told = node_line(&node);
        told["key"] = json!(node.key);
        told["reasons"] = json!(node.reasons);
        told["check_outcomes"] = json!(node.checks);
        if let Some(result) = result {
            told["summary"] = result.summary.clone().into();
            told["figures"] = json!(result.figures);
            told["made_by"] = result.run.clone().into();
            told["finished"] = result.finished.into();
            told["version"] = result.searchmill.clone().into();
            told["calls"] = result.calls.into();
            told["service_calls"] = result.service_calls.into();
            told["prompt_tokens"] = result.prompt_tokens.into();
            told["completion_tokens"] = result.completion_tokens.into();
            told["cost"] = (result.cost_nanos as f64 / 1e9).into();
            told["params"] = result.preimage["params"].clone();
            told["inputs"] = result.preimage["inputs"].clone();
            if let Some(origin) = result.origin {
                // Prices are part of no key, and not of the params above.
                told["prices"] = origin.params.pointer("/policy/endpoint/prices").cloned().unwrap_or_default();
                told["sources"] = json!(origin.sources);
            }
        }
        Ok(told)
    });
    answer.await.map(Json)
}

/// Which runs are compared, or which node of one with which node of the other.
#[derive(Debug, Deserialize)]
pub(super) struct Compared {
    a: String,
    b: String,
    node: Option<String>,
    /// The node of the second run; none: the node of the same name.
    with: Option<String>,
}

/// Answers `GET /api/compare`: what differs between two runs or two nodes.
pub(super) async fn compare(
    State(page): State<Arc<Page>>,
    Query(asked): Query<Compared>,
) -> Result<Json<Value>, Problem> {
    let answer = page.ask(move |page| {
        let Some(node) = &asked.node else {
            if asked.with.is_some() {
                return Err(Failure::usage("`with` needs `node`: name both nodes").into());
            }
            return Ok(json!(page.session.runs().diff(&asked.a, &asked.b)?));
        };
        let nodes = [node.as_str(), asked.with.as_ref().unwrap_or(node)];
        Ok(json!(page.session.runs().diff_nodes(&asked.a, &asked.b, nodes)?))
    });
    answer.await.map(Json)
}

/// Which pipeline.
#[derive(Debug, Deserialize)]
pub(super) struct Planned {
    pipeline: String,
}

/// Answers `GET /api/plan`: the nodes, as `plan --json`, of the file as it stands now, started as
/// the newest run of the pipeline was.
pub(super) async fn plan(State(page): State<Arc<Page>>, Query(asked): Query<Planned>) -> Result<Json<Value>, Problem> {
    let answer = page.ask(move |page| {
        let session = &page.session;
        let mut newest = None;
        for id in session.runs().ids()?.iter().rev() {
            let run = session.runs().get(id)?;
            // A run of another store was of a file elsewhere.
            newest = run.record.filter(|record| !run.imported && record.pipeline == asked.pipeline);
            if newest.is_some() {
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
