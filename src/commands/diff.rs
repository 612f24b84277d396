//! `diff`: shows the differences between two runs or two nodes, or writes a page that compares their rollouts.

use std::path::Path;

use searchmill_engine::lineage::RunDiff;
use searchmill_engine::operator::{InputArtifact, PortType, RowsInput};
use searchmill_engine::{ArtifactId, Failure, NodeRun, Session};
use searchmill_operators::compare::{ComparedTables, compared_page};
use searchmill_schemas::RecordKind;
use serde_json::json;

use super::target;
use crate::args::DiffArgs;
use crate::display::planned::sentence;
use crate::display::{Terminal, lineage};
use crate::exit::OK;

pub(super) fn diff(terminal: &Terminal, session: &Session, args: &DiffArgs) -> Result<u8, Failure> {
    // Two nodes are mostly variants of one run: the one that is named, or the last one.
    let pair = args.with.is_some();
    let other = match (&args.one, &args.other) {
        (_, Some(other)) => other,
        (Some(one), None) if pair => one,
        _ => "latest",
    };
    let one = match &args.one {
        Some(one) => one,
        None if pair => other,
        None => "previous",
    };
    let found = match &args.node {
        Some(node) => session.runs().diff_nodes(one, other, [node, args.with.as_ref().unwrap_or(node)])?,
        None => session.runs().diff(one, other)?,
    };
    match &args.report {
        Some(file) => report(terminal, session, &found, file)?,
        None => terminal.tell(&found, lineage::run_diff(&found).trim_end()),
    }
    Ok(OK)
}

/// Rollouts of the first and of the second run.
struct Pair {
    node: String,
    with: String,
    artifacts: [ArtifactId; 2],
}

fn report(terminal: &Terminal, session: &Session, found: &RunDiff, file: &Path) -> Result<(), Failure> {
    let pair = chosen(pairs(session, found)?, found)?;
    let [one, other] = pair.artifacts;
    if one == other {
        let message = format!("the rollouts of `{}` are the same: there is nothing to compare", pair.node);
        return Err(Failure::usage(message).with_help("`searchmill diff` without --report says what differs"));
    }
    let rows = [rollouts(session, &one)?, rollouts(session, &other)?];
    let [before, after] = [found.runs[0].as_str(), found.runs[1].as_str()];
    let (title, names) = if pair.node == pair.with {
        (format!("{}: run {after} beside run {before}", pair.node), [before, after])
    } else {
        (format!("{} beside {}", pair.with, pair.node), [pair.node.as_str(), pair.with.as_str()])
    };
    let about = about(session, found)?;
    let compared = ComparedTables { title: &title, about: &about, names, rows };
    let page = session.with_context(|context| compared_page(&compared, context))?;
    let path = target::path_of(session, file)?;
    target::replace(&path, |out| out.write_all(page.as_bytes()))?;
    if terminal.is_json() {
        terminal.json(&json!({"file": file, "node": pair.node, "with": pair.with, "runs": found.runs}));
    } else {
        terminal.note(&format!("{}: {title}", file.display()));
    }
    Ok(())
}

/// Returns the compared nodes that have rollouts on both sides.
fn pairs(session: &Session, found: &RunDiff) -> Result<Vec<Pair>, Failure> {
    let [before, after] = [session.runs().nodes(&found.runs[0])?, session.runs().nodes(&found.runs[1])?];
    let mut names: Vec<[&str; 2]> = Vec::new();
    if let Some([one, other]) = &found.of {
        // The nodes themselves may be equal: then they are no change.
        names.push([one, other]);
        for change in &found.nodes {
            names.push([&change.node, change.with.as_ref().unwrap_or(&change.node)]);
        }
    } else {
        names.extend(after.iter().map(|node| [node.node.as_str(); 2]));
    }
    let mut pairs = Vec::new();
    for [node, with] in names {
        let one = before.iter().rfind(|run| run.node == node).and_then(trajectories);
        let other = after.iter().rfind(|run| run.node == with).and_then(trajectories);
        if let (Some(one), Some(other)) = (one, other) {
            pairs.push(Pair { node: node.to_owned(), with: with.to_owned(), artifacts: [one, other] });
        }
    }
    Ok(pairs)
}

fn trajectories(node: &NodeRun) -> Option<ArtifactId> {
    let rollouts = Some(PortType::Rows(RecordKind::Trajectory));
    node.outputs.values().find(|output| output.artifact_type.port_type() == rollouts).map(|output| output.id)
}

/// Returns the rollouts of the node that was named, or else the only ones that differ.
fn chosen(mut pairs: Vec<Pair>, found: &RunDiff) -> Result<Pair, Failure> {
    let names = pairs.iter().map(|pair| format!("`{}`", pair.node)).collect::<Vec<_>>().join(", ");
    if pairs.is_empty() {
        let failure = Failure::usage("no node has rollouts on both sides");
        return Err(failure.with_help("`searchmill diff` without --report compares all their tables"));
    }
    if let Some([node, _]) = &found.of
        && let Some(place) = pairs.iter().position(|pair| *node == pair.node)
    {
        return Ok(pairs.swap_remove(place));
    }
    pairs.retain(|pair| pair.artifacts[0] != pair.artifacts[1]);
    if pairs.is_empty() {
        let failure = Failure::usage(format!("the rollouts ({names}) are the same: there is nothing to compare"));
        return Err(failure.with_help("`searchmill diff` without --report says what differs"));
    }
    if pairs.len() > 1 {
        let failure = Failure::usage("several nodes have rollouts on both sides");
        return Err(failure.with_help(format!("add `--node NODE`: {names}")));
    }
    Ok(pairs.swap_remove(0))
}

fn rollouts(session: &Session, id: &ArtifactId) -> Result<RowsInput, Failure> {
    match session.store().artifact(id)? {
        InputArtifact::Rows(rows) => Ok(rows),
        InputArtifact::Tree(_) => Err(Failure::Other(format!("the artifact {id} is a folder, not a table"))),
    }
}

/// Says which runs are compared, and what differs between them besides the rollouts.
fn about(session: &Session, found: &RunDiff) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    for (place, id) in found.runs.iter().enumerate() {
        let Some(record) = session.runs().get(id)?.record else { continue };
        let name = if place == 0 { "Baseline" } else { "Beside it" };
        let node = match &found.of {
            Some(of) if of[0] != of[1] => format!("{} of ", of[place]),
            _ => String::new(),
        };
        let started = chrono::DateTime::from_timestamp(record.started as i64, 0);
        let started = started.map_or_else(String::new, |time| time.format("%Y-%m-%d %H:%M").to_string());
        lines.push(format!("{name}: {node}run {id} of {} ({}), {started} UTC.", record.pipeline, record.file));
    }
    for changed in found.about.iter().chain(&found.params) {
        lines.push(format!("{}: {} → {}", changed.name, written(&changed.from), written(&changed.to)));
    }
    for change in &found.nodes {
        if !change.follows && !change.reasons.is_empty() {
            lines.push(format!("{}: {}", change.node, sentence(&change.reasons)));
        }
    }
    Ok(lines)
}

fn written(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
