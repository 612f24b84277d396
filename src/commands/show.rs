//! `show`: previews any artifact.

use arrow::array::RecordBatch;
use searchmill_engine::lineage::{came_to_nothing, run_of};
use searchmill_engine::operator::{InputArtifact, RowsInput, TreeInput};
use searchmill_engine::plan::nearest;
use searchmill_engine::store::{ArtifactId, OutputRecord, Store};
use searchmill_schemas::{RecordKind, Reject, Trajectory, from_batch, text_column};

use super::Session;
use crate::args::{ShowArgs, ShowFormat};
use crate::display;
use crate::exit::{Failure, OK};

pub(super) fn show(session: &Session<'_>, args: &ShowArgs) -> Result<u8, Failure> {
    let store = session.existing_store()?;
    let (id, summary) = find(session, &store, args)?;
    match store.open_input(&id)? {
        InputArtifact::Tree(tree) => show_tree(session, &tree)?,
        InputArtifact::Rows(rows) => show_rows(session, &rows, args)?,
    }
    let rows_alone = session.terminal.is_json() || args.format == Some(ShowFormat::Jsonl);
    if !summary.is_empty() && !rows_alone {
        session.terminal.line(&format!("\n{}", summary.trim_end()));
    }
    Ok(OK)
}

/// The artifact meant, and what its node said about it.
fn find(session: &Session<'_>, store: &Store, args: &ShowArgs) -> Result<(ArtifactId, String), Failure> {
    let (node, port) = match args.what.rsplit_once('.') {
        Some((node, port)) => (node, Some(port)),
        None => (args.what.as_str(), None),
    };
    let port = if args.rejects { Some("rejects") } else { port };
    let runs = match &args.run {
        Some(run) => vec![run_of(store, run)?],
        None => store.newest_runs(),
    };
    for (back, run) in runs.iter().enumerate() {
        let Some(done) = store.run_nodes(run).into_iter().find(|done| done.node == node && !done.outputs.is_empty())
        else {
            continue;
        };
        let output = match port {
            None => done.outputs.first().map(|(_, output)| output),
            Some(port) => done.outputs.get(port),
        };
        let Some(output) = output else {
            let ports = done.outputs.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let message = format!("node `{node}` has no output `{}`", port.unwrap_or_default());
            return Err(Failure::usage(message).with_help(format!("its outputs: {ports}")));
        };
        if back > 0 && !session.terminal.is_json() {
            let pipeline = store.run(run).map(|run| run.pipeline).unwrap_or_default();
            session.terminal.note(&format!("`{node}` of run {run} of `{pipeline}`: the last run has no such node"));
        }
        let summary = done.key.and_then(|key| store.result(&key)).map(|result| result.summary).unwrap_or_default();
        return Ok((output.id, if port.is_some() { String::new() } else { summary }));
    }
    if let Some(run) = &args.run {
        let failed = came_to_nothing(store, &runs, node);
        return Err(failed.map_or_else(|| Failure::usage(format!("the run {run} has no node `{node}`")), Into::into));
    }
    by_prefix(store, &runs, &args.what).map(|id| (id, String::new()))
}

fn by_prefix(store: &Store, runs: &[String], prefix: &str) -> Result<ArtifactId, Failure> {
    if let Ok(Some(pin)) = store.pinned(prefix) {
        return Ok(pin.artifact);
    }
    if let Some(id) = ArtifactId::parse(prefix) {
        return Ok(id);
    }
    let mut found: Vec<OutputRecord> = store
        .run_ids()
        .iter()
        .flat_map(|run| store.run_nodes(run))
        .flat_map(|node| node.outputs.into_values())
        .filter(|output| prefix.len() >= 4 && output.id.to_string().starts_with(prefix))
        .collect();
    found.sort_by_key(|output| output.id);
    found.dedup_by_key(|output| output.id);
    match found.as_slice() {
        [one] => Ok(one.id),
        [] => {
            if let Some(reason) = came_to_nothing(store, runs, prefix) {
                return Err(reason.into());
            }
            let failure = Failure::usage(format!("there is no node and no artifact `{prefix}` in the store"));
            let all = "`searchmill runs` lists runs; `searchmill status FILE` lists nodes and artifacts";
            Err(match near_node(store, prefix) {
                Some(near) => failure.with_help(format!("did you mean `{near}`? {all}")),
                None => failure.with_help(all),
            })
        }
        _ => {
            Err(Failure::usage(format!("`{prefix}` begins more than one artifact's id")).with_help("write more of it"))
        }
    }
}

/// The node of the newest run with a similar name.
fn near_node(store: &Store, name: &str) -> Option<String> {
    let nodes = store.run_nodes(store.newest_runs().first()?);
    nearest(name, nodes.iter().map(|done| done.node.as_str())).map(str::to_owned)
}

fn show_tree(session: &Session<'_>, tree: &TreeInput) -> Result<(), Failure> {
    let mut pending = vec![tree.path.clone()];
    let mut rows = Vec::new();
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let name = path.strip_prefix(&tree.path).unwrap_or(&path).display().to_string();
                rows.push(vec![name, display::bytes(path.metadata()?.len())]);
            }
        }
    }
    rows.sort();
    session.terminal.line(&format!("{} in {}", tree.kind.name(), tree.path.display()));
    session.terminal.table(&["file", "size"], &rows);
    Ok(())
}

fn show_rows(session: &Session<'_>, rows: &RowsInput, args: &ShowArgs) -> Result<(), Failure> {
    let chosen = choose(rows, args)?;
    let shown: usize = chosen.iter().map(RecordBatch::num_rows).sum();
    if shown == 0 && args.row.is_some() {
        return Err(Failure::usage(format!("no row has the id `{}`", args.row.as_deref().unwrap_or_default())));
    }
    let default = match rows.kind {
        _ if session.terminal.is_json() => ShowFormat::Jsonl,
        RecordKind::Trajectory => ShowFormat::Conversation,
        _ => ShowFormat::Table,
    };
    match args.format.unwrap_or(default) {
        ShowFormat::Jsonl => {
            for line in display::json_lines(&chosen).map_err(Failure::Other)? {
                session.terminal.line(&line);
            }
        }
        ShowFormat::Conversation => {
            for batch in &chosen {
                let trajectories: Vec<Trajectory> = from_batch(batch).map_err(|error| {
                    Failure::usage(format!("only trajectories can be shown as conversations: {error}"))
                })?;
                for trajectory in &trajectories {
                    session.terminal.line(&display::conversation(trajectory, session.terminal.width()));
                }
            }
        }
        // A table would cut the reasons.
        ShowFormat::Table if rows.kind == RecordKind::Reject && args.format.is_none() => {
            for batch in &chosen {
                let rejects: Vec<Reject> = from_batch(batch).map_err(|error| Failure::Other(error.to_string()))?;
                for row in &rejects {
                    session.terminal.line(&display::reject(row));
                }
            }
        }
        ShowFormat::Table if shown == 0 => {}
        ShowFormat::Table => {
            let (header, body) = display::preview(&chosen);
            let header: Vec<&str> = header.iter().map(String::as_str).collect();
            session.terminal.table(&header, &body);
        }
    }
    if !session.terminal.is_json() {
        session.terminal.note(&format!("{shown} of {} {} rows", rows.rows, rows.kind));
    }
    Ok(())
}

fn choose(rows: &RowsInput, args: &ShowArgs) -> Result<Vec<RecordBatch>, Failure> {
    let limit = if args.rows == 0 { usize::MAX } else { args.rows };
    let mut chosen = Vec::new();
    let mut count = 0;
    for batch in rows.batches() {
        let batch = batch.map_err(|error| Failure::Other(error.to_string()))?;
        let batch = match &args.row {
            None => batch.slice(0, batch.num_rows().min(limit - count)),
            Some(id) => match text_column(&batch, "id").ok().and_then(|ids| ids.iter().position(|at| at == Some(id))) {
                Some(place) => batch.slice(place, 1),
                None => continue,
            },
        };
        count += batch.num_rows();
        chosen.push(batch);
        if count >= limit || args.row.is_some() {
            break;
        }
    }
    Ok(chosen)
}
