//! `diff`: shows the differences between two runs, or writes a page that compares their rollouts.

use std::io::Write;
use std::path::Path;

use searchmill_engine::lineage::RunDiff;
use searchmill_engine::operator::{InputArtifact, PortType, RowsInput};
use searchmill_engine::{ArtifactId, Failure, NodeRun, Session};
use searchmill_operators::compare::{ComparedTables, compared_page};
use searchmill_schemas::RecordKind;
use serde_json::json;

use crate::args::DiffArgs;
use crate::display::{Terminal, lineage, reasons};
use crate::exit::OK;

pub(super) fn diff(terminal: &Terminal, session: &Session, args: &DiffArgs) -> Result<u8, Failure> {
    let found = session.diff(&args.one, &args.other)?;
    match &args.report {
        Some(file) => report(terminal, session, &found, args.node.as_deref(), file)?,
        None => terminal.tell(&found, lineage::run_diff(&found).trim_end()),
    }
    Ok(OK)
}

/// Rollouts that both runs have.
struct Pair {
    node: String,
    artifacts: [ArtifactId; 2],
}

fn report(
    terminal: &Terminal,
    session: &Session,
    found: &RunDiff,
    node: Option<&str>,
    file: &Path,
) -> Result<(), Failure> {
    let pair = chosen(pairs(session, found)?, node)?;
    let [one, other] = pair.artifacts;
    if one == other {
        let message = format!("the rollouts of `{}` are the same in both runs: there is nothing to compare", pair.node);
        return Err(Failure::usage(message).with_help("`searchmill diff` without --report says what differs"));
    }
    let rows = [rollouts(session, &one)?, rollouts(session, &other)?];
    let title = format!("{}: run {} beside run {}", pair.node, found.runs[1], found.runs[0]);
    let about = about(session, found)?;
    let names = [found.runs[0].as_str(), found.runs[1].as_str()];
    let compared = ComparedTables { title: &title, about: &about, names, rows };
    let page = session.with_context(|context| compared_page(&compared, context))?;
    write(&session.directory().join(file), &page)?;
    if terminal.is_json() {
        terminal.json(&json!({"file": file, "node": pair.node, "runs": found.runs}));
    } else {
        terminal.note(&format!("{}: the rollouts of `{}` in both runs", file.display(), pair.node));
    }
    Ok(())
}

/// Returns the nodes whose rollouts both runs have.
fn pairs(session: &Session, found: &RunDiff) -> Result<Vec<Pair>, Failure> {
    let [before, after] = [session.run_nodes(&found.runs[0])?, session.run_nodes(&found.runs[1])?];
    let mut pairs = Vec::new();
    for node in &after {
        let earlier = before.iter().rfind(|earlier| earlier.node == node.node);
        if let (Some(one), Some(other)) = (earlier.and_then(trajectories), trajectories(node)) {
            pairs.push(Pair { node: node.node.clone(), artifacts: [one, other] });
        }
    }
    Ok(pairs)
}

fn trajectories(node: &NodeRun) -> Option<ArtifactId> {
    let rollouts = Some(PortType::Rows(RecordKind::Trajectory));
    node.outputs.values().find(|output| output.artifact_type.port_type() == rollouts).map(|output| output.id)
}

/// Returns the rollouts of that node; without a name, the only ones that differ.
fn chosen(mut pairs: Vec<Pair>, node: Option<&str>) -> Result<Pair, Failure> {
    let names = pairs.iter().map(|pair| format!("`{}`", pair.node)).collect::<Vec<_>>().join(", ");
    if pairs.is_empty() {
        let failure = Failure::usage("the runs have no node in common that has rollouts");
        return Err(failure.with_help("`searchmill diff` without --report compares all their tables"));
    }
    if let Some(node) = node {
        let place = pairs.iter().position(|pair| pair.node == node);
        let place = place.ok_or_else(|| {
            Failure::usage(format!("`{node}` has no rollouts in both runs")).with_help(format!("these have: {names}"))
        })?;
        return Ok(pairs.swap_remove(place));
    }
    pairs.retain(|pair| pair.artifacts[0] != pair.artifacts[1]);
    if pairs.is_empty() {
        let failure =
            Failure::usage(format!("both runs have the same rollouts ({names}): there is nothing to compare"));
        return Err(failure.with_help("`searchmill diff` without --report says what differs"));
    }
    if pairs.len() > 1 {
        let failure = Failure::usage("several nodes have rollouts in both runs");
        return Err(failure.with_help(format!("add `--node NODE`: {names}")));
    }
    Ok(pairs.swap_remove(0))
}

fn rollouts(session: &Session, id: &ArtifactId) -> Result<RowsInput, Failure> {
    match session.artifact(id)? {
        InputArtifact::Rows(rows) => Ok(rows),
        InputArtifact::Tree(_) => Err(Failure::Other(format!("the artifact {id} is a folder, not a table"))),
    }
}

/// Says which runs are compared, and what differs between them besides the rollouts.
fn about(session: &Session, found: &RunDiff) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    for (place, id) in found.runs.iter().enumerate() {
        let Some(record) = session.past_run(id)?.record else { continue };
        let name = if place == 0 { "Baseline" } else { "Beside it" };
        lines.push(format!(
            "{name}: run {id} of {} ({}), {} UTC.",
            record.pipeline,
            record.file,
            moment(record.started)
        ));
    }
    for changed in found.about.iter().chain(&found.params) {
        lines.push(format!("{}: {} → {}", changed.name, written(&changed.from), written(&changed.to)));
    }
    for change in &found.nodes {
        if !change.follows && !change.reasons.is_empty() {
            lines.push(format!("{}: {}", change.node, reasons::sentence(&change.reasons)));
        }
    }
    Ok(lines)
}

fn written(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Formats a time (Unix, seconds) as `2026-11-27 03:00`.
fn moment(seconds: f64) -> String {
    let time = chrono::DateTime::from_timestamp(seconds as i64, 0);
    time.map_or_else(String::new, |time| time.format("%Y-%m-%d %H:%M").to_string())
}

/// Writes the file completely or not at all.
fn write(path: &Path, page: &str) -> Result<(), Failure> {
    let unwritable = |error: std::io::Error| Failure::usage(format!("cannot write {}: {error}", path.display()));
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut partial = tempfile::NamedTempFile::new_in(folder).map_err(unwritable)?;
    partial.write_all(page.as_bytes()).and_then(|()| partial.as_file().sync_all()).map_err(unwritable)?;
    // A file for its owner alone became one that others may read, as any new file.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    partial.as_file().set_permissions(mode).map_err(unwritable)?;
    partial.persist(path).map_err(|error| unwritable(error.error))?;
    Ok(())
}
