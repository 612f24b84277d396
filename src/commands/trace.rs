//! `trace`: follows an artifact or a row to its sources, or a source to its results.

use searchmill_engine::{Direction, Failure, Session, Trace};
use serde_json::json;

use super::show::run_chosen;
use crate::args::{TraceArgs, TraceFormat};
use crate::display::{Terminal, lineage};
use crate::exit::OK;

pub(super) fn trace(terminal: &Terminal, session: &Session, args: &TraceArgs) -> Result<u8, Failure> {
    let direction = match (args.up, args.down) {
        (_, true) => Some(Direction::Down),
        (true, false) => Some(Direction::Up),
        (false, false) => None,
    };
    let run = run_chosen(session, args.run.as_deref(), args.file.as_deref())?;
    let traced = session.lineage().trace(&args.what, run.as_deref(), direction)?;
    match (&args.row, traced.direction) {
        (Some(row), Direction::Up) => up_row(terminal, &traced, row, args.format)?,
        (Some(row), Direction::Down) => down_row(terminal, &traced, row)?,
        (None, _) => show(terminal, &traced, args),
    }
    Ok(OK)
}

fn show(terminal: &Terminal, traced: &Trace, args: &TraceArgs) {
    let (graph, down) = (&traced.graph, traced.direction == Direction::Down);
    if terminal.is_json() {
        terminal.json(&json!({"target": args.what, "down": down, "steps": graph.steps}));
        return;
    }
    match args.format {
        TraceFormat::Mermaid => terminal.line(lineage::drawing(graph).mermaid().trim_end()),
        TraceFormat::Dot => terminal.line(lineage::drawing(graph).dot().trim_end()),
        TraceFormat::Text if down => {
            let (header, rows) = lineage::table(graph);
            terminal.table(&header, &rows);
        }
        TraceFormat::Text => terminal.line(lineage::tree(graph).trim_end()),
    }
}

fn up_row(terminal: &Terminal, traced: &Trace, row: &str, format: TraceFormat) -> Result<(), Failure> {
    let found = traced.ancestry(row)?;
    if terminal.is_json() {
        let steps = traced.involved(&found);
        terminal.json(&json!({"row": row, "rows": found.rows, "steps": steps}));
        return Ok(());
    }
    let text = match format {
        TraceFormat::Text => lineage::ancestry(&found, &traced.graph),
        TraceFormat::Mermaid => lineage::row_drawing(&found).mermaid(),
        TraceFormat::Dot => lineage::row_drawing(&found).dot(),
    };
    terminal.line(text.trim_end());
    Ok(())
}

fn down_row(terminal: &Terminal, traced: &Trace, row: &str) -> Result<(), Failure> {
    let found = traced.descent(row)?;
    if terminal.is_json() {
        terminal.json(&json!({"row": row, "down": true, "tables": found}));
        return Ok(());
    }
    let (header, rows) = lineage::descendants(&found);
    terminal.table(&header, &rows);
    if found.is_empty() {
        terminal.note("nothing was derived from it");
    }
    Ok(())
}
