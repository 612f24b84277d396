//! Pipeline, selected nodes and row limits from the command line.

use searchmill_engine::{Failure, Overrides, Pipeline, Plan, RowLimit, Selection, Session};

use crate::args::{ChosenArgs, PipelineArgs};
use crate::display::Terminal;

/// Reads and checks the pipeline.
pub(super) fn check(session: &Session, args: &PipelineArgs) -> Result<Pipeline, Failure> {
    session.check(&args.file, &Overrides { set: args.set.clone(), params_files: args.params.clone() })
}

/// Returns the selected nodes.
pub(super) fn selection(chosen: &ChosenArgs) -> Selection {
    let targets = chosen.targets.iter().chain(&chosen.to).cloned().collect();
    Selection { targets, from: chosen.from.clone(), only: chosen.only.clone() }
}

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
    let mut note = format!("--limit {rows}: each of {} gives at most {rows} rows", sources.join(", "));
    if let [_, .., one] = sources[..] {
        note.push_str(&format!("; `--limit {one}={rows}` shortens that one alone"));
    }
    terminal.note(&note);
}

/// Parses the values of `--limit`.
pub(super) fn limit(given: &[String]) -> Result<RowLimit, Failure> {
    let mut limit = RowLimit::default();
    for text in given {
        if let Err(message) = limit.add(text) {
            let help = "write `--limit 100` for every source, `--limit questions=5` for the node `questions`";
            return Err(Failure::usage(format!("--limit {text}: {message}")).with_help(help));
        }
    }
    Ok(limit)
}
