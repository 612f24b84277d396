//! `show`: previews any artifact, or writes its rows to a file.

mod chosen;
mod file;

use arrow::array::RecordBatch;
use searchmill_engine::operator::{InputArtifact, RowsInput, TreeInput};
use searchmill_engine::{Failure, Older, Session};
use searchmill_schemas::{RecordKind, Reject, Trajectory, from_batch};
use serde_json::json;

use self::chosen::{Chosen, each_chosen};
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

pub(super) fn show(terminal: &Terminal, session: &Session, args: &ShowArgs) -> Result<u8, Failure> {
    let shown = session.shown(&args.what, args.run.as_deref(), args.rejects)?;
    let node = shown.node.as_deref().unwrap_or(&args.what);
    if !terminal.is_json() && !args.what.starts_with(node) {
        terminal.note(&format!("`{}` is an output of `{node}`", args.what));
    }
    note_older(terminal, shown.older.as_ref());
    match session.artifact(&shown.artifact)? {
        InputArtifact::Tree(tree) => show_tree(terminal, &tree, args)?,
        InputArtifact::Rows(rows) => match &args.output {
            Some(file) => file::write(terminal, session, &rows, args, file)?,
            None => show_rows(terminal, session, &rows, args)?,
        },
    }
    let rows_alone = terminal.is_json()
        || args.format == Some(ShowFormat::Jsonl)
        || args.condition.is_some()
        || args.output.is_some();
    if !shown.summary.is_empty() && !rows_alone {
        terminal.line(&format!("\n{}", shown.summary.trim_end()));
    }
    Ok(OK)
}

fn show_tree(terminal: &Terminal, tree: &TreeInput, args: &ShowArgs) -> Result<(), Failure> {
    let of_rows = [
        ("--where", args.condition.is_some()),
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

fn show_rows(terminal: &Terminal, session: &Session, rows: &RowsInput, args: &ShowArgs) -> Result<(), Failure> {
    let default = match rows.kind {
        _ if terminal.is_json() => ShowFormat::Jsonl,
        RecordKind::Trajectory => ShowFormat::Conversation,
        _ => ShowFormat::Table,
    };
    let format = args.format.unwrap_or(default);
    let chosen = match format {
        ShowFormat::Jsonl => each_chosen(session, rows, args, &mut |batch| json_lines(terminal, batch))?,
        ShowFormat::Conversation => {
            each_chosen(session, rows, args, &mut |batch| conversations(terminal, batch, rows.kind, args.full))?
        }
        // A table would truncate the reasons.
        ShowFormat::Table if rows.kind == RecordKind::Reject && args.format.is_none() => {
            each_chosen(session, rows, args, &mut |batch| rejects(terminal, batch, args.full))?
        }
        ShowFormat::Table => {
            let mut table = Table::new(terminal, rows, args.full);
            let chosen = each_chosen(session, rows, args, &mut |batch| {
                table.add(batch);
                Ok(())
            })?;
            table.print();
            chosen
        }
        ShowFormat::Json | ShowFormat::Csv | ShowFormat::Tsv | ShowFormat::Parquet => {
            let message = "this format is only written to files";
            return Err(Failure::usage(message).with_help("name the file with `-o FILE`, or use `--format jsonl`"));
        }
    };
    terminal.note(&told(&chosen, rows));
    Ok(())
}

/// Returns a note on how many rows there are.
fn told(chosen: &Chosen, rows: &RowsInput) -> String {
    let Chosen { rows: shown, stopped, matched } = chosen;
    let (all, kind) = (rows.rows, rows.kind);
    match (matched, stopped) {
        (false, _) => format!("{shown} of {all} {kind} rows"),
        (true, false) => format!("{shown} of {all} {kind} rows match"),
        (true, true) => format!("the first {shown} matches of {all} {kind} rows"),
    }
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
struct Table<'a> {
    terminal: &'a Terminal,
    full: bool,
    text: TextTable,
    header: Option<Vec<String>>,
    pending: Vec<Vec<String>>,
}

impl<'a> Table<'a> {
    fn new(terminal: &'a Terminal, rows: &RowsInput, full: bool) -> Self {
        let text = TextTable::new(terminal.page().filter(|_| !full));
        let header = rows.schema.fields().iter().map(|field| field.name().clone()).collect();
        Self { terminal, full, text, header: Some(header), pending: Vec::new() }
    }

    fn add(&mut self, batch: &RecordBatch) {
        for row in display::preview(batch, self.full) {
            self.pending.extend(self.header.take());
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
