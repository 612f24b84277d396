//! `runs`: the runs in the store.

use searchmill_engine::store::NodeOutcome;

use super::Session;
use crate::args::RunsArgs;
use crate::exit::{Failure, OK};

pub(super) fn runs(session: &Session<'_>, args: &RunsArgs) -> Result<u8, Failure> {
    let store = session.store_if_any()?;
    let ids = store.run_ids();
    let mut rows = Vec::new();
    for id in ids.iter().skip(ids.len().saturating_sub(args.count)) {
        let Some(record) = store.run(id) else {
            session.terminal.warn(&format!("the record of run {id} is damaged: `searchmill audit {id}` says where"));
            continue;
        };
        if session.terminal.is_json() {
            let mut line = serde_json::to_value(&record).unwrap_or_default();
            if store.is_imported(id) {
                line["imported"] = true.into();
            }
            session.terminal.line(&line.to_string());
            continue;
        }
        let nodes = store.run_nodes(id);
        let count = |outcome| nodes.iter().filter(|node| node.outcome == outcome).count().to_string();
        let end = match record.exit {
            Some(code) => format!("exit {code}"),
            None => "killed or running".to_owned(),
        };
        let end = if store.is_imported(id) { format!("{end}, imported") } else { end };
        let seconds =
            record.finished.map_or_else(String::new, |finished| format!("{:.1} s", finished - record.started));
        rows.push(vec![
            record.id,
            record.pipeline,
            end,
            seconds,
            count(NodeOutcome::Cached),
            count(NodeOutcome::Finished),
            count(NodeOutcome::Failed),
        ]);
    }
    if ids.is_empty() && store.exists() {
        session.terminal.note("there are no runs in the store");
    }
    if !session.terminal.is_json() && !rows.is_empty() {
        session.terminal.table(&["run", "pipeline", "end", "time", "cached", "ran", "failed"], &rows);
    }
    Ok(OK)
}
