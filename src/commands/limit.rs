//! `--limit` of `run` and `plan`: how many rows sources give.

use searchmill_engine::{Failure, Plan, RowLimit};

use crate::display::Terminal;

/// Says what a limit for all sources shortens.
pub(super) fn print_limit(terminal: &Terminal, plan: &Plan, limit: &RowLimit) {
    let Some(rows) = limit.every else { return };
    let mut sources: Vec<&str> = Vec::new();
    for node in &plan.nodes {
        let name = node.id().split('@').next().unwrap_or_default();
        if node.inputs.is_empty() && !limit.nodes.contains_key(name) && !sources.contains(&name) {
            sources.push(name);
        }
    }
    let told = format!("--limit {rows}: each of {} gives at most {rows} rows", sources.join(", "));
    let one = sources.last().filter(|_| sources.len() > 1);
    let one = one.map_or_else(String::new, |one| format!("; `--limit {one}={rows}` shortens that one alone"));
    terminal.note(&format!("{told}{one}"));
}

/// Parses the values of `--limit`.
pub(super) fn limit(given: &[String]) -> Result<RowLimit, Failure> {
    let mut limit = RowLimit::default();
    for text in given {
        let added = limit.add(text);
        added.map_err(|message| {
            let failure = Failure::usage(format!("--limit {text}: {message}"));
            failure.with_help("write `--limit 100` for every source, `--limit questions=5` for the node `questions`")
        })?;
    }
    Ok(limit)
}
