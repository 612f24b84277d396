//! `show`: previews any artifact, or writes its rows to a file.

mod chosen;
mod file;

use std::path::Path;

use arrow::array::RecordBatch;
use searchmill_engine::operator::{InputArtifact, TreeInput};
use searchmill_engine::{Failure, Older, Scorer, Session, Shown, Table};
use searchmill_schemas::{RecordKind, Reject, Trajectory, from_batch, type_in_words};
use serde_json::json;

use self::chosen::each_chosen;
use crate::args::{ShowArgs, ShowFormat};
use crate::display::{self, Terminal, TextTable};
use crate::exit::OK;

/// Rows of a table that are formatted together.
const BLOCK: usize = 1000;

/// Says that what was named is not of the newest run: it may be of another pipeline.
pub(super) fn note_older(terminal: &Terminal, older: Option<&Older>) {
    if let Some(Older { node, run, pipeline }) = older.filter(|_| !terminal.is_json()) {
        terminal.note(&format!("`{node}` of run {run} of `{pipeline}`: the last run has no output of it"));
    }
}

/// Returns the run that is meant: that of `--run`, or the newest one of `--file`.
pub(super) fn run_chosen(session: &Session, run: Option<&str>, file: Option<&Path>) -> Result<Option<String>, Failure> {
    match file {
        Some(file) => session.runs().newest_of(file).map(Some),
        None => Ok(run.map(str::to_owned)),
    }
}

pub(super) fn show(terminal: &Terminal, session: &Session, args: &ShowArgs) -> Result<u8, Failure> {
    let run = run_chosen(session, args.run.as_deref(), args.file.as_deref())?;
    let shown = session.store().find(&args.what, run.as_deref(), args.rejects)?;
    let node = shown.node.as_deref().unwrap_or(&args.what);
    if !terminal.is_json() && !args.what.starts_with(node) {
        terminal.note(&format!("`{}` is an output of `{node}`", args.what));
    }
    note_older(terminal, shown.older.as_ref());
    if let InputArtifact::Tree(tree) = session.store().artifact(&shown.artifact)? {
        show_tree(terminal, &tree, args)?;
    } else {
        let conversations = args.format == Some(ShowFormat::Conversation);
        let scored = match (&shown.run, &shown.node) {
            (Some(run), Some(node)) if conversations => session.runs().scored(run, node)?,
            _ => None,
        };
        // Scores as conversations are the rollouts beside them.
        let (artifact, scorer) = match scored {
            Some((rollouts, scorer)) => (rollouts, Some(scorer)),
            None => (shown.artifact, scorer(terminal, session, &shown, args)?),
        };
        let table = session.store().browse(&artifact, scorer.as_ref())?;
        match &args.output {
            _ if args.columns.as_ref().is_some_and(Vec::is_empty) => {
                list_columns(terminal, &table, scorer.as_ref());
                return Ok(OK);
            }
            Some(file) => file::write(terminal, session, &table, args, file)?,
            None => show_rows(terminal, session, &table, args)?,
        }
    }
    // A program that reads the rows would take the summary for one.
    let rows_alone = terminal.is_json()
        || args.format == Some(ShowFormat::Jsonl)
        || args.condition.is_some()
        || args.output.is_some();
    if !shown.summary.is_empty() && !rows_alone {
        terminal.line(&format!("\n{}", shown.summary.trim_end()));
    }
    Ok(OK)
}

/// Returns the node whose scores stand beside the rows: the one asked for, or the only or first one that scored them.
fn scorer(terminal: &Terminal, session: &Session, shown: &Shown, args: &ShowArgs) -> Result<Option<Scorer>, Failure> {
    let mut scorers = match &shown.run {
        Some(run) => session.runs().scorers(run, &shown.artifact)?,
        None => Vec::new(),
    };
    let names: Vec<String> = scorers.iter().map(|scorer| format!("`{}`", scorer.node)).collect();
    if let Some(asked) = &args.scores {
        if let Some(scorer) = scorers.into_iter().find(|scorer| scorer.node == *asked) {
            return Ok(Some(scorer));
        }
        let failure = Failure::usage(format!("`{asked}` has no scores of these rows"));
        let help = format!("they were scored by {}", names.join(", "));
        return Err(if names.is_empty() { failure } else { failure.with_help(help) });
    }
    let asks = args.condition.is_some() || args.columns.is_some() || !args.sort.is_empty();
    if scorers.len() > 1 && asks && !terminal.is_json() {
        let (first, all) = (&names[0], names.join(", "));
        terminal.note(&format!("scores are those of {first}; `--scores NODE` takes another of {all}"));
    }
    Ok(if scorers.is_empty() { None } else { Some(scorers.swap_remove(0)) })
}

fn list_columns(terminal: &Terminal, table: &Table, scorer: Option<&Scorer>) {
    let mut rows = Vec::new();
    for field in table.columns() {
        let is_own = table.rows.schema.index_of(field.name()).is_ok();
        let of = scorer.filter(|_| !is_own).map(|scorer| scorer.node.to_string());
        let kind = type_in_words(field.data_type());
        if terminal.is_json() {
            terminal.json(&json!({"column": field.name(), "type": kind, "scores": of}));
        } else {
            rows.push(vec![field.name().clone(), kind, of.unwrap_or_default()]);
        }
    }
    if !rows.is_empty() {
        terminal.table(&["column", "type", "scores of"], &rows);
    }
}

fn show_tree(terminal: &Terminal, tree: &TreeInput, args: &ShowArgs) -> Result<(), Failure> {
    let of_rows = [
        ("--where", args.condition.is_some()),
        ("--sort", !args.sort.is_empty()),
        ("--columns", args.columns.is_some()),
        ("--scores", args.scores.is_some()),
        ("--row", args.row.is_some()),
        ("--no-system", args.no_system),
        ("--output", args.output.is_some()),
        ("--format", args.format.is_some()),
    ];
    if let Some((option, _)) = of_rows.into_iter().find(|(_, given)| *given) {
        let message = format!("`{}` is a folder ({}): `{option}` is for rows", args.what, tree.kind.name());
        return Err(Failure::usage(message).with_help(format!("`searchmill path {}` prints its path", args.what)));
    }
    let mut pending = vec![tree.path.clone()];
    let mut files = Vec::new();
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let name = path.strip_prefix(&tree.path).unwrap_or(&path).display().to_string();
                files.push((name, path.metadata()?.len()));
            }
        }
    }
    // A folder has no order of its own.
    files.sort();
    if terminal.is_json() {
        for (name, bytes) in &files {
            terminal.json(&json!({"file": name, "bytes": bytes}));
        }
        return Ok(());
    }
    terminal.line(&format!("{} in {}", tree.kind.name(), tree.path.display()));
    let rows: Vec<_> = files.into_iter().map(|(name, bytes)| vec![name, display::bytes(bytes)]).collect();
    terminal.table(&["file", "size"], &rows);
    Ok(())
}

fn show_rows(terminal: &Terminal, session: &Session, table: &Table, args: &ShowArgs) -> Result<(), Failure> {
    let rows = &table.rows;
    let default = match rows.kind {
        _ if terminal.is_json() => ShowFormat::Jsonl,
        RecordKind::Trajectory if args.columns.is_none() => ShowFormat::Conversation,
        _ => ShowFormat::Table,
    };
    let format = args.format.unwrap_or(default);
    if matches!(format, ShowFormat::Json | ShowFormat::Csv | ShowFormat::Tsv | ShowFormat::Parquet) {
        let message = "this format is only written to files";
        return Err(Failure::usage(message).with_help("name the file with `-o FILE`, or use `--format jsonl`"));
    }
    let mut lines = Lines::new(terminal, args.full);
    let chosen = each_chosen(session, table, args, &mut |batch| {
        match format {
            ShowFormat::Jsonl => json_lines(terminal, batch)?,
            ShowFormat::Conversation => conversations(terminal, batch, rows.kind, args.full)?,
            // A table would truncate the reasons.
            _ if rows.kind == RecordKind::Reject && args.format.is_none() => rejects(terminal, batch, args.full)?,
            _ => lines.add(batch),
        }
        Ok(())
    })?;
    lines.print();
    let (shown, all, kind) = (chosen.rows, rows.rows, rows.kind);
    terminal.note(&match chosen.matched {
        None => format!("{shown} of {all} {kind} rows"),
        Some(matched) if matched == shown as u64 => format!("{shown} of {all} {kind} rows match"),
        Some(matched) => format!("{shown} of {matched} matches in {all} {kind} rows"),
    });
    Ok(())
}

fn json_lines(terminal: &Terminal, batch: &RecordBatch) -> Result<(), Failure> {
    let lines = display::json_lines(batch).map_err(Failure::Other)?;
    if !lines.is_empty() {
        terminal.line(&lines.join("\n"));
    }
    Ok(())
}

fn conversations(terminal: &Terminal, batch: &RecordBatch, kind: RecordKind, full: bool) -> Result<(), Failure> {
    let trajectories: Vec<Trajectory> = from_batch(batch)
        .map_err(|error| Failure::usage(format!("only trajectories can be shown as conversations: {error}")))?;
    let added = display::added_columns(batch, kind).map_err(Failure::Other)?;
    for (place, trajectory) in trajectories.iter().enumerate() {
        let added = added.get(place).map_or("", String::as_str);
        terminal.line(&display::conversation(trajectory, added, terminal.width(), full));
    }
    Ok(())
}

fn rejects(terminal: &Terminal, batch: &RecordBatch, full: bool) -> Result<(), Failure> {
    let rejects: Vec<Reject> = from_batch(batch).map_err(|error| Failure::Other(error.to_string()))?;
    for row in &rejects {
        terminal.line(&display::reject(row, full));
    }
    Ok(())
}

/// Prints rows as a table, a block at a time, so that any number of rows fits into memory.
struct Lines<'a> {
    terminal: &'a Terminal,
    full: bool,
    text: TextTable,
    has_header: bool,
    pending: Vec<Vec<String>>,
}

impl<'a> Lines<'a> {
    fn new(terminal: &'a Terminal, full: bool) -> Self {
        let text = TextTable::new(terminal.page().filter(|_| !full));
        Self { terminal, full, text, has_header: false, pending: Vec::new() }
    }

    fn add(&mut self, batch: &RecordBatch) {
        for row in display::preview(batch, self.full) {
            if !std::mem::replace(&mut self.has_header, true) {
                self.pending.push(batch.schema().fields().iter().map(|field| field.name().clone()).collect());
            }
            self.pending.push(row);
            if self.pending.len() >= BLOCK {
                self.print();
            }
        }
    }

    /// Prints the pending rows.
    fn print(&mut self) {
        if !self.pending.is_empty() {
            self.terminal.line(&self.text.lines(&self.pending));
            self.pending.clear();
        }
    }
}
