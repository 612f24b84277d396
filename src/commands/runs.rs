//! `runs`: lists the runs in the store.

use searchmill_engine::{Failure, NodeOutcome, PastRun, Session};

use super::store::note_if_missing;
use crate::args::RunsArgs;
use crate::display::Terminal;
use crate::exit::OK;

pub(super) fn runs(terminal: &Terminal, session: &Session, args: &RunsArgs) -> Result<u8, Failure> {
    note_if_missing(terminal, session)?;
    let ids = session.runs().ids()?;
    let mut rows = Vec::new();
    for id in ids.iter().skip(ids.len().saturating_sub(args.count)) {
        let PastRun { record: Some(record), imported, running, .. } = session.runs().get(id)? else {
            // A damaged record must not hide the other runs.
            terminal.warn(&format!("the record of run {id} is damaged: `searchmill audit {id}` shows where"));
            continue;
        };
        if terminal.is_json() {
            let mut line = serde_json::to_value(&record).unwrap_or_default();
            if imported {
                line["imported"] = true.into();
            }
            if running {
                line["running"] = true.into();
            }
            terminal.json(&line);
            continue;
        }
        let nodes = session.runs().nodes(id)?;
        let (mut cached, mut ran, mut failed) = (0, 0, 0);
        for node in &nodes {
            match node.outcome {
                NodeOutcome::Cached => cached += 1,
                NodeOutcome::Finished => ran += 1,
                NodeOutcome::Failed | NodeOutcome::CheckFailed => failed += 1,
                _ => {}
            }
        }
        let end = match record.exit {
            Some(code) => format!("exit {code}"),
            None if running => "running".to_owned(),
            // A run on another machine that shares the folder looks the same.
            None => "killed, or runs elsewhere".to_owned(),
        };
        let end = if imported { format!("{end}, imported") } else { end };
        let seconds = record.finished.map(|finished| format!("{:.1} s", finished - record.started)).unwrap_or_default();
        let (cached, ran, failed) = (cached.to_string(), ran.to_string(), failed.to_string());
        rows.push(vec![record.id, record.pipeline, end, seconds, cached, ran, failed]);
    }
    if ids.is_empty() && session.store().exists()? {
        terminal.note("there are no runs in the store");
    }
    if !terminal.is_json() && !rows.is_empty() {
        terminal.table(&["run", "pipeline", "end", "time", "cached", "ran", "failed"], &rows);
    }
    Ok(OK)
}
