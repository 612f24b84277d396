//! `why`: why a node would run, or why it would not.

use std::collections::BTreeSet;
use std::path::PathBuf;

use searchmill_engine::execute::{NodeStatus, Request, diff_known, preimage_of, survey};
use searchmill_engine::lineage::run_of;
use searchmill_engine::plan::with_all_before;
use searchmill_engine::store::{RunRecord, Store};
use serde_json::{Value, json};

use super::Session;
use super::selection::unknown_node;
use crate::args::WhyArgs;
use crate::exit::{Failure, OK};
use crate::{display, pipeline};

pub(super) fn why(session: &Session<'_>, args: &WhyArgs) -> Result<u8, Failure> {
    let store = if args.file.is_some() { session.store_if_any()? } else { session.existing_store()? };
    let asked = asked(session, args, &store)?;
    let plan = pipeline::plan(&asked.file, &asked.set, &asked.params, &session.directory)?;
    let (place, node) = plan.node(&args.node).ok_or_else(|| unknown_node(&plan, &args.node))?;
    let before = args.against.as_deref().map(|run| before(&store, run, node.id())).transpose()?;
    // Nothing is asked of nodes that do not stand before this one.
    let selected = with_all_before(&plan, &BTreeSet::from([place]));
    let request = Request::new(&session.directory).limited(asked.limit);
    let mut survey = survey(&plan, &store, Request { selected: Some(&selected), ..request })?;
    let status = survey.nodes.remove(&place).ok_or_else(|| unknown_node(&plan, &args.node))?;
    let status = &status;
    let reasons = match (status, &before, status.preimage()) {
        (_, Some(before), Some(now)) => diff_known(before, now),
        (NodeStatus::Run { reasons, .. } | NodeStatus::Unknown { reasons, .. }, None, _) => reasons.clone(),
        _ => Vec::new(),
    };
    let lines: Vec<String> = reasons.iter().map(ToString::to_string).collect();
    let (word, detail) = super::plan::words(status);
    if session.terminal.is_json() {
        let answer = json!({"node": node.id(), "status": word, "reasons": lines, "detail": detail});
        session.terminal.line(&answer.to_string());
        return Ok(OK);
    }
    let text = match word {
        "cached" if !detail.is_empty() => format!("{}: cached, {detail}", node.id()),
        "cached" if lines.is_empty() => format!("{}: cached, nothing changed", node.id()),
        "decided later" => waiting(node.id(), status),
        _ => format!("{}: {word}", node.id()),
    };
    session.terminal.line(&text);
    for line in lines {
        session.terminal.line(&format!("  {line}"));
    }
    Ok(OK)
}

/// What the key of a node was made of in an earlier run, whatever became of it there.
fn before(store: &Store, run: &str, node: &str) -> Result<Value, Failure> {
    let run = run_of(store, run)?;
    let nodes = store.run_nodes(&run);
    let before = nodes.iter().rfind(|before| before.node == node);
    let before = before.ok_or_else(|| Failure::usage(format!("run {run} has no node `{node}`")))?;
    preimage_of(store, before).ok_or_else(|| {
        let message = format!("run {run} does not say what the key of `{node}` was made of");
        Failure::usage(message).with_help("the run ended before the node began, or its records are damaged")
    })
}

fn waiting(node: &str, status: &NodeStatus) -> String {
    let NodeStatus::Unknown { waits_for, reasons, .. } = status else { return node.to_owned() };
    let waits = format!("{node}: waits for {}", super::plan::listed(waits_for));
    if reasons.is_empty() { format!("{waits}; it runs only if they give other bytes than before") } else { waits }
}

/// The run that is asked about.
struct Asked {
    file: PathBuf,
    set: Vec<String>,
    params: Vec<PathBuf>,
    limit: Option<u64>,
}

/// What was written, or without a file what the last run was given, what was written on top of it.
fn asked(session: &Session<'_>, args: &WhyArgs, store: &Store) -> Result<Asked, Failure> {
    let (set, params) = (args.set.clone(), args.params.clone());
    if let Some(file) = &args.file {
        return Ok(Asked { file: file.clone(), set, params, limit: None });
    }
    let last = last_run(store)?;
    session.terminal.note(&format!("as in the last run: {}", written(&last)));
    Ok(Asked {
        file: PathBuf::from(last.file),
        set: [last.set, set].concat(),
        params: [last.params_files, params].concat(),
        limit: last.limit,
    })
}

/// The pipeline of a run and what changed it, as on the command line.
fn written(run: &RunRecord) -> String {
    let mut words = vec![display::quoted(&run.file)];
    words.extend(run.params_files.iter().map(|file| format!("--params {}", display::quoted(&file.to_string_lossy()))));
    words.extend(run.set.iter().map(|text| format!("--set {}", display::quoted(text))));
    words.extend(run.limit.map(|rows| format!("--limit {rows}")));
    words.join(" ")
}

fn last_run(store: &Store) -> Result<RunRecord, Failure> {
    let missing = || Failure::usage("there is no run in the store yet").with_help("name the pipeline with --file");
    store.newest_runs().iter().find_map(|id| store.run(id)).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_written_as_it_was_called() {
        let run = RunRecord {
            id: "1".to_owned(),
            pipeline: "p".to_owned(),
            file: "pipelines/p.yaml".to_owned(),
            params: serde_json::Value::Null,
            set: vec!["teacher.model=q 3".to_owned()],
            params_files: vec!["small.yaml".into()],
            limit: Some(9),
            started: 0.0,
            finished: None,
            exit: None,
            nodes: 1,
            ledger: None,
        };
        let wanted = "pipelines/p.yaml --params small.yaml --set \"teacher.model=q 3\" --limit 9";
        assert_eq!(written(&run), wanted);
    }
}
